// The classic layout on a simulated GPU, and pools with a source of their own beside pages.
#include "ferro/driver/error.h"
#include "ferro/graph/checkpoint.h"
#include "support/device_fixture.h"

#include <gtest/gtest.h>

#include <map>
#include <stdexcept>

namespace ferro {
namespace segments_test {

using testing::bytes;
using testing::FaultyApi;
using testing::kPageBytes;
using testing::SimGpu;

SegmentRules rules;  // of the running test

AllocatorConfig in_segments() {
  rules = {};
  return {.layout = Layout::kSegments, .segment_rules = [] { return rules; }};
}

class SegmentsTest : public testing::DeviceFixture {
 protected:
  explicit SegmentsTest() : DeviceFixture(64, SimGpu::kManual, in_segments()) {}

  SegmentTable table() { return device_->segment_stats().read(); }
  std::int64_t segments() { return table().of[kSegments][kAll].current; }
  std::int64_t split_blocks() { return table().of[kSplitBlocks][kAll].current; }
  std::int64_t split_bytes() { return table().of[kSplitBytes][kAll].current; }
  std::size_t held() { return device_->report().held_bytes(); }
};

TEST_F(SegmentsTest, SmallAndLargeRequestsHaveSegmentsOfTheirOwn) {
  const DevicePtr small = allocate(512);
  const DevicePtr large = allocate(2 * kMiB);
  EXPECT_EQ(held(), 22 * kMiB);
  EXPECT_NE(&heap_of(small), &heap_of(large));
  EXPECT_EQ(allocate(1024), small + 512);
  EXPECT_EQ(allocate(3 * kMiB), large + 2 * kMiB);
  EXPECT_EQ(segments(), 2);
  EXPECT_EQ(SimGpu::calls("cuMemAlloc_v2"), 2U);
  EXPECT_EQ(SimGpu::calls("cuMemCreate"), 0U);
}

TEST_F(SegmentsTest, TheRestOfALargeSegmentStaysWithTheBlockWhenItIsSmall) {
  const DevicePtr ptr = allocate(19 * kMiB);
  EXPECT_EQ(held(), 20 * kMiB);
  EXPECT_EQ(live_blocks_of(heap_of(ptr)).front().size, 20 * kMiB);
  EXPECT_EQ(split_blocks(), 0);
}

TEST_F(SegmentsTest, SplitsAreCountedAsTheyComeAndGo) {
  const DevicePtr a = allocate(4 * kMiB);
  EXPECT_EQ(split_blocks(), 1);
  EXPECT_EQ(split_bytes(), std::int64_t{16 * kMiB});
  const DevicePtr b = allocate(4 * kMiB);
  EXPECT_EQ(split_bytes(), std::int64_t{12 * kMiB});
  free(a);
  EXPECT_EQ(split_blocks(), 2);
  EXPECT_EQ(split_bytes(), std::int64_t{16 * kMiB});
  free(b);
  EXPECT_EQ(split_blocks(), 0) << "one free block again";
  EXPECT_EQ(split_bytes(), 0);
  EXPECT_EQ(held(), 20 * kMiB);
}

TEST_F(SegmentsTest, EmptyCacheReleasesWholeSegmentsOnly) {
  const DevicePtr kept = allocate(4 * kMiB);
  free(allocate(8 * kMiB));
  free(allocate(30 * kMiB));
  device_->empty_cache();
  EXPECT_EQ(held(), 20 * kMiB);
  EXPECT_EQ(layout_of(kDefaultPool), "L2p F8p");
  free(kept);
  device_->empty_cache();
  EXPECT_EQ(held(), 0U);
  EXPECT_EQ(addresses_.find(kept), nullptr);
}

TEST_F(SegmentsTest, AFullDeviceGivesItsCacheUpBeforeItFails) {
  free(allocate(60 * kMiB));
  free(allocate(40 * kMiB));
  const DevicePtr ptr = allocate(110 * kMiB);
  EXPECT_EQ(held(), 110 * kMiB);
  EXPECT_EQ(device_->report().counters().retries, 1U);
  const auto facts = refuse(90 * kMiB, stream_);
  EXPECT_EQ(facts->request, 90 * kMiB);
  EXPECT_EQ(facts->live, 110 * kMiB);
  free(ptr);
}

TEST_F(SegmentsTest, TheCacheIsKeptWhileACaptureRuns) {
  free(allocate(60 * kMiB, side_));
  device_->set_captures(1);
  EXPECT_NE(refuse(90 * kMiB, stream_), nullptr);
  EXPECT_EQ(segments(), 1);
  EXPECT_EQ(device_->report().counters().retries, 0U);
  EXPECT_EQ(device_->report().counters().synchronisations, 0U) << "a wait would invalidate it";
  device_->set_captures(0);
  EXPECT_NE(allocate(90 * kMiB), kNull);
}

TEST_F(SegmentsTest, TheLimitIsKeptAndAnnouncesItself) {
  device_->store().set_limit(50 * kMiB);
  allocate(30 * kMiB);
  const auto facts = refuse(30 * kMiB, stream_);
  EXPECT_EQ(facts->limit, 50 * kMiB);
  allocate(20 * kMiB, side_);
}

TEST_F(SegmentsTest, OldSegmentsAreCollectedAboveTheThreshold) {
  rules.collect_above = 0.5;
  device_->store().set_limit(100 * kMiB);
  const DevicePtr a = allocate(30 * kMiB);
  const DevicePtr b = allocate(26 * kMiB);
  free(a);
  // Ages it: searches that find nothing in it.
  for (int i = 0; i < 3; ++i) {
    free(allocate(40 * kMiB));
  }
  EXPECT_EQ(held(), 66 * kMiB) << "the 30 MiB went for the first 40";
  free(b);
}

TEST_F(SegmentsTest, TheOldestGoesFirstAndNoMoreThanNeeded) {
  rules.collect_above = 0.7;
  device_->store().set_limit(128 * kMiB);
  const DevicePtr old = allocate(22 * kMiB);
  const DevicePtr young = allocate(30 * kMiB);
  free(allocate(40 * kMiB));
  free(old);
  for (int i = 0; i < 3; ++i) {
    free(allocate(40 * kMiB));
  }
  const DevicePtr kept = allocate(40 * kMiB);
  free(young);
  allocate(45 * kMiB);
  EXPECT_EQ(held(), (30 + 40 + 46) * kMiB);
  EXPECT_EQ(allocate(30 * kMiB), young);
  free(kept);
}

TEST_F(SegmentsTest, OversizeBlocksAreKeptForOversizeRequests) {
  rules.max_split = 30 * kMiB;
  const DevicePtr large = allocate(40 * kMiB);
  EXPECT_EQ(table().oversize_allocations.current, 1);
  EXPECT_EQ(table().oversize_segments.current, 1);
  free(large);
  EXPECT_EQ(table().oversize_allocations.current, 0);
  const DevicePtr small = allocate(4 * kMiB);
  EXPECT_NE(&*addresses_.find(small), &*addresses_.find(large));
  EXPECT_EQ(allocate(36 * kMiB), large);
  const auto block = heap_of(large).live_block_at(*addresses_.find(large), large);
  ASSERT_TRUE(block.has_value());
  EXPECT_EQ(block->size, 40 * kMiB) << "never split";
}

TEST_F(SegmentsTest, OversizeSegmentsGoBeforeTheRestOfTheCache) {
  rules.max_split = 30 * kMiB;
  rules.max_non_split_rounding = 2 * kMiB;
  free(allocate(10 * kMiB));
  free(allocate(50 * kMiB));
  free(allocate(40 * kMiB, side_));
  allocate(40 * kMiB);  // of 128: needs the 50, not the 10 or another stream's 40
  EXPECT_EQ(ended_by(LadderStep::kReclaim), 1U);
  EXPECT_EQ(device_->report().counters().retries, 0U);
  EXPECT_EQ(held(), 90 * kMiB);
  EXPECT_EQ(table().oversize_segments.current, 2);
  EXPECT_EQ(table().oversize_segments.peak, 2);
}

TEST_F(SegmentsTest, BlocksThatWaitAreLookedAtOnEveryRequest) {
  const DevicePtr a = allocate(4 * kMiB);
  free_used_by(a, side_);
  const DevicePtr b = allocate(4 * kMiB);
  EXPECT_NE(b, a);
  SimGpu::finish_all();
  EXPECT_EQ(allocate(4 * kMiB), a);
}

TEST_F(SegmentsTest, ANoSplitPoolHandsOutWholeSegments) {
  device_->pools().hold(kGraphPool);
  device_->pools().set_no_split(kGraphPool);
  const DevicePtr a = allocate(512, stream_, kGraphPool);
  EXPECT_EQ(live_blocks_of(heap_of(a)).front().size, 2 * kMiB);
  EXPECT_NE(addresses_.find(a), addresses_.find(allocate(512, stream_, kGraphPool)));
  EXPECT_TRUE(device_->pools().release(kGraphPool));
}

TEST_F(SegmentsTest, APoolThatIsHeldKeepsItsSegments) {
  device_->pools().hold(kGraphPool);
  free(allocate(4 * kMiB, stream_, kGraphPool));
  device_->empty_cache();
  EXPECT_EQ(held(), 20 * kMiB);
  EXPECT_TRUE(device_->pools().release(kGraphPool));
  device_->empty_pool(kGraphPool);
  EXPECT_EQ(held(), 0U);
  EXPECT_EQ(device_->pools().use_count(kGraphPool), -1);
}

TEST_F(SegmentsTest, APoolMayLendACachedBlockBeforeTheCacheIsEmptied) {
  device_->pools().hold(kGraphPool);
  device_->pools().set_use_on_oom(kGraphPool, true);
  const DevicePtr lent = allocate(40 * kMiB, stream_, kGraphPool);
  free(lent);
  allocate(80 * kMiB);
  EXPECT_EQ(allocate(30 * kMiB), lent);
  EXPECT_EQ(heap_of(lent).pool(), kGraphPool);
  EXPECT_EQ(ended_by(LadderStep::kTransfer), 1U);
  EXPECT_TRUE(device_->pools().release(kGraphPool));
}

TEST_F(SegmentsTest, CheckpointsRestoreTheBlocksAndTheCounts) {
  device_->pools().hold(kGraphPool);
  const DevicePtr a = allocate(4 * kMiB, stream_, kGraphPool);
  const DevicePtr s = allocate(512, stream_, kGraphPool);
  PoolCheckpoint checkpoint;
  ASSERT_EQ(take_checkpoint(*device_, kGraphPool, &checkpoint), CheckpointError::kNone);
  const std::string before = layout_of(kGraphPool);
  const std::int64_t splits = split_bytes();
  free(a);
  allocate(2 * kMiB, stream_, kGraphPool);
  allocate(6 * kMiB, stream_, kGraphPool);
  CheckpointChange change;
  ASSERT_EQ(restore_checkpoint(*device_, checkpoint, &change), CheckpointError::kNone);
  device_->report().check_invariants();
  EXPECT_EQ(layout_of(kGraphPool), before);
  EXPECT_EQ(split_bytes(), splits);
  EXPECT_EQ(change.freed.size(), 3U);
  EXPECT_EQ(change.allocated.size(), 2U);
  EXPECT_NE(live_blocks_of(heap_of(s)).size(), 0U);
  EXPECT_TRUE(device_->pools().release(kGraphPool));
}

TEST_F(SegmentsTest, ARefusalByTheDriverLeavesEverythingAsItWas) {
  allocate(512);
  FaultyApi::fail_only("cuMemAlloc_v2", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_THROW(static_cast<void>(device_->allocate(kDefaultPool, stream_, bytes(4 * kMiB))),
               DriverError);
  device_->report().check_invariants();
  EXPECT_EQ(held(), 2 * kMiB);
  FaultyApi::reset();
  allocate(4 * kMiB);
}

TEST_F(SegmentsTest, ASegmentThatTheDriverDoesNotTakeBackIsKept) {
  free(allocate(4 * kMiB));
  FaultyApi::fail_only("cuMemFree_v2", 1, CUDA_ERROR_UNKNOWN);
  device_->empty_cache();
  device_->report().check_invariants();
  EXPECT_EQ(held(), 20 * kMiB);
  EXPECT_EQ(segments(), 1);
  FaultyApi::reset();
  device_->empty_cache();
  EXPECT_EQ(held(), 0U);
}

// A source over the simulated driver that counts, fails and throws on request.
class CountedSource final : public SegmentSource {
 public:
  explicit CountedSource(Driver& driver) : driver_(driver) {}
  DevicePtr allocate(std::size_t bytes) override {
    if (throws) {
      throw std::runtime_error("from the source");
    }
    const DevicePtr base = exhausted ? kNull : driver_.allocate(bytes);
    live += base != kNull ? 1 : 0;
    return base;
  }
  bool release(DevicePtr base) override {
    --live;
    return driver_.free(base);
  }

  int live = 0;
  bool exhausted = false;
  bool throws = false;

 private:
  Driver& driver_;
};

class SourceTest : public testing::DeviceFixture {
 protected:
  SourceTest() : DeviceFixture(64) { EXPECT_TRUE(device_->pools().hold(kGraphPool, source_)); }

  std::shared_ptr<CountedSource> source_ = std::make_shared<CountedSource>(device_->driver());
};

TEST_F(SourceTest, APoolWithASourceHasSegmentsBesideTheOthersPages) {
  const DevicePtr page = allocate(512);
  const DevicePtr segment = allocate(512, stream_, kGraphPool);
  EXPECT_EQ(source_->live, 1);
  EXPECT_EQ(heap_of(page).kind(), HeapKind::kSmallPages);
  EXPECT_EQ(heap_of(segment).kind(), HeapKind::kSmallSegments);
  EXPECT_EQ(device_->report().reserved()[kAll].current, std::int64_t{4 * kMiB});
  EXPECT_TRUE(device_->pools().release(kGraphPool));
}

TEST_F(SourceTest, TheSourceLivesUntilItsLastSegmentIsGone) {
  const DevicePtr ptr = allocate(4 * kMiB, stream_, kGraphPool);
  std::weak_ptr<CountedSource> watched = source_;
  source_.reset();
  EXPECT_TRUE(device_->pools().release(kGraphPool));
  device_->empty_pool(kGraphPool);
  EXPECT_FALSE(watched.expired());
  free(ptr);
  device_->empty_cache();
  EXPECT_TRUE(watched.expired());
}

TEST_F(SourceTest, APoolThatExistsCannotBeGivenASource) {
  EXPECT_FALSE(device_->pools().hold(kGraphPool, source_));
  EXPECT_EQ(device_->pools().use_count(kGraphPool), 1);
  EXPECT_TRUE(device_->pools().release(kGraphPool));
}

TEST_F(SourceTest, AnExhaustedSourceIsOutOfMemoryAfterThePagesWereGivenUp) {
  free(allocate(4 * kMiB));
  source_->exhausted = true;
  refuse(4 * kMiB, stream_, kGraphPool);
  EXPECT_EQ(device_->report().held_bytes(), 0U);
  EXPECT_TRUE(device_->pools().release(kGraphPool));
}

TEST_F(SourceTest, WhatASourceThrowsPassesThroughAndNothingChanged) {
  source_->throws = true;
  EXPECT_THROW(static_cast<void>(device_->allocate(kGraphPool, stream_, bytes(512))),
               std::runtime_error);
  device_->report().check_invariants();
  EXPECT_EQ(device_->report().held_bytes(), 0U);
  source_->throws = false;
  free(allocate(512, stream_, kGraphPool));
  EXPECT_TRUE(device_->pools().release(kGraphPool));
}

TEST_F(SourceTest, ItsCachedBlockServesTheDefaultPoolBeforeThatFails) {
  device_->pools().set_use_on_oom(kGraphPool, true);
  const DevicePtr lent = allocate(40 * kMiB, stream_, kGraphPool);
  free(lent);
  allocate(80 * kMiB);
  EXPECT_EQ(allocate(30 * kMiB), lent);
  EXPECT_TRUE(device_->pools().release(kGraphPool));
}

TEST_F(SourceTest, SegmentsCountAgainstTheLimit) {
  device_->store().set_limit(30 * kMiB);
  allocate(8 * kMiB);
  allocate(2 * kMiB, stream_, kGraphPool);  // a segment of 20 MiB
  refuse(4 * kMiB, stream_);
  allocate(2 * kMiB, side_);
  EXPECT_TRUE(device_->pools().release(kGraphPool));
}

}  // namespace segments_test
}  // namespace ferro
