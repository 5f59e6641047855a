// Blocks that other processes map: which handles they are shared as, and how these stay and go.
#include "ferro/core/sharing/imports.h"
#include "ferro/driver/error.h"
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
    Span& span = *addresses_.find(ptr);
    if (heap_.wants_exchange(span, ptr) == ExportResult::kOk) {
      EXPECT_TRUE(timeline_.wait_for_all());
    }
    const ExportResult result = heap_.export_block(span, ptr, {}, out);
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

TEST_F(HeapExportsTest, FewPagesAreSharedAsTheyAre) {
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
    EXPECT_EQ(exports_.descriptor(unit.id), unit.descriptor);
  }
}

TEST_F(HeapExportsTest, TheSecondTimeNothingIsDone) {
  const DevicePtr block = grow(heap_, 20 * kPageBytes);
  const SharedRange first = share(block);
  const DriverCalls before = driver_.calls();
  const SharedRange second = share(block + 512);
  const DriverCalls after = driver_.calls();
  EXPECT_EQ(first.begin, second.begin);
  EXPECT_EQ(first.units[0].id, second.units[0].id);
  EXPECT_EQ(after.exported, before.exported);
  EXPECT_EQ(after.create, before.create);
  EXPECT_EQ(after.event_wait, before.event_wait);
}

TEST_F(HeapExportsTest, ManyPagesMoveBehindOneHandle) {
  const DevicePtr block = grow(heap_, 20 * kPageBytes);
  SimGpu::fill(stream_, block, 11, 20 * kPageBytes - 1);
  SimGpu::fill(side_, block + (20 * kPageBytes - 1), 22, 1);
  const std::string layout = layout_of(heap_);
  const SharedRange range = share(block);
  EXPECT_EQ(range.begin, block);
  EXPECT_EQ(sizes(range), Sizes({20}));
  EXPECT_EQ(layout_of(heap_), layout);
  EXPECT_EQ(SimGpu::peek(block), 11);
  EXPECT_EQ(SimGpu::peek(block + 19 * kPageBytes), 11);
  EXPECT_EQ(SimGpu::peek(block + (20 * kPageBytes - 1)), 22);
  EXPECT_EQ(idle(), 20U) << "the old pages are ready for others";
  EXPECT_EQ(driver_.calls().exported, 1U);
}

TEST_F(HeapExportsTest, ACopyWhoseWaitFailsIsOverBeforeItsPagesGo) {
  const DevicePtr block = grow(heap_, 20 * kPageBytes);
  testing::FaultyApi::fail_only("cuEventSynchronize", 1, CUDA_ERROR_UNKNOWN);
  SharedRange range;
  EXPECT_THROW(static_cast<void>(try_share(block, &range)), DriverError);
  testing::FaultyApi::reset();
  EXPECT_EQ(ferro_sim_pending(), 0U);
  check(heap_);
}

TEST_F(HeapExportsTest, PagesThatOthersUseStayBehindTheirOwnHandles) {
  const DevicePtr before = grow(heap_, kPageBytes / 2);
  const DevicePtr block = allocate(heap_, 20 * kPageBytes);
  const DevicePtr after = allocate(heap_, kPageBytes / 4);
  SimGpu::fill(stream_, before, 1, 512);
  SimGpu::fill(stream_, block, 2, 20 * kPageBytes);
  SimGpu::fill(stream_, after, 3, 512);
  const SharedRange range = share(block);
  EXPECT_EQ(sizes(range), Sizes({1, 19, 1}));
  EXPECT_EQ(SimGpu::peek(before), 1);
  EXPECT_EQ(SimGpu::peek(block), 2);
  EXPECT_EQ(SimGpu::peek(block + (20 * kPageBytes - 1)), 2);
  EXPECT_EQ(SimGpu::peek(after), 3);
}

TEST_F(HeapExportsTest, FreeMemoryOnThePagesAtTheEdgesMovesToo) {
  const DevicePtr before = grow(heap_, kPageBytes / 2);
  const DevicePtr block = allocate(heap_, 20 * kPageBytes);
  free(heap_, before);
  const SharedRange range = share(block);
  EXPECT_EQ(sizes(range), Sizes({21}));
  EXPECT_EQ(range.begin, before);
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
  EXPECT_EQ(allocate(heap_, kPageBytes), blocks[2]) << "in its place it is as good as any";
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

TEST_F(HeapExportsTest, AHandleOfManyPagesGoesBackAsAWhole) {
  const DevicePtr block = grow(heap_, 20 * kPageBytes);
  const SharedRange range = share(block);
  store_.trim(kAll);
  free(heap_, block);
  const DevicePtr small = allocate(heap_, 512);
  ASSERT_EQ(small, block);
  EXPECT_EQ(release_all(), 0U);
  EXPECT_EQ(store_.counts().held, 20U);
  EXPECT_TRUE(is_open(range.units[0].descriptor));
  free(heap_, small);
  EXPECT_EQ(heap_.free_pages() * kPageBytes, 20 * kPageBytes);
  EXPECT_EQ(release(heap_, 1), 20U);
  check(heap_);
  EXPECT_EQ(store_.counts().held, 0U);
  EXPECT_FALSE(is_open(range.units[0].descriptor));
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

TEST_F(HeapExportsTest, ASmallBlockOnAHandleOfManyPagesSharesAllOfIt) {
  const DevicePtr block = grow(heap_, 20 * kPageBytes);
  const SharedRange first = share(block);
  free(heap_, block);
  allocate(heap_, 5 * kPageBytes);
  const DevicePtr small = allocate(heap_, 512);
  const SharedRange range = share(small);
  EXPECT_EQ(range.begin, block);
  ASSERT_EQ(sizes(range), Sizes({20}));
  EXPECT_EQ(range.units[0].id, first.units[0].id);
}

TEST_F(HeapExportsTest, AnOlderHandleInTheMiddleIsReplaced) {
  const DevicePtr old = grow(heap_, 18 * kPageBytes);
  const SharedRange first = share(old);
  free(heap_, old);
  const DevicePtr block = grow(heap_, 30 * kPageBytes);
  ASSERT_EQ(block, old) << "the line grew behind the free block";
  EXPECT_EQ(sizes(share(block)), Sizes({30}));
  EXPECT_EQ(exports_.descriptor(first.units[0].id), -1);
}

TEST_F(HeapExportsTest, LiveBlocksOnlyCanBeShared) {
  const DevicePtr block = grow(heap_, kPageBytes);
  free(heap_, block);
  SharedRange range;
  EXPECT_EQ(try_share(block, &range), ExportResult::kNotLive);
}

TEST_F(HeapExportsTest, ManyPagesAreNotSharedUnderACapture) {
  const DevicePtr block = grow(heap_, 20 * kPageBytes);
  const DevicePtr few = grow(heap_, 2 * kPageBytes);
  SharedRange range;
  captures_.set(1);
  EXPECT_EQ(try_share(block, &range), ExportResult::kCapturing);
  EXPECT_EQ(try_share(few, &range), ExportResult::kOk);
  captures_.set(0);
  EXPECT_EQ(try_share(block, &range), ExportResult::kOk);
}

class HeapExportsShortageTest : public HeapExportsTest {
 protected:
  HeapExportsShortageTest() : HeapExportsTest(44) {}
};

TEST_F(HeapExportsShortageTest, WithLittleRoomTheBlockMovesPartByPart) {
  const DevicePtr block = grow(heap_, 40 * kPageBytes);
  SimGpu::fill(stream_, block, 5, 40 * kPageBytes);
  const SharedRange range = share(block);
  EXPECT_EQ(sizes(range), Sizes({3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 1}));
  EXPECT_EQ(SimGpu::peek(block), 5);
  EXPECT_EQ(SimGpu::peek(block + (40 * kPageBytes - 1)), 5);
  EXPECT_EQ(sizes(share(block)).size(), 14U);
}

TEST_F(HeapExportsShortageTest, APartNeedsRoom) {
  const DevicePtr block = grow(heap_, 43 * kPageBytes);
  SimGpu::fill(stream_, block, 5, 43 * kPageBytes);
  SharedRange range;
  EXPECT_EQ(try_share(block, &range), ExportResult::kOutOfMemory);
  EXPECT_EQ(store_.counts().held, 43U);
  SimGpu::finish_all();
  EXPECT_EQ(SimGpu::peek(block + (43 * kPageBytes - 1)), 5);
}

TEST_F(HeapExportsShortageTest, IdlePagesMakeRoom) {
  const DevicePtr block = grow(heap_, 20 * kPageBytes);
  const DevicePtr other = grow(heap_, 20 * kPageBytes);
  free(heap_, other);
  release_all();
  ASSERT_EQ(idle(), 20U);
  EXPECT_EQ(sizes(share(block)), Sizes({20}));
}

TEST_F(HeapExportsShortageTest, TheLimitCountsTheCopy) {
  const DevicePtr block = grow(heap_, 20 * kPageBytes);
  store_.set_limit(21 * kPageBytes);
  SharedRange range;
  EXPECT_EQ(try_share(block, &range), ExportResult::kOutOfMemory);
  store_.set_limit(40 * kPageBytes);
  EXPECT_EQ(try_share(block, &range), ExportResult::kOk);
}

class ImportsTest : public HeapExportsTest {
 protected:
  static std::vector<ForeignUnit> foreign(const SharedRange& range) {
    std::vector<ForeignUnit> units;
    for (const SharedUnit& unit : range.units) {
      units.push_back({ForeignKind::kDescriptor, &unit.descriptor, unit.bytes});
    }
    return units;
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
  ASSERT_EQ(range.units.size(), 3U);
  const std::uint64_t releases = driver_.calls().release;
  const DevicePtr there = imports_.open(foreign(range)) + kPageBytes / 2;
  EXPECT_EQ(driver_.calls().release - releases, 3U) << "the mappings keep the memory";
  SimGpu::fill(stream_, block + 19 * kPageBytes, 7, kPageBytes);
  SimGpu::fill(stream_, there, 8, 512);
  SimGpu::finish_all();
  EXPECT_EQ(SimGpu::peek(there + (20 * kPageBytes - 1)), 7);
  EXPECT_EQ(SimGpu::peek(block), 8);
  EXPECT_EQ(driver_.calls().imported, 3U);
  imports_.close(DevicePtr{address_of(there) - kPageBytes / 2});
  EXPECT_EQ(imports_.count(), 0U);
}

TEST_F(ImportsTest, AnImportOutlivesTheExport) {
  const DevicePtr block = grow(heap_, 2 * kPageBytes);
  SimGpu::fill(stream_, block, 9, 2 * kPageBytes);
  const DevicePtr there = imports_.open(foreign(share(block)));
  free(heap_, block);
  EXPECT_EQ(release_all(), 2U);
  EXPECT_EQ(SimGpu::peek(there + (2 * kPageBytes - 1)), 9);
  imports_.close(there);
}

class ExportsOfLargeHandlesTest : public HeapExportsTest {
 protected:
  ExportsOfLargeHandlesTest() : HeapExportsTest(128, testing::kCoarseHandles) {}
};

TEST_F(ExportsOfLargeHandlesTest, ManyPagesMoveBehindOneHandleAlsoFromFewHandles) {
  const DevicePtr block = grow(heap_, 20 * kPageBytes);
  ASSERT_EQ(driver_.calls().create, 3U);
  SimGpu::fill(stream_, block, 11, 20 * kPageBytes);
  EXPECT_EQ(sizes(share(block)), Sizes({20}));
  EXPECT_EQ(SimGpu::peek(block + 19 * kPageBytes), 11);
  EXPECT_EQ(idle(), 20U);
}

TEST_F(ExportsOfLargeHandlesTest, HandlesOfSeveralSizesBecomeOne) {
  free(heap_, grow(heap_, 11 * kPageBytes));
  allocate(heap_, 4 * kPageBytes);
  const DevicePtr block = allocate(heap_, 7 * kPageBytes);
  SimGpu::fill(stream_, block, 5, 7 * kPageBytes);
  EXPECT_EQ(sizes(share(block)), Sizes({7}));
  EXPECT_EQ(SimGpu::peek(block + 6 * kPageBytes), 5);
}

TEST_F(ExportsOfLargeHandlesTest, UnderACaptureTheyAreSharedAsTheyAreAndStaySo) {
  free(heap_, grow(heap_, 11 * kPageBytes));
  allocate(heap_, 4 * kPageBytes);
  const DevicePtr block = allocate(heap_, 7 * kPageBytes);
  captures_.set(1);
  const SharedRange range = share(block);
  EXPECT_EQ(sizes(range), Sizes({4, 2, 1}));
  captures_.set(0);
  EXPECT_EQ(sizes(share(block)), Sizes({4, 2, 1})) << "others have opened them";
}

TEST_F(ExportsOfLargeHandlesTest, WhatANeighbourIsSharedAsDoesNotKeepTheRestApart) {
  free(heap_, grow(heap_, 40 * kPageBytes));
  const DevicePtr neighbour = allocate(heap_, 512);
  EXPECT_EQ(sizes(share(neighbour)), Sizes({8}));
  const DevicePtr block = allocate(heap_, 30 * kPageBytes);
  ASSERT_EQ(block, neighbour + 512);
  EXPECT_EQ(sizes(share(block)), Sizes({8, 24}));
  EXPECT_EQ(sizes(share(block)), Sizes({8, 24}));
}

TEST_F(ExportsOfLargeHandlesTest, FewPagesAreSharedAsTheHandlesThatTheyLieOn) {
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
  const DevicePtr there = imports_.open(foreign(share(block)));
  SimGpu::fill(side_, there, 4, kPageBytes);
  imports_.close(there);
  EXPECT_EQ(SimGpu::peek(block), 4);
  EXPECT_EQ(ferro_sim_pending(), 0U);
}

TEST_F(ImportsTest, ClosingIsPutOffUnderACapture) {
  const DevicePtr block = grow(heap_, kPageBytes);
  const DevicePtr there = imports_.open(foreign(share(block)));
  captures_.set(1);
  imports_.close(there);
  EXPECT_EQ(imports_.count(), 1U);
  captures_.set(0);
  imports_.collect();
  EXPECT_EQ(imports_.count(), 0U);
}

TEST_F(ImportsTest, PeersReachEveryMapping) {
  const DevicePtr before = grow(heap_, 2 * kPageBytes);
  const DevicePtr import_before = imports_.open(foreign(share(before)));
  EXPECT_FALSE(peer_may_access(before));
  driver_.add_peer(1);
  heap_.grant(1);
  imports_.grant(1);
  EXPECT_TRUE(peer_may_access(before + kPageBytes));
  EXPECT_TRUE(peer_may_access(import_before));
  const DevicePtr after = grow(heap_, 20 * kPageBytes);
  EXPECT_TRUE(peer_may_access(after));
  const DevicePtr import_after = imports_.open(foreign(share(after)));
  EXPECT_TRUE(peer_may_access(after)) << "behind its new handle";
  EXPECT_TRUE(peer_may_access(import_after));
  imports_.close(import_before);
  imports_.close(import_after);
}

}  // namespace heap_exports_test
}  // namespace ferro
