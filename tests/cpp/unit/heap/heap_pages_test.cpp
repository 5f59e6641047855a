// Pages and addresses of a heap: growth, spans, release, restoring.
#include "support/heap_fixture.h"

#include <gtest/gtest.h>

namespace ferro {
namespace heap_pages_test {

using testing::bytes;
using testing::FaultyApi;
using testing::kPageBytes;
using testing::SimGpu;
using testing::take;

class HeapPagesTest : public testing::HeapFixture {
 protected:
  explicit HeapPagesTest(std::size_t device_pages = 64) : HeapFixture(device_pages) {}
  ~HeapPagesTest() override { drain(heap_); }

  GrowResult try_grow(std::size_t size, GrowFrom from = GrowFrom::kAnyPages) {
    DevicePtr ptr = kNull;
    const GrowResult result = heap_.allocate_grown(bytes(size), from, &ptr);
    EXPECT_EQ(result == GrowResult::kGrown, ptr != kNull);
    check(heap_);
    return result;
  }
  std::size_t release_pages(std::size_t pages) {
    const std::size_t given = release(heap_, pages);
    check(heap_);
    return given;
  }

  Heap heap_{context_, kDefaultPool, stream_};
};

constexpr std::size_t kAll = ~std::size_t{0};

TEST_F(HeapPagesTest, TheFirstGrowthReservesOnceAndGivesAccessOnce) {
  grow(heap_, 3 * kPageBytes - 512);
  const DriverCalls calls = driver_.calls();
  EXPECT_EQ(calls.reserve, 1U);
  EXPECT_EQ(calls.create, 3U);
  EXPECT_EQ(calls.map, 3U);
  EXPECT_EQ(calls.set_access, 1U);
  EXPECT_EQ(calls.unmap + calls.release, 0U);
  EXPECT_EQ(layout_of(heap_), "L6290944 F512");
}

TEST_F(HeapPagesTest, GrowthUsesTheFreeBlockBesideTheGap) {
  const DevicePtr a = grow(heap_, kPageBytes + 512);
  const DevicePtr b = grow(heap_, 3 * kPageBytes);
  EXPECT_EQ(b, a + kPageBytes + 512);
  EXPECT_EQ(driver_.calls().create, 5U) << "the rest of the second page was used";
  EXPECT_EQ(driver_.calls().reserve, 1U);
}

TEST_F(HeapPagesTest, GrowthUsesTheFreeBlockInFrontOfTheGap) {
  const DevicePtr a = grow(heap_, 512);
  const DevicePtr rest = allocate(heap_, kPageBytes / 2);
  free(heap_, rest);
  const DevicePtr b = grow(heap_, 2 * kPageBytes - 512);
  EXPECT_EQ(b, a + 512);
  EXPECT_EQ(driver_.calls().create, 2U);
}

TEST_F(HeapPagesTest, AHoleIsFilledBeforeTheArenaGetsLonger) {
  std::vector<DevicePtr> blocks;
  for (int i = 0; i < 5; ++i) {
    blocks.push_back(grow(heap_, kPageBytes));
  }
  free(heap_, blocks[1]);
  free(heap_, blocks[2]);
  EXPECT_EQ(release_pages(kAll), 2U);
  EXPECT_EQ(layout_of(heap_), "L1p | L1p L1p");
  EXPECT_EQ(grow(heap_, kPageBytes), blocks[1]);
  EXPECT_EQ(grow(heap_, kPageBytes), blocks[2]);
  EXPECT_EQ(layout_of(heap_), "L1p L1p L1p L1p L1p");
}

TEST_F(HeapPagesTest, FillingAHoleJoinsTheFreeBlocksOfBothSides) {
  const DevicePtr a = grow(heap_, 7 * kPageBytes);
  free(heap_, a);
  const DevicePtr head = allocate(heap_, kPageBytes / 2 + kMiB);
  const DevicePtr middle = allocate(heap_, kPageBytes);
  const DevicePtr tail = allocate(heap_, 5 * kPageBytes);
  ASSERT_EQ(layout_of(heap_), "L1p L1p L5p");
  free(heap_, middle);
  ASSERT_EQ(release_pages(kAll), 1U);
  free(heap_, head);
  const DevicePtr half = allocate(heap_, kMiB + 512);
  ASSERT_EQ(half, head);
  // Before the gap 1 MiB - 512 are free, behind it nothing: one page serves up to 3 MiB - 512.
  EXPECT_EQ(grow(heap_, 3 * kMiB - 512), half + kMiB + 512);
  EXPECT_EQ(layout_of(heap_), "L1049088 L3145216 L5p");
  static_cast<void>(tail);
}

TEST_F(HeapPagesTest, IdlePagesAreTakenWholeOrNotAtAll) {
  EXPECT_EQ(try_grow(kPageBytes, GrowFrom::kIdlePages), GrowResult::kTooFewPages);
  EXPECT_EQ(driver_.calls().reserve, driver_.calls().unreserve) << "the new span is given up";
  testing::Handles pages;
  ASSERT_EQ(take(store_, 2, Fit::kAtLeast, pages), TakeResult::kOk);
  store_.put(pages);
  EXPECT_EQ(try_grow(3 * kPageBytes, GrowFrom::kIdlePages), GrowResult::kTooFewPages);
  EXPECT_EQ(store_.counts().idle, 2U);
  EXPECT_EQ(try_grow(2 * kPageBytes, GrowFrom::kIdlePages), GrowResult::kGrown);
  EXPECT_EQ(store_.counts().idle, 0U);
  EXPECT_EQ(driver_.calls().create, 2U);
}

TEST_F(HeapPagesTest, ALimitOrAFullDeviceLeavesTheArenaAsItWas) {
  const DevicePtr a = grow(heap_, 512);
  store_.set_limit(4 * kPageBytes);
  EXPECT_EQ(try_grow(8 * kPageBytes), GrowResult::kOverLimit);
  store_.set_limit(PageStore::kNoLimit);
  EXPECT_EQ(try_grow(80 * kPageBytes), GrowResult::kOutOfMemory);
  EXPECT_EQ(layout_of(heap_), "L512 F2096640");
  EXPECT_EQ(driver_.calls().map, 1U);
  free(heap_, a);
}

TEST_F(HeapPagesTest, ReleasesWholePagesOnly) {
  const DevicePtr a = grow(heap_, 5 * kPageBytes);
  free(heap_, a);
  const DevicePtr head = allocate(heap_, 512);
  EXPECT_EQ(head, a);
  EXPECT_EQ(heap_.free_pages() * kPageBytes, 4 * kPageBytes);
  EXPECT_EQ(release_pages(kAll), 4U);
  EXPECT_EQ(layout_of(heap_), "L512 F2096640");
  EXPECT_EQ(store_.counts().idle, 4U);
  EXPECT_EQ(driver_.calls().unmap, 1U) << "one call for a run of pages";
  EXPECT_EQ(driver_.calls().release, 0U);
}

TEST_F(HeapPagesTest, ReleasesAtMostWhatIsAskedForFromTheFarEnd) {
  free(heap_, grow(heap_, 6 * kPageBytes));
  const DevicePtr a = allocate(heap_, 2 * kPageBytes);
  const DevicePtr b = allocate(heap_, kPageBytes);
  static_cast<void>(b);
  free(heap_, a);
  ASSERT_EQ(layout_of(heap_), "F2p L1p F3p");
  EXPECT_EQ(release_pages(0), 0U);
  EXPECT_EQ(driver_.calls().event_wait, 0U);
  EXPECT_EQ(release_pages(2), 2U);
  EXPECT_EQ(layout_of(heap_), "F2p L1p F1p");
  EXPECT_EQ(release_pages(2), 2U) << "from the hole that has them all";
  EXPECT_EQ(layout_of(heap_), "L1p F1p");
}

TEST_F(HeapPagesTest, ReleasingWaitsForTheHeapsOwnStream) {
  const DevicePtr a = grow(heap_, 2 * kPageBytes);
  SimGpu::fill(stream_, a, 7, 2 * kPageBytes);
  free(heap_, a);
  ASSERT_NE(ferro_sim_pending(), 0U);
  EXPECT_EQ(release_pages(kAll), 2U);
  EXPECT_EQ(ferro_sim_pending(), 0U) << "the work on the pages came first";
  EXPECT_EQ(driver_.calls().event_wait, 1U);
}

TEST_F(HeapPagesTest, APrivatePoolWaitsForTheWholeDevice) {
  Heap pool(context_, PoolId{0, 3}, stream_);
  const DevicePtr a = grow(pool, 2 * kPageBytes);
  free(pool, a);
  // A graph may replay on its pages, on any stream, long after the program has freed them.
  make_busy(side_, a);
  captures_.set(1);
  EXPECT_EQ(release(pool, kAll), 0U) << "waiting would invalidate the capture";
  ASSERT_NE(ferro_sim_pending(), 0U);
  captures_.set(0);
  EXPECT_EQ(release(pool, kAll), 2U);
  EXPECT_EQ(ferro_sim_pending(), 0U);
}

TEST_F(HeapPagesTest, AReleaseOfNothingNeedsNoPoint) {
  const DevicePtr a = grow(heap_, 512);
  const std::uint64_t records = driver_.calls().event_record;
  EXPECT_EQ(release_pages(kAll), 0U);
  EXPECT_EQ(driver_.calls().event_record, records);
  static_cast<void>(a);
}

TEST_F(HeapPagesTest, ACapturingStreamReleasesNothing) {
  free(heap_, grow(heap_, 2 * kPageBytes));
  captures_.set(1);
  SimGpu::begin_capture(stream_);
  EXPECT_EQ(release_pages(kAll), 0U);
  EXPECT_EQ(driver_.capture_info(stream_).status, CaptureStatus::kActive);
  SimGpu::end_capture(stream_);
  captures_.set(0);
  EXPECT_EQ(release_pages(kAll), 2U);
}

TEST_F(HeapPagesTest, ARefusedUnmapKeepsThePages) {
  free(heap_, grow(heap_, 2 * kPageBytes));
  FaultyApi::fail_only("cuMemUnmap", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(release_pages(kAll), 2U);
  EXPECT_EQ(layout_of(heap_), "") << "they have left";
  EXPECT_EQ(store_.trim(2), 0U) << "a mapped handle must not be released";
  EXPECT_EQ(store_.counts().idle, 2U);
  EXPECT_EQ(stale_.remove_passed(), 1U);
  EXPECT_EQ(store_.trim(2), 2U);
}

TEST_F(HeapPagesTest, PendingBlocksKeepTheirPages) {
  const DevicePtr a = grow(heap_, 2 * kPageBytes);
  record(heap_, a, side_);
  make_busy(side_, a);
  free(heap_, a);
  EXPECT_EQ(release_pages(kAll), 0U);
  SimGpu::finish(side_);
  EXPECT_EQ(release_pages(kAll), 2U) << "what is complete is collected first";
}

TEST_F(HeapPagesTest, APageGivenBackServesAnotherHeap) {
  Heap other(context_, kDefaultPool, side_);
  free(heap_, grow(heap_, 2 * kPageBytes));
  ASSERT_EQ(release_pages(kAll), 2U);
  const DevicePtr ptr = [&] {
    DevicePtr out = kNull;
    EXPECT_EQ(other.allocate_grown(bytes(2 * kPageBytes), GrowFrom::kIdlePages, &out),
              GrowResult::kGrown);
    return out;
  }();
  EXPECT_EQ(driver_.calls().create, 2U);
  EXPECT_EQ(addresses_.find(ptr)->heap(), &other);
  free(other, ptr);
  EXPECT_EQ(release(other, kAll), 2U);
}

TEST_F(HeapPagesTest, ADestroyedHeapReleasesItsAddresses) {
  DevicePtr ptr = kNull;
  {
    Heap other(context_, kDefaultPool, side_);
    ptr = grow(other, kPageBytes);
    free(other, ptr);
    ASSERT_EQ(release(other, kAll), 1U);
  }
  EXPECT_EQ(addresses_.find(ptr), nullptr);
  EXPECT_EQ(driver_.calls().reserve, driver_.calls().unreserve);
}

// A device with more memory than one span of the heap.
class LongArenaTest : public HeapPagesTest {
 protected:
  static constexpr std::size_t kSpanPages = kSpanAlignment / kPageBytes;
  LongArenaTest() : HeapPagesTest(3 * kSpanPages) {}
};

TEST_F(LongArenaTest, AnArenaOfSeveralSpans) {
  const DevicePtr a = grow(heap_, (kSpanPages - 10) * kPageBytes);
  const DevicePtr b = grow(heap_, 20 * kPageBytes);
  EXPECT_EQ(driver_.calls().reserve, 2U);
  EXPECT_NE(addresses_.find(a), addresses_.find(b));
  const DevicePtr c = grow(heap_, 10 * kPageBytes);
  const bool a_first = a < b;
  EXPECT_EQ(c, a_first ? a + (kSpanPages - 10) * kPageBytes : b + 20 * kPageBytes)
      << "both spans have room for it";
  const std::vector<SegmentView> segments = heap_.segments();
  ASSERT_EQ(segments.size(), 2U);
  EXPECT_EQ(segments[a_first ? 0 : 1].ptr, a);
  EXPECT_LT(segments[a_first ? 0 : 1].span_number, segments[a_first ? 1 : 0].span_number);
  free(heap_, a);
  EXPECT_EQ(release_pages(kAll), kSpanPages - 10);
  free(heap_, b);
}

TEST_F(LongArenaTest, ARequestLongerThanTheUsualSpanGetsOneOfItsLength) {
  const DevicePtr a = grow(heap_, (kSpanPages + 1) * kPageBytes);
  EXPECT_EQ(driver_.calls().reserve, 1U);
  EXPECT_EQ(addresses_.find(a)->bytes(), 2 * kSpanAlignment);
  EXPECT_EQ(addresses_.find(a + kSpanAlignment), addresses_.find(a));
}

TEST_F(LongArenaTest, AFailedGrowthReleasesItsNewSpan) {
  const DevicePtr a = grow(heap_, (kSpanPages - 1) * kPageBytes);
  const std::uint64_t before = driver_.calls().unreserve;
  EXPECT_EQ(try_grow(3 * kSpanPages * kPageBytes), GrowResult::kOutOfMemory);
  EXPECT_EQ(driver_.calls().unreserve, before + 1);
  EXPECT_EQ(driver_.calls().reserve, 2U);
  EXPECT_EQ(layout_of(heap_), "L" + std::to_string(kSpanPages - 1) + "p");
  static_cast<void>(a);
}

// Restoring a set of live blocks.

TEST_F(HeapPagesTest, RestoringMakesExactlyTheRecordedBlocksLive) {
  const DevicePtr a = allocate(heap_, 512);
  const DevicePtr b = allocate(heap_, 3 * kPageBytes);
  const DevicePtr c = allocate(heap_, 1024);
  const std::vector<BlockView> recorded = live_blocks_of(heap_);
  ASSERT_EQ(recorded.size(), 3U);
  const std::string before = layout_of(heap_);

  free(heap_, b);
  free(heap_, a);
  const DevicePtr d = allocate(heap_, kPageBytes);
  ASSERT_TRUE(heap_.can_restore(recorded));
  std::vector<BlockView> freed;
  heap_.restore_live(recorded, &freed);
  check(heap_);
  EXPECT_EQ(layout_of(heap_), before);
  ASSERT_EQ(freed.size(), 2U);
  for (const BlockView& block : freed) {
    EXPECT_TRUE(block.ptr == c || block.ptr == d);
  }
  for (const DevicePtr ptr : {a, b, c}) {
    free(heap_, ptr);
  }
}

TEST_F(HeapPagesTest, RestoringNothingFreesEverything) {
  static_cast<void>(allocate(heap_, 512));
  static_cast<void>(allocate(heap_, 2 * kPageBytes));
  std::vector<BlockView> freed;
  heap_.restore_live({}, &freed);
  check(heap_);
  EXPECT_EQ(freed.size(), 2U);
  EXPECT_TRUE(live_blocks_of(heap_).empty());
}

TEST_F(HeapPagesTest, RestoringKeepsRequestedSizes) {
  const DevicePtr a = grow(heap_, 1024);
  free(heap_, a);
  ASSERT_EQ(heap_.allocate_hit({1024, 1000}), a);
  const std::vector<BlockView> recorded = live_blocks_of(heap_);
  free(heap_, a);
  std::vector<BlockView> freed;
  heap_.restore_live(recorded, &freed);
  check(heap_);
  EXPECT_EQ(live_blocks_of(heap_).at(0).requested, 1000U);
  EXPECT_EQ(stats_.read()[kRequested][ferro::kAll].current, 1000);
}

TEST_F(HeapPagesTest, PagesThatAreGoneCannotBeRestored) {
  const DevicePtr a = grow(heap_, 2 * kPageBytes);
  const std::vector<BlockView> recorded = live_blocks_of(heap_);
  free(heap_, a);
  EXPECT_TRUE(heap_.can_restore(recorded));
  ASSERT_EQ(release_pages(1), 1U);
  EXPECT_FALSE(heap_.can_restore(recorded));
}

TEST_F(HeapPagesTest, NothingIsRestoredWhileFreesArePending) {
  const DevicePtr a = grow(heap_, 1024);
  const std::vector<BlockView> recorded = live_blocks_of(heap_);
  record(heap_, a, side_);
  make_busy(side_, a);
  free(heap_, a);
  EXPECT_FALSE(heap_.can_restore(recorded));
  SimGpu::finish(side_);
  heap_.collect_pending();
  EXPECT_TRUE(heap_.can_restore(recorded));
}

TEST_F(HeapPagesTest, BlocksOfAnotherHeapCannotBeRestored) {
  Heap other(context_, kDefaultPool, side_);
  const DevicePtr ptr = grow(other, 512);
  EXPECT_FALSE(heap_.can_restore(live_blocks_of(other)));
  free(other, ptr);
  EXPECT_EQ(release(other, kAll), 1U);
}

}  // namespace heap_pages_test
}  // namespace ferro
