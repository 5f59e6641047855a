// Pools, caches, counters and the steady state of a device's memory.
#include "ferro/driver/error.h"
#include "support/device_fixture.h"
#include "support/sleep_filters.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace ferro {
namespace device_memory_test {

using testing::bytes;
using testing::FaultyApi;
using testing::kPageBytes;
using testing::SimGpu;

class DeviceMemoryTest : public testing::DeviceFixture {
 protected:
  std::size_t segment_count(const PoolId& pool) { return device_->report().segments(&pool).size(); }
  // A second mapping of a block of one page, as another process has.
  DevicePtr import_page(DevicePtr ptr) {
    SharedRange shared;
    EXPECT_EQ(device_->export_block(*addresses_.find(ptr), ptr, &shared), ExportResult::kOk);
    ForeignHandles handles(device_->driver());
    handles.import(ForeignKind::kDescriptor, &shared.units[0].descriptor, kPageBytes);
    const DevicePtr opened = device_->imports().open(handles);
    EXPECT_NE(opened, kNull);
    return opened;
  }
};

TEST_F(DeviceMemoryTest, AnUnusedDeviceIsUntouched) {
  EXPECT_EQ(pages().held, 0U);
  EXPECT_EQ(device_->report().segments(nullptr).size(), 0U);
  EXPECT_EQ(device_->driver().context_if_created(), nullptr);
  EXPECT_EQ(device_->report().largest_free_block(), 0U);
}

TEST_F(DeviceMemoryTest, StreamsHaveHeapsOfTheirOwn) {
  const DevicePtr a = allocate(512, stream_);
  const DevicePtr b = allocate(512, side_);
  EXPECT_NE(&heap_of(a), &heap_of(b));
  EXPECT_EQ(heap_of(a).stream(), stream_);
  EXPECT_EQ(heap_of(b).stream(), side_);
  EXPECT_EQ(pages().held, 2U);
  free(a);
  EXPECT_NE(allocate(512, side_), a) << "another stream's free block";
}

class SteadyStateTest : public testing::DeviceFixture {
 protected:
  SteadyStateTest()
      : DeviceFixture(32, SimGpu::kManual,
                      AllocatorConfig{.transfers = {.handles_at_start = 100,
                                                    .allocations_per_handle = 1'000'000}}) {}
};

// Streams that take turns pass pages only until each has enough.
TEST_F(SteadyStateTest, MakesNoDriverCall) {
  constexpr std::size_t kSizes[] = {512, 4096, 65536, kMiB, 3 * kMiB, 5 * kPageBytes};
  std::vector<DevicePtr> live;
  const auto iteration = [&](StreamId stream) {
    live.clear();
    for (const std::size_t size : kSizes) {
      live.push_back(device_->allocate(kDefaultPool, stream, bytes(size)).ptr);
    }
    for (const DevicePtr ptr : live) {
      free(ptr);
    }
  };
  for (int i = 0; i < 50; ++i) {
    iteration(i % 2 == 0 ? stream_ : side_);
  }
  EXPECT_GE(device_->report().counters().pages_transferred, 100U);
  const std::uint64_t calls = FaultyApi::calls();
  const LadderCounts ladder = device_->report().counters().ladder;
  for (int i = 0; i < 1000; ++i) {
    iteration(i % 2 == 0 ? stream_ : side_);
  }
  EXPECT_EQ(FaultyApi::calls(), calls) << "12,000 calls of the program later";
  EXPECT_EQ(device_->report().counters().ladder, ladder);
}

TEST_F(DeviceMemoryTest, RandomOrderInAWarmHeapMakesNoDriverCall) {
  std::mt19937_64 random(5);
  std::vector<DevicePtr> pages;
  for (int i = 0; i < 16; ++i) {
    pages.push_back(allocate(kMiB));
  }
  for (const DevicePtr page : pages) {
    free(page);
  }
  std::vector<DevicePtr> live;
  const std::uint64_t calls = FaultyApi::calls();
  for (int i = 0; i < 10'000; ++i) {
    if (live.size() < 24 && (live.empty() || random() % 2 == 0)) {
      // 24 blocks of at most 320 KiB always find room in 16 MiB.
      const std::size_t size = 512 * (1 + random() % 640);
      live.push_back(device_->allocate(kDefaultPool, stream_, bytes(size)).ptr);
    } else {
      std::swap(live[random() % live.size()], live.back());
      free(live.back());
      live.pop_back();
    }
  }
  EXPECT_EQ(FaultyApi::calls(), calls);
  device_->report().check_invariants();
}

TEST_F(DeviceMemoryTest, EmptyCacheReturnsPagesWithoutLiveBytes) {
  free(allocate(6 * kPageBytes));
  const DevicePtr a = allocate(512);
  allocate(512, side_);
  free(allocate(3 * kPageBytes, side_));
  device_->empty_cache();
  device_->report().check_invariants();
  EXPECT_EQ(pages().held, 2U);
  EXPECT_EQ(pages().idle, 0U);
  EXPECT_EQ(SimGpu::used_pages(), 2U);
  EXPECT_EQ(layout_of(kDefaultPool), "L512 F2096640 | L512 F2096640");
  EXPECT_EQ(device_->report().counters().pages_released, 4U)
      << "the side stream had two from the other";
  EXPECT_EQ(device_->report().counters().synchronisations, 1U);
  free(a);
}

class IdleMemoryTest : public testing::DeviceFixture {
 protected:
  IdleMemoryTest()
      : DeviceFixture(16, SimGpu::kManual, AllocatorConfig{.idle_bytes = 4 * kPageBytes}) {}
};

TEST_F(IdleMemoryTest, EmptyCacheKeepsSomePagesInPlace) {
  const DevicePtr a = allocate(3 * kPageBytes);
  allocate(kPageBytes);
  free(a);
  const std::uint64_t unmaps = device_->driver().calls().unmap;
  device_->empty_cache();
  EXPECT_EQ(pages().held, 4U);
  EXPECT_EQ(device_->driver().calls().unmap, unmaps);
  free(allocate(6 * kPageBytes, side_));
  device_->empty_cache();
  EXPECT_EQ(pages().held, 5U) << "one live, four free";
  device_->report().check_invariants();
}

TEST_F(IdleMemoryTest, TheKeptMemoryIsThatOfAllHeapsTogether) {
  const DevicePtr a = allocate(4 * kPageBytes, stream_);
  const DevicePtr b = allocate(4 * kPageBytes, side_);
  free(a);
  free(b);
  device_->empty_cache();
  EXPECT_EQ(pages().held, 4U);
}

TEST_F(IdleMemoryTest, FreePagesThatNoHeapHasAreKeptMemoryToo) {
  for (const std::size_t in_store : {6U, 3U}) {
    const DevicePtr ptr = allocate(6 * kPageBytes);
    free(ptr);
    ASSERT_EQ(release_pages_of(ptr, in_store), in_store);
    ASSERT_EQ(pages().idle, in_store);
    device_->empty_cache();
    EXPECT_EQ(pages().held, 4U) << in_store;
    device_->report().check_invariants();
  }
}

TEST_F(DeviceMemoryTest, EmptyCacheWaitsForWhatOtherStreamsUse) {
  const DevicePtr a = allocate(2 * kPageBytes);
  free_used_by(a, side_);
  device_->empty_cache();
  EXPECT_EQ(pages().held, 0U);
  EXPECT_EQ(ferro_sim_pending(), 0U);
}

TEST_F(DeviceMemoryTest, CollectPendingQueriesAndDoesNotWait) {
  const DevicePtr a = allocate(2 * kPageBytes);
  free_used_by(a, side_);
  device_->collect_pending();
  EXPECT_TRUE(heap_of(a).has_pending());
  SimGpu::finish(side_);
  device_->collect_pending();
  EXPECT_FALSE(heap_of(a).has_pending());
  EXPECT_EQ(device_->driver().calls().event_wait, 0U);
}

TEST_F(DeviceMemoryTest, HoldingIsCounted) {
  EXPECT_EQ(device_->pools().use_count(kGraphPool), -1);
  EXPECT_FALSE(device_->pools().release(kGraphPool));
  device_->pools().hold(kGraphPool);
  device_->pools().hold(kGraphPool);
  EXPECT_EQ(device_->pools().use_count(kGraphPool), 2);
  EXPECT_TRUE(device_->pools().release(kGraphPool));
  EXPECT_TRUE(device_->pools().release(kGraphPool));
  EXPECT_EQ(device_->pools().use_count(kGraphPool), 0);
  EXPECT_FALSE(device_->pools().release(kGraphPool));
}

TEST_F(DeviceMemoryTest, AHeldPoolKeepsItsPages) {
  device_->pools().hold(kGraphPool);
  free(allocate(3 * kPageBytes, stream_, kGraphPool));
  device_->empty_cache();
  EXPECT_EQ(layout_of(kGraphPool), "F3p");
  device_->empty_pool(kGraphPool);
  EXPECT_EQ(layout_of(kGraphPool), "F3p");
  const auto facts = refuse(14 * kPageBytes, stream_);
  EXPECT_EQ(facts->free_private, 3 * kPageBytes);
  EXPECT_EQ(layout_of(kGraphPool), "F3p") << "graphs replay on pages without a live block too";
  EXPECT_TRUE(device_->pools().release(kGraphPool));
}

TEST_F(DeviceMemoryTest, ACacheWithoutFreeMemoryIsEmptiedWithoutAWaitDuringCaptures) {
  const DevicePtr live = allocate(kPageBytes);
  SimGpu::fill(side_, live, 1, kPageBytes);
  device_->set_captures(1);
  const DriverCalls before = device_->driver().calls();
  device_->empty_cache();
  EXPECT_EQ(device_->driver().calls().event_wait, before.event_wait);
  free(allocate(kPageBytes));
  device_->empty_cache();
  EXPECT_EQ(device_->driver().calls().event_wait, before.event_wait + 1);
  EXPECT_EQ(pages().held, 1U);
  device_->set_captures(0);
}

TEST_F(DeviceMemoryTest, APoolReturnsItsMemoryWithoutAWaitOnlyIfTheDeviceIsIdle) {
  device_->pools().hold(kGraphPool);
  free(allocate(3 * kPageBytes, stream_, kGraphPool));
  const DevicePtr other = allocate(kPageBytes);
  SimGpu::fill(side_, other, 1, kPageBytes);
  device_->empty_idle_pool(kGraphPool);
  EXPECT_EQ(layout_of(kGraphPool), "F3p") << "it is held";
  EXPECT_TRUE(device_->pools().release(kGraphPool));
  device_->empty_idle_pool(kGraphPool);
  EXPECT_EQ(layout_of(kGraphPool), "F3p") << "the device works";
  SimGpu::finish(side_);
  device_->set_captures(1);
  device_->empty_idle_pool(kGraphPool);
  EXPECT_EQ(layout_of(kGraphPool), "F3p") << "a capture runs";
  device_->set_captures(0);
  const DriverCalls before = device_->driver().calls();
  device_->empty_idle_pool(kGraphPool);
  EXPECT_EQ(layout_of(kGraphPool), "");
  EXPECT_EQ(pages().held, 1U);
  EXPECT_EQ(device_->driver().calls().event_wait, before.event_wait);
}

TEST_F(DeviceMemoryTest, AHeldPoolKeepsItsPagesWhenItsOwnRequestFails) {
  device_->pools().hold(kGraphPool);
  free(allocate(3 * kPageBytes, stream_, kGraphPool));
  const std::vector<SegmentView> before = device_->report().segments(&kGraphPool);
  allocate(kPageBytes);
  refuse(16 * kPageBytes, side_, kGraphPool);
  EXPECT_EQ(layout_of(kGraphPool), "F3p");
  EXPECT_EQ(device_->report().segments(&kGraphPool).at(0).ptr, before.at(0).ptr);
}

TEST_F(DeviceMemoryTest, AReleasedPoolKeepsItsLiveBlocksUntilTheyAreFreed) {
  device_->pools().hold(kGraphPool);
  const DevicePtr a = allocate(kPageBytes, stream_, kGraphPool);
  free(allocate(2 * kPageBytes, stream_, kGraphPool));
  EXPECT_TRUE(device_->pools().release(kGraphPool));
  device_->empty_cache();
  EXPECT_EQ(layout_of(kGraphPool), "L1p");
  EXPECT_EQ(device_->pools().use_count(kGraphPool), 0);
  free(a);
  const std::uint64_t unreserved = device_->driver().calls().unreserve;
  device_->empty_cache();
  EXPECT_EQ(device_->pools().use_count(kGraphPool), -1) << "the pool does not exist any more";
  EXPECT_EQ(device_->driver().calls().unreserve, unreserved + 1);
  EXPECT_EQ(addresses_.find(a), nullptr);
}

TEST_F(DeviceMemoryTest, EmptyPoolConcernsThatPoolAlone) {
  const PoolId other{3, 0};
  for (const PoolId& pool : {kGraphPool, other}) {
    device_->pools().hold(pool);
    free(allocate(2 * kPageBytes, stream_, pool));
    EXPECT_TRUE(device_->pools().release(pool));
  }
  free(allocate(kPageBytes));
  device_->empty_pool(kGraphPool);
  device_->report().check_invariants();
  EXPECT_EQ(device_->pools().use_count(kGraphPool), -1);
  EXPECT_EQ(layout_of(other), "F2p");
  EXPECT_EQ(layout_of(kDefaultPool), "F1p");
  EXPECT_EQ(pages().held, 3U);
}

TEST_F(DeviceMemoryTest, SegmentsAreThoseOfThePoolInOrderOfAddress) {
  device_->pools().hold(kGraphPool);
  allocate(512, stream_);
  allocate(512, side_);
  allocate(512, stream_, kGraphPool);
  EXPECT_EQ(segment_count(kDefaultPool), 2U);
  EXPECT_EQ(segment_count(kGraphPool), 1U);
  EXPECT_EQ(segment_count({9, 9}), 0U);
  const std::vector<SegmentView> all = device_->report().segments(nullptr);
  ASSERT_EQ(all.size(), 3U);
  EXPECT_LT(all[0].ptr, all[1].ptr);
  EXPECT_LT(all[1].ptr, all[2].ptr);
}

TEST_F(DeviceMemoryTest, TheLargestFreeBlockIsOfAnyHeap) {
  free(allocate(2 * kPageBytes));
  free(allocate(5 * kPageBytes, side_));
  EXPECT_EQ(device_->report().largest_free_block(), 5 * kPageBytes);
}

TEST_F(DeviceMemoryTest, ReservedBytesFollowThePages) {
  free(allocate(4 * kPageBytes));
  device_->empty_cache();
  allocate(kPageBytes);
  const StatValue before = device_->report().reserved()[kAll];
  EXPECT_EQ(before.current, static_cast<std::int64_t>(kPageBytes));
  EXPECT_EQ(before.peak, static_cast<std::int64_t>(4 * kPageBytes));
  EXPECT_EQ(before.increased, static_cast<std::int64_t>(5 * kPageBytes));
  EXPECT_EQ(before.decreased, static_cast<std::int64_t>(4 * kPageBytes));
  device_->report().reset_accumulated();
  const StatValue after = device_->report().reserved()[kAll];
  EXPECT_EQ(after.current, before.current);
  EXPECT_EQ(after.increased + after.decreased, 0);
  EXPECT_EQ(device_->report().counters().synchronisations, 0U);
  EXPECT_NE(ended_by(LadderStep::kGrow), 0U) << "the ladder counts since construction";
}

TEST_F(DeviceMemoryTest, ALoweredLimitIsReachedByEmptyingTheCache) {
  const DevicePtr a = allocate(8 * kPageBytes);
  device_->store().set_limit(4 * kPageBytes);
  free(a);
  device_->empty_cache();
  EXPECT_EQ(pages().held, 0U);
  refuse(5 * kPageBytes, stream_);
  allocate(4 * kPageBytes);
}

TEST_F(DeviceMemoryTest, TwoAllocatorsOfOneProcessKeepTheirHeapsApart) {
  AddressIndex addresses;
  DeviceMemory other(FaultyApi::table(), 0, addresses, AllocatorConfig{}, nullptr);
  const DevicePtr a = device_->allocate(kDefaultPool, stream_, bytes(512)).ptr;
  const DevicePtr b = other.allocate(kDefaultPool, stream_, bytes(512)).ptr;
  EXPECT_EQ(addresses.find(a), nullptr);
  EXPECT_EQ(addresses_.find(b), nullptr);
  EXPECT_EQ(addresses.find(b)->heap()->free(*addresses.find(b), b).error, FreeError::kNone);
}

TEST_F(DeviceMemoryTest, PagesOfPrivatePoolsAreCountedByPool) {
  EXPECT_TRUE(device_->report().reserved_by_pool().empty());
  device_->pools().hold(kGraphPool);
  const DevicePtr a = allocate(2 * kPageBytes, stream_, kGraphPool);
  const DevicePtr b = allocate(kPageBytes, side_, kGraphPool);
  allocate(kPageBytes);
  const auto bytes_of_pool = [this] {
    return device_->report().reserved_by_pool().at(kGraphPool)[kAll];
  };
  const auto page = static_cast<std::int64_t>(kPageBytes);
  EXPECT_EQ(device_->report().reserved_by_pool().size(), 1U)
      << "the default pool is not among them";
  EXPECT_EQ(bytes_of_pool().current, 3 * page);
  EXPECT_EQ(bytes_of_pool().peak, 3 * page);
  EXPECT_EQ(bytes_of_pool().increased, 3 * page);
  EXPECT_EQ(bytes_of_pool().decreased, 0);

  free(a);
  free(b);
  ASSERT_TRUE(device_->pools().release(kGraphPool));
  device_->empty_cache();
  EXPECT_EQ(device_->pools().use_count(kGraphPool), -1) << "the pool is gone";
  EXPECT_EQ(bytes_of_pool().current, 0);
  EXPECT_EQ(bytes_of_pool().peak, 3 * page) << "its numbers stay";
  EXPECT_EQ(bytes_of_pool().decreased, 3 * page);
  device_->report().reset_peaks();
  device_->report().reset_accumulated();
  for (const StatClass cls : {kAll, kSmall, kLarge}) {
    const StatValue value = device_->report().reserved_by_pool().at(kGraphPool)[cls];
    EXPECT_EQ(value.peak + value.increased + value.decreased, 0) << "it stays known, as in native";
  }
}

TEST_F(DeviceMemoryTest, MemoryClosedDuringACaptureIsReleasedWithTheCache) {
  const DevicePtr opened = import_page(allocate(kPageBytes));
  device_->set_captures(1);
  device_->imports().close(opened);
  EXPECT_EQ(device_->imports().count(), 1U);
  device_->set_captures(0);
  device_->empty_cache();
  EXPECT_EQ(device_->imports().count(), 0U);
}

TEST_F(DeviceMemoryTest, AReleasedPoolKeepsNoAddressesOfMemoryThatWasAsleep) {
  device_->pools().hold(kGraphPool);
  const DevicePtr ptr = allocate(kPageBytes, stream_, kGraphPool);
  const SleepFilter all = testing::all_memory();
  ASSERT_EQ(device_->sleep(all, Sleeper::Contents::kKeep, Sleeper::Want::kAll).bytes, kPageBytes);
  free(ptr);
  EXPECT_TRUE(device_->pools().release(kGraphPool));
  device_->empty_idle_pool(kGraphPool);
  EXPECT_EQ(device_->sleep_view().asleep_bytes, 0U);
  EXPECT_TRUE(device_->pools().heaps_of(kGraphPool).empty());
}

TEST_F(DeviceMemoryTest, AFailureDoesNotCountMemoryThatIsAsleep) {
  const DevicePtr asleep = allocate(3 * kPageBytes);
  const DevicePtr freed = allocate(2 * kPageBytes);
  const SleepFilter all = testing::all_memory();
  ASSERT_EQ(device_->sleep(all, Sleeper::Contents::kKeep, Sleeper::Want::kAll).bytes,
            5 * kPageBytes);
  free(freed);
  allocate(kPageBytes);
  const auto facts = refuse(20 * kPageBytes, stream_);
  EXPECT_EQ(facts->live, kPageBytes);
  EXPECT_EQ(facts->held, kPageBytes);
  ASSERT_EQ(facts->streams.size(), 1U);
  EXPECT_EQ(facts->streams[0].live, kPageBytes);
  EXPECT_EQ(facts->streams[0].held, kPageBytes);
  EXPECT_EQ(device_->wake(all).result, SleepResult::kOk);
  free(asleep);
}

// The driver keeps the memory of a freed block while another mapping is open.
TEST_F(DeviceMemoryTest, MemoryClosedDuringACaptureServesARequestThatNeedsIt) {
  const DevicePtr opened = import_page(allocate(kPageBytes));
  device_->set_captures(1);
  device_->imports().close(opened);
  device_->set_captures(0);
  for (unsigned i = 1; i < 16; ++i) {
    allocate(kPageBytes);
  }
  refuse(kPageBytes, stream_);
  EXPECT_EQ(device_->imports().count(), 0U);
}

TEST_F(DeviceMemoryTest, ANewHeadroomHoldsAtOnce) {
  for (unsigned i = 0; i < 12; ++i) {
    allocate(kPageBytes);
  }
  device_->adjust(AllocatorConfig{.headroom = 3 * kPageBytes});
  allocate(kPageBytes);
  const auto facts = refuse(kPageBytes, stream_);
  EXPECT_EQ(facts->headroom, 3 * kPageBytes);
  EXPECT_EQ(diagnose(*facts), Verdict::kHeadroom);
}

TEST_F(DeviceMemoryTest, ThePeakOfReservedBytesRestartsAtTheHeldBytes) {
  const DevicePtr a = allocate(3 * kPageBytes);
  allocate(kPageBytes);
  free(a);
  device_->empty_cache();
  const auto peak = [this] { return device_->report().reserved()[kAll].peak; };
  EXPECT_EQ(peak(), static_cast<std::int64_t>(4 * kPageBytes));
  device_->report().reset_peaks();
  EXPECT_EQ(peak(), static_cast<std::int64_t>(kPageBytes));
}

TEST_F(DeviceMemoryTest, APageSizeThatTheDeviceDoesNotHaveIsRefused) {
  AllocatorConfig config;
  config.page_bytes = kPageBytes + kPageBytes / 2;
  AddressIndex addresses;
  DeviceMemory device(FaultyApi::table(), 0, addresses, config, nullptr);
  EXPECT_THROW((void)device.allocate(kDefaultPool, stream_, bytes(512)), DriverError);
  const DevicePtr somewhere{kSpanAlignment};
  EXPECT_THROW((void)device.allocate_at(kDefaultPool, stream_, somewhere, bytes(512)), DriverError);
}

TEST_F(DeviceMemoryTest, AnExactAddressServesItsOwnPoolAndStreamOnly) {
  const DevicePtr a = allocate(kPageBytes);
  free(a);
  const auto place = [&](const PoolId& pool, StreamId stream, std::size_t size) {
    const AllocateResult result = device_->allocate_at(pool, stream, a, bytes(size));
    device_->report().check_invariants();
    return result.ptr;
  };
  EXPECT_EQ(place(kGraphPool, stream_, 512), kNull);
  EXPECT_EQ(place(kDefaultPool, side_, 512), kNull);
  EXPECT_EQ(place(kDefaultPool, stream_, 512), kNull) << "it was a large block's";
  EXPECT_EQ(place(kDefaultPool, stream_, kPageBytes), a);
  EXPECT_EQ(device_->stats().read()[kBytes][kAll].current, kPageBytes);
}

TEST_F(DeviceMemoryTest, SharedPagesOfAPoolLeaveItsCountWithThem) {
  device_->pools().hold(kGraphPool);
  const DevicePtr block = allocate(3 * kPageBytes, stream_, kGraphPool);
  SharedRange range;
  ASSERT_EQ(device_->export_block(*addresses_.find(block), block, &range), ExportResult::kOk);
  EXPECT_EQ(device_->report().reserved_by_pool()[kGraphPool][kAll].current,
            std::int64_t{3 * kPageBytes});
  free(block);
  EXPECT_TRUE(device_->pools().release(kGraphPool));
  device_->empty_pool(kGraphPool);
  EXPECT_EQ(device_->report().held_bytes(), 0U);
  EXPECT_EQ(device_->report().reserved_by_pool()[kGraphPool][kAll].current, 0);
  device_->report().check_invariants();
}

}  // namespace device_memory_test
}  // namespace ferro
