// Placement: how blocks of a heap are found, split, freed and merged.
#include "ferro/driver/error.h"
#include "support/heap_fixture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace ferro {
namespace heap_test {

using testing::bytes;
using testing::FaultyApi;
using testing::kPageBytes;
using testing::SimGpu;

class HeapTest : public testing::HeapFixture {
 protected:
  ~HeapTest() override { drain(heap_); }

  Heap heap_{context_, kDefaultPool, stream_};
};

TEST_F(HeapTest, AnEmptyHeapMissesWithoutADriverCall) {
  const std::uint64_t before = FaultyApi::calls();
  EXPECT_EQ(heap_.allocate_hit(bytes(512)), kNull);
  EXPECT_EQ(heap_.allocate_collected(bytes(512)), kNull);
  EXPECT_EQ(heap_.allocate_waited(bytes(512)), kNull);
  EXPECT_EQ(FaultyApi::calls(), before);
  EXPECT_TRUE(heap_.is_empty());
}

TEST_F(HeapTest, BlocksAreSplitOffFromTheFront) {
  const DevicePtr a = allocate(heap_, 512);
  const DevicePtr b = allocate(heap_, 1024);
  EXPECT_EQ(b, a + 512);
  EXPECT_EQ(layout_of(heap_), "L512 L1024 F2095616");
}

TEST_F(HeapTest, AnExactFitLeavesNoRest) {
  const DevicePtr a = allocate(heap_, kPageBytes - 512);
  const DevicePtr b = allocate(heap_, 512);
  EXPECT_EQ(b, a + (kPageBytes - 512));
  EXPECT_EQ(layout_of(heap_), "L2096640 L512");
  EXPECT_EQ(heap_.allocate_hit(bytes(512)), kNull);
}

TEST_F(HeapTest, SmallBlocksMergeWhenTheyAreFreed) {
  const DevicePtr a = allocate(heap_, kPageBytes / 2);
  const DevicePtr b = allocate(heap_, kPageBytes / 2);
  free(heap_, b);
  free(heap_, a);
  EXPECT_EQ(heap_.allocate_hit(bytes(kPageBytes)), a);
  EXPECT_EQ(layout_of(heap_), "L1p");
}

// Of equal free blocks the lowest serves first, in whatever order they were freed.
TEST_F(HeapTest, RequestsThatAreMadeAgainGetTheirFormerAddresses) {
  std::mt19937_64 random(9);
  const std::vector<std::size_t> sizes = {512, 4096, 512, 1024, kMiB, 4096, 512, 9216, 512, 512};
  std::vector<DevicePtr> kept;
  std::vector<DevicePtr> between;
  for (int i = 0; i < 6; ++i) {  // holes of equal sizes
    between.push_back(allocate(heap_, 4096));
    kept.push_back(allocate(heap_, 512));
  }
  for (const DevicePtr hole : between) {
    free(heap_, hole);
  }
  const auto round = [&] {
    std::vector<DevicePtr> blocks;
    for (const std::size_t size : sizes) {
      blocks.push_back(allocate(heap_, size));
    }
    std::vector<DevicePtr> freed = blocks;
    std::ranges::shuffle(freed, random);
    for (const DevicePtr block : freed) {
      free(heap_, block);
    }
    return blocks;
  };
  const std::vector<DevicePtr> first = round();
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(round(), first);
  }
}

TEST_F(HeapTest, ALargeBlockMergesWithBothNeighboursAtOnce) {
  const DevicePtr all = allocate(heap_, 12 * kPageBytes);
  free(heap_, all);
  const DevicePtr a = allocate(heap_, 3 * kPageBytes);
  const DevicePtr b = allocate(heap_, 4 * kPageBytes);
  const DevicePtr c = allocate(heap_, 5 * kPageBytes);
  EXPECT_EQ(layout_of(heap_), "L3p L4p L5p");
  free(heap_, a);
  free(heap_, c);
  EXPECT_EQ(layout_of(heap_), "F3p L4p F5p");
  free(heap_, b);
  EXPECT_EQ(heap_.allocate_hit(bytes(12 * kPageBytes)), all);
}

TEST_F(HeapTest, BestFitTakesTheSmallestHole) {
  std::vector<DevicePtr> blocks;
  free(heap_, allocate(heap_, 12 * kPageBytes));
  for (const std::size_t pages : {4, 1, 2, 1, 3, 1}) {
    blocks.push_back(allocate(heap_, pages * kPageBytes));
  }
  free(heap_, blocks[0]);
  free(heap_, blocks[4]);
  free(heap_, blocks[2]);
  EXPECT_EQ(heap_.allocate_hit(bytes(2 * kPageBytes)), blocks[2]);
  EXPECT_EQ(heap_.allocate_hit(bytes(2 * kPageBytes)), blocks[4]);
  EXPECT_EQ(heap_.allocate_hit(bytes(2 * kPageBytes)), blocks[0]);
}

TEST_F(HeapTest, OnlyTheStartOfALiveBlockCanBeFreed) {
  const DevicePtr a = allocate(heap_, 1024);
  EXPECT_EQ(try_free(heap_, a + 512).error, FreeError::kNotLive);
  EXPECT_EQ(try_free(heap_, a + 1).error, FreeError::kNotLive);
  EXPECT_EQ(try_free(heap_, a + 1024).error, FreeError::kNotLive) << "a free block";
  EXPECT_EQ(try_free(heap_, a + 4 * kPageBytes).error, FreeError::kNotLive) << "a gap";
  const FreeResult freed = try_free(heap_, a);
  EXPECT_EQ(freed.error, FreeError::kNone);
  EXPECT_EQ(freed.size, 1024U);
  EXPECT_EQ(try_free(heap_, a).error, FreeError::kNotLive) << "twice";
}

TEST_F(HeapTest, CountsSizesAndRequests) {
  const DevicePtr a = grow(heap_, 1024);
  free(heap_, a);
  ASSERT_EQ(heap_.allocate_hit({1024, 700}), a);
  const StatTable table = stats_.read();
  EXPECT_EQ(table[kBlocks][kAll].current, 1);
  EXPECT_EQ(table[kBytes][kAll].current, 1024);
  EXPECT_EQ(table[kBytes][kAll].peak, 1024);
  EXPECT_EQ(table[kBytes][kAll].increased, 2048);
  EXPECT_EQ(table[kRequested][kSmall].current, 700);
  EXPECT_EQ(live_blocks_of(heap_).at(0).requested, 700U);
}

TEST_F(HeapTest, FindsTheLiveBlockAroundAnAddress) {
  const DevicePtr a = allocate(heap_, 1024);
  const DevicePtr b = allocate(heap_, 2048);
  Span& span = *addresses_.find(a);
  EXPECT_EQ(heap_.live_block_around(span, a)->ptr, a);
  EXPECT_EQ(heap_.live_block_around(span, a + 1023)->ptr, a);
  EXPECT_EQ(heap_.live_block_around(span, b + 1)->size, 2048U);
  EXPECT_FALSE(heap_.live_block_around(span, b + 2048).has_value());
}

TEST_F(HeapTest, AUseByItsOwnStreamNeedsNoEvent) {
  const DevicePtr a = allocate(heap_, 1024);
  const std::uint64_t records = driver_.calls().event_record;
  EXPECT_TRUE(record(heap_, a, stream_));
  make_busy(stream_, a);
  free(heap_, a);
  EXPECT_FALSE(heap_.has_pending());
  EXPECT_EQ(heap_.allocate_hit(bytes(1024)), a);
  EXPECT_EQ(driver_.calls().event_record, records);
}

TEST_F(HeapTest, ABlockUsedByAnotherStreamWaitsForIt) {
  const DevicePtr a = allocate(heap_, kPageBytes);
  const std::uint64_t records = driver_.calls().event_record;
  EXPECT_TRUE(record(heap_, a, side_));
  EXPECT_TRUE(record(heap_, a, side_));
  make_busy(side_, a);
  free(heap_, a);
  EXPECT_EQ(driver_.calls().event_record - records, 1U) << "one use, recorded twice";
  EXPECT_TRUE(heap_.has_pending());
  EXPECT_FALSE(heap_.is_empty());
  EXPECT_EQ(layout_of(heap_), "P1p");
  EXPECT_EQ(heap_.allocate_hit(bytes(512)), kNull);
  EXPECT_EQ(heap_.allocate_collected(bytes(512)), kNull);
  EXPECT_EQ(stats_.read()[kBytes][kAll].current, 0);
  EXPECT_EQ(stats_.read()[kActiveBytes][kAll].current, static_cast<std::int64_t>(kPageBytes));
  SimGpu::finish(side_);
  EXPECT_EQ(heap_.allocate_hit(bytes(512)), kNull) << "a hit makes no query";
  EXPECT_EQ(heap_.allocate_collected(bytes(512)), a);
  EXPECT_EQ(stats_.read()[kActiveBytes][kAll].current, 512);
}

TEST_F(HeapTest, TheHostWaitsForOneEventAfterTheOther) {
  const DevicePtr a = allocate(heap_, kPageBytes);
  const DevicePtr b = allocate(heap_, kPageBytes);
  for (const DevicePtr ptr : {a, b}) {
    record(heap_, ptr, side_);
    make_busy(side_, ptr);
    free(heap_, ptr);
  }
  EXPECT_EQ(heap_.allocate_waited(bytes(kPageBytes)), a);
  EXPECT_EQ(driver_.calls().event_wait, 1U) << "the second block is not waited for";
  EXPECT_TRUE(heap_.has_pending());
  EXPECT_EQ(heap_.allocate_waited(bytes(kPageBytes)), b);
  EXPECT_EQ(heap_.allocate_waited(bytes(kPageBytes)), kNull);
}

TEST_F(HeapTest, WaitingGoesOnUntilTheFreedBlocksFitTogether) {
  const DevicePtr all = allocate(heap_, 4 * kPageBytes);
  free(heap_, all);
  for (int i = 0; i < 4; ++i) {
    const DevicePtr ptr = allocate(heap_, kPageBytes);
    record(heap_, ptr, side_);
    free(heap_, ptr);
  }
  EXPECT_EQ(heap_.allocate_waited(bytes(3 * kPageBytes)), all);
}

TEST_F(HeapTest, CollectPendingSaysWhetherSomethingWasFreed) {
  const DevicePtr a = allocate(heap_, 1024);
  record(heap_, a, side_);
  make_busy(side_, a);
  free(heap_, a);
  EXPECT_FALSE(heap_.collect_pending());
  SimGpu::finish(side_);
  EXPECT_TRUE(heap_.collect_pending());
  EXPECT_FALSE(heap_.collect_pending());
}

TEST_F(HeapTest, OnlyLiveBlocksHaveUses) {
  const DevicePtr a = allocate(heap_, 1024);
  EXPECT_FALSE(record(heap_, a + 512, side_));
  free(heap_, a);
  EXPECT_FALSE(record(heap_, a, side_));
}

TEST_F(HeapTest, AUseRecordedInACaptureIsForgottenWhenTheCaptureHasEnded) {
  const DevicePtr a = allocate(heap_, 1024);
  SimGpu::begin_capture(side_);
  EXPECT_TRUE(record(heap_, a, side_));
  SimGpu::end_capture(side_);
  free(heap_, a);
  EXPECT_FALSE(heap_.has_pending());
  EXPECT_EQ(heap_.allocate_hit(bytes(1024)), a);
}

TEST_F(HeapTest, AUseInARunningCaptureWaitsForItsEnd) {
  const DevicePtr a = allocate(heap_, kPageBytes);
  SimGpu::begin_capture(side_);
  EXPECT_TRUE(record(heap_, a, side_));
  free(heap_, a);
  EXPECT_EQ(heap_.allocate_waited(bytes(kPageBytes)), kNull) << "the capture cannot be waited for";
  EXPECT_EQ(layout_of(heap_), "P1p");
  SimGpu::end_capture(side_);
  EXPECT_EQ(heap_.allocate_collected(bytes(kPageBytes)), a);
}

TEST_F(HeapTest, WaitingForPendingBlocksIncludesThoseThatAnEndedCaptureDeferred) {
  const DevicePtr a = allocate(heap_, kPageBytes);
  EXPECT_TRUE(record(heap_, a, side_));
  SimGpu::begin_capture(side_);
  free(heap_, a);
  SimGpu::end_capture(side_);
  heap_.wait_for_pending();
  EXPECT_FALSE(heap_.has_pending());
}

TEST_F(HeapTest, AFreeNeverFailsForARefusalOfTheDriver) {
  const DevicePtr a = allocate(heap_, kPageBytes);
  record(heap_, a, side_);
  FaultyApi::fail_only("cuEventRecord", 1, CUDA_ERROR_UNKNOWN);
  free(heap_, a);
  EXPECT_STREQ(FaultyApi::failed(), "cuEventRecord");
  EXPECT_EQ(heap_.allocate_collected(bytes(kPageBytes)), kNull);
  SimGpu::finish(side_);
  EXPECT_EQ(heap_.allocate_collected(bytes(kPageBytes)), a);
}

TEST_F(HeapTest, ARefusedWaitKeepsTheBlock) {
  const DevicePtr a = allocate(heap_, kPageBytes);
  record(heap_, a, side_);
  make_busy(side_, a);
  free(heap_, a);
  FaultyApi::fail_only("cuEventSynchronize", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_THROW(heap_.allocate_waited(bytes(kPageBytes)), DriverError);
  check(heap_);
  EXPECT_EQ(heap_.allocate_waited(bytes(kPageBytes)), a);
}

}  // namespace heap_test
}  // namespace ferro
