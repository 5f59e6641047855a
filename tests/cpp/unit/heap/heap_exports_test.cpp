// Blocks that other processes map: their handles, and the lifetime of these.
#include "ferro/core/ipc/imports.h"
#include "ferro/driver/error.h"
#include "support/descriptor_limit.h"
#include "support/faulty_api.h"
#include "support/heap_fixture.h"

#include <gtest/gtest.h>

#include <fcntl.h>

namespace ferro {
namespace heap_exports_test {

using testing::bytes;
using testing::kPageBytes;
using testing::SimGpu;

constexpr std::size_t kAll = ~std::size_t{0};

class HeapExportsTest : public testing::HeapFixture {
 protected:
  explicit HeapExportsTest(std::size_t device_pages = 128, const HandleRules& handles = {})
      : HeapFixture(device_pages, std::string(SimGpu::kManual) + ",devices=2", handles) {}
  ~HeapExportsTest() override {
    drain(heap_);
    EXPECT_EQ(exports_.count(), 0U) << "descriptors are closed with their units";
  }

  ExportResult try_share(DevicePtr ptr, SharedRange* out) {
    const ExportResult result = heap_.export_block(*addresses_.find(ptr), ptr, out);
    check(heap_);
    return result;
  }
  SharedRange share(DevicePtr ptr) {
    SharedRange range;
    EXPECT_EQ(try_share(ptr, &range), ExportResult::kOk);
    return range;
  }
  // Pages of each unit.
  static std::vector<std::size_t> sizes(const SharedRange& range) {
    std::vector<std::size_t> pages;
    for (const SharedUnit& unit : range.units) {
      pages.push_back(unit.bytes / kPageBytes);
    }
    return pages;
  }
  std::size_t release_all() {
    const std::size_t given = release(heap_, kAll);
    check(heap_);
    return given;
  }
  std::size_t idle() { return store_.counts().idle; }
  static bool is_open(int descriptor) { return fcntl(descriptor, F_GETFD) >= 0; }

  Heap heap_{context_, kDefaultPool, stream_};
};

using Sizes = std::vector<std::size_t>;

TEST_F(HeapExportsTest, ABlockIsSharedAsTheHandlesThatItLiesOn) {
  grow(heap_, kPageBytes / 2);
  const DevicePtr block = allocate(heap_, 3 * kPageBytes);
  const std::uint64_t created = driver_.calls().create;
  const SharedRange range = share(block);
  EXPECT_EQ(range.begin + kPageBytes / 2, block);
  EXPECT_EQ(sizes(range), Sizes({1, 1, 1, 1}));
  EXPECT_EQ(driver_.calls().exported, 4U);
  EXPECT_EQ(driver_.calls().create, created);
  for (const SharedUnit& unit : range.units) {
    EXPECT_TRUE(is_open(unit.descriptor));
    EXPECT_TRUE(exports_.contains(unit.id));
  }
}

TEST_F(HeapExportsTest, ASecondExportMakesNoDriverCall) {
  const DevicePtr block = grow(heap_, 20 * kPageBytes);
  const SharedRange first = share(block);
  const DriverCalls before = driver_.calls();
  const SharedRange second = share(block + 512);
  const DriverCalls after = driver_.calls();
  EXPECT_EQ(first.begin, second.begin);
  ASSERT_EQ(second.units.size(), 20U);
  for (std::size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(first.units[i].id, second.units[i].id);
    EXPECT_EQ(first.units[i].descriptor, second.units[i].descriptor);
  }
  EXPECT_EQ(after.exported, before.exported);
  EXPECT_EQ(after.create, before.create);
  EXPECT_EQ(after.event_wait, before.event_wait);
}

TEST_F(HeapExportsTest, AnExportReplacesWhatItsRangeHeld) {
  const DevicePtr block = grow(heap_, 20 * kPageBytes);
  const DevicePtr other = grow(heap_, 2 * kPageBytes);
  SharedRange range = share(block);
  ASSERT_EQ(try_share(other, &range), ExportResult::kOk);
  EXPECT_EQ(range.begin, other);
  EXPECT_EQ(sizes(range), Sizes({1, 1}));
}

// The bytes were copied to another handle, after a wait for the device. Work that other threads had
// queued meanwhile was lost, or had no memory.
TEST_F(HeapExportsTest, WorkOnABlockThatIsSharedGoesOn) {
  const DevicePtr block = grow(heap_, 20 * kPageBytes);
  SimGpu::fill(stream_, block, 11, 20 * kPageBytes);
  SimGpu::fill(side_, block + kPageBytes, 22, kPageBytes);
  const std::size_t pending = ferro_sim_pending();
  const std::string layout = layout_of(heap_);
  const DriverCalls before = driver_.calls();
  const SharedRange range = share(block);
  const DriverCalls after = driver_.calls();
  EXPECT_EQ(ferro_sim_pending(), pending) << "nothing waits for the device";
  EXPECT_EQ(after.exported - before.exported, 20U);
  EXPECT_EQ(after.create + after.map + after.unmap + after.set_access,
            before.create + before.map + before.unmap + before.set_access);
  EXPECT_EQ(after.event_record + after.event_wait + after.stream_wait,
            before.event_record + before.event_wait + before.stream_wait);
  EXPECT_EQ(layout_of(heap_), layout);
  EXPECT_EQ(range.begin, block);
  SimGpu::finish(stream_);
  SimGpu::finish(side_);
  EXPECT_EQ(SimGpu::peek(block), 11);
  EXPECT_EQ(SimGpu::peek(block + kPageBytes), 22);
}

TEST_F(HeapExportsTest, ADriverThatRefusesAHandleLeavesAllAsTheyWere) {
  const DevicePtr block = grow(heap_, 20 * kPageBytes);
  testing::FaultyApi::fail_only("cuMemExportToShareableHandle", 7, CUDA_ERROR_UNKNOWN);
  SharedRange range;
  const DescriptorLimit limit(2000);  // above it are those of the simulator
  ASSERT_TRUE(limit.is_set());
  const rlim_t next = next_descriptor();
  EXPECT_THROW(static_cast<void>(try_share(block, &range)), DriverError);
  testing::FaultyApi::reset();
  EXPECT_EQ(next_descriptor(), next) << "those of the six before are closed";
  EXPECT_EQ(exports_.count(), 0U);
  check(heap_);
  EXPECT_EQ(sizes(share(block)), Sizes(20, 1));
}

TEST_F(HeapExportsTest, MoreHandlesThanDescriptorsAreSharedWithoutAny) {
  const DevicePtr small = grow(heap_, kPageBytes);
  const DevicePtr block = grow(heap_, 100 * kPageBytes);
  SimGpu::fill(stream_, block, 5, 100 * kPageBytes);
  const SharedRange kept = share(small);
  EXPECT_TRUE(is_open(kept.units[0].descriptor));
  const DescriptorLimit limit(limit_with_room_for(40));
  ASSERT_TRUE(limit.is_set());
  const std::uint64_t exported = driver_.calls().exported;
  const SharedRange range = share(block);
  EXPECT_EQ(sizes(range), Sizes(100, 1));
  EXPECT_EQ(driver_.calls().exported, exported);
  for (const SharedUnit& unit : range.units) {
    EXPECT_EQ(unit.descriptor, -1);
    int made = -1;
    ASSERT_EQ(exports_.duplicate(unit.id, &made), DuplicateResult::kOk);
    ForeignHandles handles(driver_);
    handles.import(ForeignKind::kDescriptor, &made, unit.bytes);
    close(made);
  }
  EXPECT_EQ(driver_.calls().exported - exported, 100U);
}

TEST_F(HeapExportsTest, HandlesAtTheEdgesAreExportedWhole) {
  const DevicePtr before = grow(heap_, kPageBytes / 2);
  const DevicePtr block = allocate(heap_, 20 * kPageBytes);
  const DevicePtr after = allocate(heap_, kPageBytes / 4);
  const SharedRange range = share(block);
  EXPECT_EQ(range.begin, before);
  EXPECT_EQ(sizes(range), Sizes(21, 1));
  EXPECT_EQ(share(after).units[0].id, range.units[20].id);
}

TEST_F(HeapExportsTest, WhatWasSharedIsNotMoved) {
  std::vector<DevicePtr> blocks;
  for (int i = 0; i < 8; ++i) {
    blocks.push_back(grow(heap_, kPageBytes));
  }
  share(blocks[2]);
  for (const int i : {0, 2, 4, 6}) {
    free(heap_, blocks[static_cast<std::size_t>(i)]);
  }
  DevicePtr moved = kNull;
  pass_epochs();
  // Four free pages, of which one is pinned.
  EXPECT_EQ(heap_.allocate_grown(bytes(4 * kPageBytes), GrowFrom::kOwnPages, &moved),
            GrowResult::kTooFewPages);
  EXPECT_EQ(heap_.allocate_grown(bytes(3 * kPageBytes), GrowFrom::kOwnPages, &moved),
            GrowResult::kGrown);
  check(heap_);
  EXPECT_EQ(heap_.pages_moved(), 3U);
  EXPECT_EQ(allocate(heap_, kPageBytes), blocks[2])
      << "at its own address it serves like any other";
}

TEST_F(HeapExportsTest, SharedPagesGoBackToTheDriver) {
  const DevicePtr block = grow(heap_, 2 * kPageBytes);
  const SharedRange range = share(block);
  free(heap_, block);
  EXPECT_EQ(release_all(), 2U);
  EXPECT_EQ(store_.counts().held, 0U) << "another process may still have them";
  for (const SharedUnit& unit : range.units) {
    EXPECT_FALSE(is_open(unit.descriptor));
    int copy = -1;
    EXPECT_EQ(exports_.duplicate(unit.id, &copy), DuplicateResult::kRetired);
  }
}

TEST_F(HeapExportsTest, FreePagesAroundAPinnedOneGoBack) {
  const DevicePtr first = grow(heap_, kPageBytes);
  const DevicePtr middle = grow(heap_, kPageBytes);
  const DevicePtr last = grow(heap_, kPageBytes);
  share(middle);
  for (const DevicePtr block : {first, middle, last}) {
    free(heap_, block);
  }
  EXPECT_EQ(heap_.free_pages() * kPageBytes, 3 * kPageBytes);
  EXPECT_EQ(release_all(), 3U);
  EXPECT_EQ(idle(), 2U) << "only the pinned page left the store";
}

TEST_F(HeapExportsTest, UnitsThatWereSharedBeforeAreSharedAgain) {
  const DevicePtr old = grow(heap_, 18 * kPageBytes);
  const SharedRange first = share(old);
  free(heap_, old);
  const DevicePtr block = grow(heap_, 30 * kPageBytes);
  ASSERT_EQ(block, old) << "the arena grew behind the free block";
  const std::uint64_t exported = driver_.calls().exported;
  const SharedRange second = share(block);
  EXPECT_EQ(sizes(second), Sizes(30, 1));
  EXPECT_EQ(driver_.calls().exported - exported, 12U);
  for (std::size_t i = 0; i < 18; ++i) {
    EXPECT_EQ(second.units[i].id, first.units[i].id);
  }
}

TEST_F(HeapExportsTest, LiveBlocksOnlyCanBeShared) {
  const DevicePtr block = grow(heap_, kPageBytes);
  free(heap_, block);
  SharedRange range;
  EXPECT_EQ(try_share(block, &range), ExportResult::kNotLive);
}

TEST_F(HeapExportsTest, UnderACaptureABlockIsSharedAsAtAnyTime) {
  const DevicePtr block = grow(heap_, 20 * kPageBytes);
  captures_.set(1);
  const SharedRange range = share(block);
  captures_.set(0);
  EXPECT_EQ(share(block).units[19].id, range.units[19].id);
}

class ImportsTest : public HeapExportsTest {
 protected:
  DevicePtr open(const SharedRange& range) {
    ForeignHandles handles(driver_);
    for (const SharedUnit& unit : range.units) {
      handles.import(ForeignKind::kDescriptor, &unit.descriptor, unit.bytes);
    }
    return imports_.open(handles);
  }
  bool peer_may_access(DevicePtr ptr) {
    CUmemLocation location{};
    location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    location.id = 1;
    unsigned long long flags = 0;
    SimGpu::expect(SimGpu::api().mem_get_access(&flags, &location, address_of(ptr)));
    return flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  }
  Imports imports_{driver_, [this] { return timeline_.wait_for_all(); }};
};

TEST_F(ImportsTest, UnitsAreMappedSideBySide) {
  grow(heap_, kPageBytes / 2);
  const DevicePtr block = allocate(heap_, 20 * kPageBytes);
  allocate(heap_, 512);
  const SharedRange range = share(block);
  ASSERT_EQ(range.units.size(), 21U);
  const std::uint64_t releases = driver_.calls().release;
  const DevicePtr there = open(range) + kPageBytes / 2;
  EXPECT_EQ(driver_.calls().release - releases, 21U) << "the mappings keep the memory";
  SimGpu::fill(stream_, block + 19 * kPageBytes, 7, kPageBytes);
  SimGpu::fill(stream_, there, 8, 512);
  SimGpu::finish_all();
  EXPECT_EQ(SimGpu::peek(there + (20 * kPageBytes - 1)), 7);
  EXPECT_EQ(SimGpu::peek(block), 8);
  EXPECT_EQ(driver_.calls().imported, 21U);
  imports_.close(DevicePtr{address_of(there) - kPageBytes / 2});
  EXPECT_EQ(imports_.count(), 0U);
}

// Each handle's mapping fails in turn.
TEST_F(ImportsTest, AFailedImportLeavesNoMappingAndNoAddresses) {
  const SharedRange range = share(grow(heap_, 3 * kPageBytes));
  ASSERT_EQ(range.units.size(), 3U);
  const std::uint64_t reserved = SimGpu::reserved_bytes();
  for (std::uint64_t mapping = 1; mapping <= 3; ++mapping) {
    testing::FaultyApi::fail_only("cuMemMap", mapping, CUDA_ERROR_OUT_OF_MEMORY);
    const std::uint64_t unmaps = SimGpu::calls("cuMemUnmap");
    EXPECT_EQ(open(range), kNull);
    testing::FaultyApi::reset();
    EXPECT_EQ(SimGpu::reserved_bytes(), reserved) << mapping;
    EXPECT_EQ(SimGpu::calls("cuMemUnmap") - unmaps, mapping == 1 ? 0U : 1U);
    EXPECT_EQ(imports_.count(), 0U);
  }
  imports_.close(open(range));
  EXPECT_EQ(SimGpu::reserved_bytes(), reserved);
}

TEST_F(ImportsTest, AnImportOutlivesTheExport) {
  const DevicePtr block = grow(heap_, 2 * kPageBytes);
  SimGpu::fill(stream_, block, 9, 2 * kPageBytes);
  const DevicePtr there = open(share(block));
  free(heap_, block);
  EXPECT_EQ(release_all(), 2U);
  EXPECT_EQ(SimGpu::peek(there + (2 * kPageBytes - 1)), 9);
  imports_.close(there);
}

class ExportsOfLargeHandlesTest : public HeapExportsTest {
 protected:
  ExportsOfLargeHandlesTest() : HeapExportsTest(128, testing::kCoarseHandles) {}
};

TEST_F(ExportsOfLargeHandlesTest, ManyPagesAreSharedAsFewHandles) {
  const DevicePtr block = grow(heap_, 20 * kPageBytes);
  SimGpu::fill(stream_, block, 11, 20 * kPageBytes);
  EXPECT_EQ(sizes(share(block)), Sizes({8, 8, 4}));
  SimGpu::finish_all();
  EXPECT_EQ(SimGpu::peek(block + 19 * kPageBytes), 11);
}

TEST_F(ExportsOfLargeHandlesTest, AHandleGoesBackAsAWhole) {
  const DevicePtr block = grow(heap_, 16 * kPageBytes);
  const SharedRange range = share(block);
  ASSERT_EQ(sizes(range), Sizes({8, 8}));
  free(heap_, block);
  const DevicePtr small = allocate(heap_, 512);
  ASSERT_EQ(small, block);
  EXPECT_EQ(share(small).units[0].id, range.units[0].id);
  EXPECT_EQ(release_all(), 8U) << "the other one";
  EXPECT_EQ(store_.counts().held, 8U);
  EXPECT_TRUE(is_open(range.units[0].descriptor));
  EXPECT_FALSE(is_open(range.units[1].descriptor));
  free(heap_, small);
  EXPECT_EQ(heap_.free_pages(), 8U);
  EXPECT_EQ(release(heap_, 1), 8U);
  check(heap_);
  EXPECT_EQ(store_.counts().held, 0U);
  EXPECT_FALSE(is_open(range.units[0].descriptor));
}

TEST_F(ExportsOfLargeHandlesTest, BlocksOnOneHandleShareIt) {
  free(heap_, grow(heap_, 16 * kPageBytes));
  const DevicePtr before = allocate(heap_, 7 * kPageBytes);
  const DevicePtr block = allocate(heap_, 2 * kPageBytes);
  const SharedRange range = share(block);
  EXPECT_EQ(range.begin, before);
  EXPECT_EQ(sizes(range), Sizes({8, 8})) << "both are used by others or free in part";
  EXPECT_EQ(share(before).units[0].id, range.units[0].id);
  SimGpu::finish_all();
  EXPECT_EQ(release(heap_, kAll), 0U) << "they are pinned";
  free(heap_, block);
  free(heap_, before);
  EXPECT_EQ(release_all(), 16U);
}

TEST_F(ImportsTest, ClosingWaitsForTheDevice) {
  const DevicePtr block = grow(heap_, kPageBytes);
  const DevicePtr there = open(share(block));
  SimGpu::fill(side_, there, 4, kPageBytes);
  imports_.close(there);
  EXPECT_EQ(SimGpu::peek(block), 4);
  EXPECT_EQ(ferro_sim_pending(), 0U);
}

TEST_F(ImportsTest, ClosingIsPutOffUnderACapture) {
  const DevicePtr block = grow(heap_, kPageBytes);
  const DevicePtr there = open(share(block));
  captures_.set(1);
  imports_.close(there);
  EXPECT_EQ(imports_.count(), 1U);
  captures_.set(0);
  imports_.collect();
  EXPECT_EQ(imports_.count(), 0U);
}

TEST_F(ImportsTest, AnImportClosesThoseThatWerePutOff) {
  const DevicePtr block = grow(heap_, kPageBytes);
  const SharedRange range = share(block);
  const DevicePtr first = open(range);
  captures_.set(1);
  imports_.close(first);
  captures_.set(0);
  const DevicePtr second = open(range);
  EXPECT_EQ(imports_.count(), 1U);
  imports_.close(second);
}

TEST_F(ImportsTest, PeersReachEveryMapping) {
  const DevicePtr before = grow(heap_, 2 * kPageBytes);
  const DevicePtr import_before = open(share(before));
  EXPECT_FALSE(peer_may_access(before));
  driver_.add_peer(1);
  heap_.grant(1);
  imports_.grant(1);
  EXPECT_TRUE(peer_may_access(before + kPageBytes));
  EXPECT_TRUE(peer_may_access(import_before));
  const DevicePtr after = grow(heap_, 20 * kPageBytes);
  EXPECT_TRUE(peer_may_access(after));
  const DevicePtr import_after = open(share(after));
  EXPECT_TRUE(peer_may_access(import_after));
  imports_.close(import_before);
  imports_.close(import_after);
}

// The driver of two H200 refused calls for the mappings of many handles.
TEST_F(ImportsTest, APeerGetsAccessMappingByMapping) {
  const DevicePtr block = grow(heap_, 20 * kPageBytes);
  const SharedRange range = share(block);
  ASSERT_GT(range.units.size(), 1U);
  const DevicePtr import = open(range);
  driver_.add_peer(1);
  const std::size_t before = driver_.calls().set_access;
  heap_.grant(1);
  EXPECT_EQ(driver_.calls().set_access - before, range.units.size());
  imports_.grant(1);
  EXPECT_EQ(driver_.calls().set_access - before, 2 * range.units.size());
  for (std::size_t page = 0; page < 20; ++page) {
    EXPECT_TRUE(peer_may_access(block + page * kPageBytes)) << page;
    EXPECT_TRUE(peer_may_access(import + page * kPageBytes)) << page;
  }
  imports_.close(import);
}

}  // namespace heap_exports_test
}  // namespace ferro
