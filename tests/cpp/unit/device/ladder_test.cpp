// The ladder that a request climbs when it misses: for each step a program whose climb ends there.
#include "ferro/driver/error.h"
#include "support/device_fixture.h"

#include <gtest/gtest.h>

#include <span>
#include <vector>

namespace ferro {
namespace ladder_test {

using testing::FaultyApi;
using testing::kPageBytes;
using testing::SimGpu;
using testing::take;

constexpr std::size_t kDevicePages = 16;

class LadderTest : public testing::DeviceFixture {
 protected:
  LadderTest() : DeviceFixture(kDevicePages) {}

  // `change` must end exactly one climb, by `step`.
  template <typename Function>
  void expect_ended_by(LadderStep step, Function change) {
    const LadderCounts before = device_->report().counters().ladder;
    change();
    const LadderCounts after = device_->report().counters().ladder;
    for (std::size_t i = 0; i < kLadderSteps; ++i) {
      EXPECT_EQ(after[i] - before[i], i == static_cast<std::size_t>(step) ? 1U : 0U)
          << name_of(static_cast<LadderStep>(i));
    }
  }
};

TEST_F(LadderTest, AHitClimbsNothing) {
  const DevicePtr a = allocate(1024);
  const LadderCounts before = device_->report().counters().ladder;
  free(a);
  EXPECT_EQ(allocate(1024), a);
  EXPECT_EQ(device_->report().counters().ladder, before);
}

TEST_F(LadderTest, Grow) {
  expect_ended_by(LadderStep::kGrow, [this] { allocate(3 * kPageBytes); });
  EXPECT_EQ(device_->report().counters().pages_created, 3U);
}

TEST_F(LadderTest, CollectPending) {
  const DevicePtr a = allocate(kPageBytes);
  free_used_by(a, side_);
  SimGpu::finish(side_);
  expect_ended_by(LadderStep::kCollectPending, [&] { EXPECT_EQ(allocate(kPageBytes), a); });
  EXPECT_EQ(pages().held, 1U);
}

TEST_F(LadderTest, MovePages) {
  std::vector<DevicePtr> blocks;
  for (std::size_t i = 0; i < kDevicePages; ++i) {
    blocks.push_back(allocate(kPageBytes));
  }
  for (std::size_t i = 0; i < kDevicePages; i += 2) {
    free(blocks[i]);
  }
  // No hole is larger than a page; the pages of eight holes are moved to one place.
  expect_ended_by(LadderStep::kMovePages, [&] { allocate(kDevicePages / 2 * kPageBytes); });
  EXPECT_EQ(pages().created, kDevicePages);
  EXPECT_EQ(pages().released, 0U);
  EXPECT_EQ(device_->driver().calls().event_wait, 0U);
}

// Each round frees a block before a larger request, which fits only if pages move or memory grows.
class RepeatedMovesTest : public testing::DeviceFixture {
 protected:
  RepeatedMovesTest() : DeviceFixture(64) {}

  std::vector<DevicePtr> round(std::size_t a, std::size_t b, std::size_t c,
                               const PoolId& pool = kDefaultPool) {
    const DevicePtr first = allocate(a * kPageBytes, stream_, pool);
    const DevicePtr second = allocate(b * kPageBytes, stream_, pool);
    free(first);
    const DevicePtr third = allocate(c * kPageBytes, stream_, pool);
    free(second);
    free(third);
    return {first, second, third};
  }
};

class RepeatedMovesOfAPoolTest : public RepeatedMovesTest,
                                 public ::testing::WithParamInterface<bool> {};

TEST_P(RepeatedMovesOfAPoolTest, EndWithALittleNewMemory) {
  const PoolId pool = GetParam() ? kDefaultPool : kGraphPool;
  for (int i = 0; i < 9; ++i) {
    round(1, 8, 5, pool);
  }
  EXPECT_EQ(pages().held, 13U);
  EXPECT_EQ(ended_by(LadderStep::kMovePages), 8U);
  const std::vector<DevicePtr> grown = round(1, 8, 5, pool);
  EXPECT_EQ(pages().held, 14U);
  const DriverCalls calls = device_->driver().calls();
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(round(1, 8, 5, pool), grown);
  }
  EXPECT_EQ(device_->driver().calls().map, calls.map);
  EXPECT_EQ(device_->driver().calls().unmap, calls.unmap);
  EXPECT_EQ(pages().held, 14U);
}

INSTANTIATE_TEST_SUITE_P(Pools, RepeatedMovesOfAPoolTest, ::testing::Bool());

TEST_F(RepeatedMovesTest, GoOnWhereNoMemoryIsLeft) {
  device_->store().set_limit(13 * kPageBytes);
  for (int i = 0; i < 40; ++i) {
    round(1, 8, 5);
  }
  EXPECT_EQ(pages().held, 13U);
  EXPECT_EQ(ended_by(LadderStep::kMovePages), 39U);
  EXPECT_EQ(device_->report().counters().retries, 0U);
}

TEST_F(RepeatedMovesTest, GoOnWhereMoreIsHeldThanThePeakNeeds) {
  device_->pools().hold(kGraphPool);
  free(allocate(20 * kPageBytes, stream_, kGraphPool));
  for (int i = 0; i < 40; ++i) {
    round(1, 8, 5);
  }
  EXPECT_EQ(pages().held, 20U + 13U);
  EXPECT_EQ(ended_by(LadderStep::kMovePages), 39U);
}

TEST_F(RepeatedMovesTest, OfOtherSizesEachTimeGoOn) {
  for (std::size_t i = 0; i < 40; ++i) {
    round(1, 8, 5);  // the heap settles
  }
  const std::size_t held = pages().held;
  for (std::size_t i = 0; i < 40; ++i) {
    const DevicePtr first = allocate(kPageBytes + i * 512, stream_);
    const DevicePtr second = allocate(6 * kPageBytes - i * 512, stream_);
    free(first);
    free(allocate(5 * kPageBytes + i * 512, stream_));
    free(second);
  }
  EXPECT_EQ(pages().held, held);
}

TEST_F(LadderTest, IdlePages) {
  testing::Handles idle;
  ASSERT_EQ(take(device_->store(), 2, Fit::kAtLeast, idle), TakeResult::kOk);
  device_->store().put(idle);
  expect_ended_by(LadderStep::kIdlePages, [this] { allocate(2 * kPageBytes); });
  EXPECT_EQ(pages().held, 2U);
  EXPECT_EQ(pages().idle, 0U);
}

TEST_F(LadderTest, TooFewIdlePagesAreCompletedByNewOnes) {
  testing::Handles idle;
  ASSERT_EQ(take(device_->store(), 2, Fit::kAtLeast, idle), TakeResult::kOk);
  device_->store().put(idle);
  expect_ended_by(LadderStep::kGrow, [this] { allocate(5 * kPageBytes); });
  EXPECT_EQ(pages().created, 5U);
}

TEST_F(LadderTest, ReclaimFromThePoolsThatAllowIt) {
  device_->pools().hold(kGraphPool);
  device_->pools().set_use_on_oom(kGraphPool, true);
  free(allocate(kDevicePages * kPageBytes, stream_, kGraphPool));
  expect_ended_by(LadderStep::kReclaim, [this] { allocate(2 * kPageBytes, side_); });
  EXPECT_EQ(pages().created, kDevicePages);
  EXPECT_EQ(device_->report().counters().retries, 0U) << "the host did not have to wait for step 8";
  EXPECT_EQ(layout_of(kGraphPool), "F14p") << "only what was needed was taken";
}

TEST_F(LadderTest, IdlePagesCountBeforePoolsGive) {
  device_->pools().hold(kGraphPool);
  device_->pools().set_use_on_oom(kGraphPool, true);
  free(allocate((kDevicePages - 1) * kPageBytes, stream_, kGraphPool));
  testing::Handles idle;
  ASSERT_EQ(take(device_->store(), 1, Fit::kAtLeast, idle), TakeResult::kOk);
  device_->store().put(idle);
  expect_ended_by(LadderStep::kReclaim, [this] { allocate(2 * kPageBytes, side_); });
  EXPECT_EQ(layout_of(kGraphPool), "F14p");
}

TEST_F(LadderTest, ReclaimFromUnheldPools) {
  device_->pools().hold(kGraphPool);
  free(allocate(kDevicePages * kPageBytes, stream_, kGraphPool));
  EXPECT_TRUE(device_->pools().release(kGraphPool));
  expect_ended_by(LadderStep::kReclaim, [this] { allocate(2 * kPageBytes); });
}

TEST_F(LadderTest, ACallbackThatFreesEndsTheClimb) {
  const DevicePtr a = allocate(kDevicePages * kPageBytes);
  int asked = 0;
  on_shortage_ = [&] {
    ++asked;
    free(a);
    return true;
  };
  expect_ended_by(LadderStep::kReclaim, [&] { EXPECT_EQ(allocate(kPageBytes), a); });
  EXPECT_EQ(asked, 1);
}

TEST_F(LadderTest, ACallbackMayFreeWhatMustBeMerged) {
  const DevicePtr a = allocate(kMiB / 2);
  const DevicePtr b = allocate(kMiB / 2);
  allocate(kMiB);
  allocate((kDevicePages - 1) * kPageBytes);
  on_shortage_ = [&] {
    free(a);
    free(b);
    return true;
  };
  expect_ended_by(LadderStep::kReclaim, [&] { EXPECT_EQ(allocate(kMiB), a); });
}

TEST_F(LadderTest, ACallbackMayAllocateItself) {
  const DevicePtr a = allocate(kDevicePages * kPageBytes);
  on_shortage_ = [&] {
    on_shortage_ = nullptr;
    free(a);
    free(allocate(kPageBytes, side_));
    return true;
  };
  allocate(kPageBytes);
}

TEST_F(LadderTest, ACallbackIsNotAskedWhileMemoryCanBeCreated) {
  on_shortage_ = [] {
    ADD_FAILURE();
    return false;
  };
  free(allocate(kDevicePages * kPageBytes));
  allocate(kDevicePages * kPageBytes);
}

TEST_F(LadderTest, WaitOnTheStreamForABlockOfThisHeap) {
  const DevicePtr a = allocate(kDevicePages * kPageBytes);
  free_used_by(a, side_);
  expect_ended_by(LadderStep::kStreamWait, [&] { EXPECT_EQ(allocate(kPageBytes), a); });
  EXPECT_EQ(device_->report().counters().retries, 0U);
  EXPECT_EQ(device_->driver().calls().event_wait, 0U) << "the host did not wait";
  EXPECT_EQ(device_->driver().calls().stream_wait, 1U);
  EXPECT_GT(ferro_sim_pending(), 0U);
  SimGpu::fill(stream_, a, 2, 1);
  SimGpu::finish(stream_);
  EXPECT_EQ(ferro_sim_pending(), 0U) << "the other stream's use came first";
  EXPECT_EQ(SimGpu::peek(a), 2);
}

TEST_F(LadderTest, GrowRatherThanWaitForTheShareInFlight) {
  const DevicePtr a = allocate(10 * kPageBytes);
  const DevicePtr b = allocate(2 * kPageBytes);
  free_used_by(b, side_);
  // 12 pages were live at once: two more are within 0.3 of that, four are not.
  expect_ended_by(LadderStep::kGrow, [&] { EXPECT_NE(allocate(2 * kPageBytes), b); });
  expect_ended_by(LadderStep::kStreamWait, [&] { EXPECT_EQ(allocate(2 * kPageBytes), b); });
  EXPECT_EQ(pages().held, 14U);
  static_cast<void>(a);
}

TEST_F(LadderTest, PagesOfBlocksThatWereWaitedForMove) {
  const DevicePtr a = allocate(6 * kPageBytes);
  const DevicePtr kept = allocate(4 * kPageBytes);
  const DevicePtr b = allocate(6 * kPageBytes);
  free_used_by(a, side_);
  free_used_by(b, side_);
  expect_ended_by(LadderStep::kStreamWait, [&] { allocate(11 * kPageBytes); });
  EXPECT_EQ(device_->driver().calls().event_wait, 0U);
  EXPECT_EQ(pages().created, kDevicePages);
  static_cast<void>(kept);
}

TEST_F(LadderTest, NoStreamWaitsForMemoryOfAPool) {
  device_->pools().hold(kGraphPool);
  const DevicePtr a = allocate(kDevicePages * kPageBytes, stream_, kGraphPool);
  free_used_by(a, side_);
  expect_ended_by(LadderStep::kWait,
                  [&] { EXPECT_EQ(allocate(kPageBytes, stream_, kGraphPool), a); });
  EXPECT_EQ(device_->driver().calls().stream_wait, 0U) << "the streams of graphs would not wait";
}

TEST_F(LadderTest, NoStreamWaitsInACapture) {
  const DevicePtr a = allocate(kDevicePages * kPageBytes);
  free_used_by(a, side_);
  SimGpu::begin_capture(stream_, CU_STREAM_CAPTURE_MODE_RELAXED);
  expect_ended_by(LadderStep::kWait, [&] { EXPECT_EQ(allocate(kPageBytes), a); });
  EXPECT_EQ(device_->driver().calls().stream_wait, 0U);
  SimGpu::end_capture(stream_);
}

// Such pages would be useless for the request, because a graph replays on any stream.
TEST_F(LadderTest, NoOtherStreamWaitsForARequestOfAPoolOrOfACapture) {
  device_->pools().hold(kGraphPool);
  const StreamId third = SimGpu::make_stream();
  for (const PoolId& pool : {kGraphPool, kDefaultPool}) {
    const DevicePtr a = allocate(kDevicePages * kPageBytes, side_);
    free_used_by(a, third);
    if (pool == kDefaultPool) {
      device_->set_captures(1);
      SimGpu::begin_capture(stream_, CU_STREAM_CAPTURE_MODE_RELAXED);
    }
    DevicePtr b = kNull;
    expect_ended_by(LadderStep::kWait, [&] { b = allocate(4 * kPageBytes, stream_, pool); });
    EXPECT_EQ(device_->driver().calls().stream_wait, 0U);
    ASSERT_NE(b, kNull);
    free(b);
    if (pool == kGraphPool) {
      EXPECT_TRUE(device_->pools().release(kGraphPool));
      device_->empty_cache();
    }
  }
  SimGpu::end_capture(stream_);
  device_->set_captures(0);
}

TEST_F(LadderTest, StepsCountTheirTimeAndThePagesThatTheyMoved) {
  EXPECT_EQ(device_->report().counters().slowest_nanoseconds, 0U);
  const DevicePtr a = allocate(2 * kPageBytes);
  allocate(kPageBytes);
  const DevicePtr b = allocate(2 * kPageBytes);
  allocate(kPageBytes);
  free(a);
  free(b);
  expect_ended_by(LadderStep::kMovePages, [this] { allocate(4 * kPageBytes); });
  free(allocate(3 * kPageBytes, side_));
  expect_ended_by(LadderStep::kPassedPages, [this] { allocate(2 * kPageBytes); });
  const LadderCosts costs = device_->report().counters().ladder_costs;
  const auto of = [&](LadderStep step) { return costs[static_cast<std::size_t>(step)]; };
  EXPECT_EQ(of(LadderStep::kMovePages).pages, 4U);
  EXPECT_EQ(of(LadderStep::kPassedPages).pages, 2U);
  EXPECT_EQ(of(LadderStep::kGrow).pages, 0U);
  std::uint64_t all = 0;
  for (const StepCost& cost : costs) {
    all += cost.nanoseconds;
  }
  EXPECT_GT(of(LadderStep::kGrow).nanoseconds, 0U);
  EXPECT_GT(device_->report().counters().slowest_nanoseconds, 0U);
  EXPECT_LE(device_->report().counters().slowest_nanoseconds, all);
  device_->report().reset_peaks();
  EXPECT_EQ(device_->report().counters().slowest_nanoseconds, 0U);
}

TEST_F(LadderTest, PassedPagesGoToAnyStream) {
  const DevicePtr a = allocate(6 * kPageBytes, side_);
  SimGpu::fill(side_, a, 1, 1);
  free(a);
  SimGpu::finish(side_);
  expect_ended_by(LadderStep::kPassedPages, [this] { allocate(4 * kPageBytes); });
  EXPECT_EQ(pages().created, 6U);
  EXPECT_EQ(layout_of(kDefaultPool), "F2p | L4p");
  EXPECT_EQ(device_->report().counters().pages_transferred, 4U);
  EXPECT_EQ(device_->driver().calls().stream_wait, 0U);
  EXPECT_EQ(device_->driver().calls().event_wait, 0U);
}

TEST_F(LadderTest, FewerPagesAreCreatedBesidePassedOnes) {
  free(allocate(3 * kPageBytes, side_));
  expect_ended_by(LadderStep::kGrow, [this] { allocate(5 * kPageBytes); });
  EXPECT_EQ(pages().created, 5U);
}

TEST_F(LadderTest, PagesThatAreStillUsedHaveNotPassed) {
  const DevicePtr a = allocate(6 * kPageBytes, side_);
  SimGpu::fill(side_, a, 1, 1);
  free(a);
  expect_ended_by(LadderStep::kGrow, [this] { allocate(kPageBytes); });
  EXPECT_EQ(layout_of(kDefaultPool), "F6p | L1p");
}

// An arena that gave nothing to one request is asked again, also for its only page.
TEST_F(LadderTest, PagesThatWereStillUsedServeALaterRequest) {
  AllocatorConfig wanted;
  wanted.in_flight_share = -1;  // memory grows
  device_->adjust(wanted);
  for (const std::size_t count : {1U, 2U}) {
    const DevicePtr a = allocate(count * kPageBytes, side_);
    SimGpu::fill(side_, a, 1, 1);
    free(a);
    expect_ended_by(LadderStep::kGrow, [&] { allocate(count * kPageBytes); });
    SimGpu::finish(side_);
    expect_ended_by(LadderStep::kPassedPages, [&] { allocate(count * kPageBytes); });
  }
  EXPECT_EQ(pages().created, 6U);
}

TEST_F(LadderTest, NoStreamWaitsForAnythingWhereMemoryShallGrow) {
  for (const double share : {0.3, -1.0}) {
    AllocatorConfig wanted;
    wanted.in_flight_share = share;
    device_->adjust(wanted);
    const DevicePtr used = allocate(kPageBytes, side_);
    SimGpu::fill(side_, used, 1, 1);
    free(allocate(2 * kPageBytes));
    const std::uint64_t before = device_->driver().calls().stream_wait;
    // A page of the same stream's large requests, or a new one.
    const DevicePtr small = allocate(1024);
    EXPECT_EQ(device_->driver().calls().stream_wait - before, share < 0 ? 0U : 1U);
    EXPECT_EQ(layout_of(kDefaultPool),
              share < 0 ? "L1p | F2p | L1024 F2096128" : "L1p | F1p | L1024 F2096128");
    SimGpu::finish(side_);
    free(used);
    free(small);
    device_->empty_cache();
  }
}

TEST_F(LadderTest, PassedPagesGoToAPoolAndNotFromOne) {
  device_->pools().hold(kGraphPool);
  free(allocate(2 * kPageBytes, side_));
  expect_ended_by(LadderStep::kPassedPages,
                  [&] { free(allocate(2 * kPageBytes, stream_, kGraphPool)); });
  EXPECT_EQ(pages().created, 2U);
  expect_ended_by(LadderStep::kGrow, [&] { allocate(2 * kPageBytes, side_); });
  EXPECT_EQ(layout_of(kGraphPool), "F2p");
}

TEST_F(LadderTest, NoPointIsRecordedWhileTheDeviceCaptures) {
  const DevicePtr a = allocate(10 * kPageBytes, side_);
  device_->set_captures(1);
  free(a);
  expect_ended_by(LadderStep::kGrow, [&] { allocate(kPageBytes); });
  device_->set_captures(0);
  SimGpu::begin_capture(side_, CU_STREAM_CAPTURE_MODE_RELAXED);
  expect_ended_by(LadderStep::kGrow, [&] { allocate(kPageBytes); });
  SimGpu::end_capture(side_);  // was not invalidated
}

TEST_F(LadderTest, TransferFreePagesOfAnotherStream) {
  const DevicePtr a = allocate(kDevicePages * kPageBytes, side_);
  SimGpu::fill(side_, a, 1, kPageBytes);
  free(a);
  DevicePtr b{};
  expect_ended_by(LadderStep::kTransfer, [&] { b = allocate(4 * kPageBytes); });
  EXPECT_EQ(device_->driver().calls().event_wait, 0U) << "the host did not wait";
  EXPECT_GT(ferro_sim_pending(), 0U);
  SimGpu::fill(stream_, b, 2, 4 * kPageBytes);
  SimGpu::finish(stream_);
  EXPECT_EQ(ferro_sim_pending(), 0U) << "the work on the pages came first";
  EXPECT_EQ(SimGpu::peek(b), 2);
  EXPECT_EQ(device_->report().counters().pages_transferred, 4U);
  EXPECT_EQ(pages().created, kDevicePages);
  EXPECT_EQ(pages().released, 0U);
  // And back again.
  free(b);
  allocate(kDevicePages * kPageBytes, side_);
  EXPECT_EQ(device_->report().counters().pages_transferred, 8U);
  EXPECT_EQ(layout_of(kDefaultPool), "L16p");
}

TEST_F(LadderTest, TransferRatherThanGrowFarBeyondThePeak) {
  const DevicePtr a = allocate(6 * kPageBytes, side_);
  const auto busy = [&](DevicePtr block) {
    SimGpu::fill(side_, block, 1, 1);
    free(block);
  };
  busy(a);
  // 1.3 times the peak of six pages are seven.
  expect_ended_by(LadderStep::kGrow, [this] { free(allocate(kPageBytes)); });
  expect_ended_by(LadderStep::kTransfer, [this] { allocate(3 * kPageBytes); });
  EXPECT_EQ(pages().created, 7U);
  EXPECT_EQ(device_->report().counters().pages_transferred, 2U);
  EXPECT_EQ(device_->driver().calls().event_wait, 0U);
  // The free pages elsewhere would not suffice.
  const std::uint64_t points = device_->driver().calls().event_record;
  expect_ended_by(LadderStep::kGrow, [this] { allocate(5 * kPageBytes); });
  EXPECT_EQ(device_->driver().calls().event_record - points, 1U) << "one point is enough";
  EXPECT_EQ(device_->report().counters().pages_transferred, 2U);
}

TEST_F(LadderTest, TransferWhatAnotherStreamWaitsForItself) {
  const StreamId third = SimGpu::make_stream();
  const DevicePtr a = allocate(kDevicePages * kPageBytes, side_);
  free_used_by(a, third);
  DevicePtr b{};
  expect_ended_by(LadderStep::kTransfer, [&] { b = allocate(4 * kPageBytes); });
  EXPECT_EQ(device_->driver().calls().event_wait, 0U);
  SimGpu::fill(stream_, b, 2, 1);
  SimGpu::finish(stream_);
  EXPECT_EQ(SimGpu::api().stream_query(testing::raw(third)), CUDA_SUCCESS) << "it came first";
  EXPECT_EQ(SimGpu::peek(b), 2);
}

TEST_F(LadderTest, WhatWasTransferredGoesToTheDriverWithoutAnyMapping) {
  free(allocate(kDevicePages * kPageBytes, side_));
  free(allocate(4 * kPageBytes));
  EXPECT_EQ(device_->report().counters().pages_transferred, 4U);
  device_->empty_cache();
  EXPECT_EQ(SimGpu::used_pages(), 0U) << "no old mapping keeps a page";
}

TEST_F(LadderTest, TooFewFreePagesElsewhereAreLeftThere) {
  const DevicePtr a = allocate(10 * kPageBytes, side_);
  allocate(6 * kPageBytes, side_);
  SimGpu::fill(side_, a, 1, 1);
  free(a);
  refuse(11 * kPageBytes, stream_);
  EXPECT_EQ(device_->report().counters().pages_transferred, 0U);
  EXPECT_EQ(pages().held, 6U);
}

TEST_F(LadderTest, NothingIsTransferredInACaptureOrToAPool) {
  const DevicePtr a = allocate(kDevicePages * kPageBytes, side_);
  SimGpu::fill(side_, a, 1, 1);
  free(a);
  device_->pools().hold(kGraphPool);
  expect_ended_by(LadderStep::kWait, [&] { allocate(kPageBytes, stream_, kGraphPool); });
  const DevicePtr b = allocate(2 * kPageBytes, side_);
  SimGpu::fill(side_, b, 1, 1);
  free(b);
  device_->set_captures(1);
  SimGpu::begin_capture(stream_, CU_STREAM_CAPTURE_MODE_RELAXED);
  expect_ended_by(LadderStep::kWait, [&] { allocate(kPageBytes); });
  SimGpu::end_capture(stream_);
  device_->set_captures(0);
  EXPECT_EQ(device_->report().counters().pages_transferred, 0U);
}

using GoneStreamTest = testing::GoneStreamFixture;

TEST_F(GoneStreamTest, MemoryOfADestroyedStreamIsReused) {
  const DevicePtr a = allocate(10 * kPageBytes, gone_);
  const DevicePtr b = allocate(2 * kPageBytes, gone_);
  SimGpu::fill(gone_, b, 1, 1);
  free(a);
  free(b);
  SimGpu::destroy_stream(gone_);
  allocate(2 * kPageBytes);
  EXPECT_EQ(pages().created, 14U) << "its work is not done";
  SimGpu::finish_all();
  allocate(3 * kPageBytes);
  EXPECT_EQ(ended_by(LadderStep::kPassedPages), 1U) << "without a query of the stream";
  EXPECT_EQ(pages().created, 14U);
  device_->empty_cache();
  EXPECT_EQ(pages().held, 5U);
}

TEST_F(GoneStreamTest, PendingMemoryOfADestroyedStreamIsReused) {
  const DevicePtr a = allocate(10 * kPageBytes, gone_);
  free_used_by(a, side_);
  SimGpu::destroy_stream(gone_);
  allocate(8 * kPageBytes);
  EXPECT_EQ(ended_by(LadderStep::kWait), 1U);
}

TEST_F(LadderTest, OutOfMemoryLeavesTheProgramRunning) {
  const DevicePtr a = allocate(10 * kPageBytes);
  const std::string before = layout_of(kDefaultPool);
  expect_ended_by(LadderStep::kOutOfMemory, [&] {
    const auto facts = refuse(8 * kPageBytes, stream_);
    EXPECT_EQ(facts->request, 8 * kPageBytes);
    EXPECT_EQ(facts->capacity, kDevicePages * kPageBytes);
    EXPECT_EQ(facts->device_free, 6 * kPageBytes);
    EXPECT_EQ(facts->held, 10 * kPageBytes);
    EXPECT_EQ(facts->live, 10 * kPageBytes);
    EXPECT_EQ(facts->pending + facts->free_default + facts->free_private, 0U);
    EXPECT_FALSE(facts->limit.has_value());
    EXPECT_EQ(diagnose(*facts), Verdict::kCapacity);
  });
  EXPECT_EQ(device_->report().counters().out_of_memory, 1U);
  EXPECT_EQ(layout_of(kDefaultPool), before);
  free(a);
  allocate(16 * kPageBytes);
}

TEST_F(LadderTest, AFailureThatAnotherAllocatorServedIsNotCounted) {
  allocate(10 * kPageBytes);
  for (const bool is_rejected : {false, true}) {
    rejection_limit_ = is_rejected ? 12 * kPageBytes : PageStore::kNoLimit;
    refuse(8 * kPageBytes, stream_);
    const DeviceCounters before = device_->report().counters();
    const auto failure = refuse(8 * kPageBytes, stream_);
    EXPECT_EQ(failure->rejected_beyond.has_value(), is_rejected);
    const DeviceCounters refused = device_->report().counters();
    EXPECT_EQ(refused.retries, before.retries + (is_rejected ? 0 : 1));
    EXPECT_EQ(refused.rejected, before.rejected + (is_rejected ? 1 : 0));
    device_->forget_failure(*failure);
    const DeviceCounters after = device_->report().counters();
    EXPECT_EQ(after.out_of_memory, before.out_of_memory);
    EXPECT_EQ(after.retries, before.retries);
    EXPECT_EQ(after.rejected, before.rejected);
    EXPECT_EQ(after.ladder, before.ladder);
  }
}

TEST_F(LadderTest, MoreThanTheDeviceHasCostsNoCachedMemory) {
  free(allocate(4 * kPageBytes));
  const DriverCalls before = device_->driver().calls();
  const auto facts = refuse((kDevicePages + 1) * kPageBytes, stream_);
  const DriverCalls after = device_->driver().calls();
  EXPECT_EQ(after.unmap, before.unmap);
  EXPECT_EQ(after.event_wait, before.event_wait);
  EXPECT_EQ(layout_of(kDefaultPool), "F4p");
  EXPECT_EQ(facts->free_default, 4 * kPageBytes);
}

TEST_F(LadderTest, UnusedReleasedPagesGoToTheDriver) {
  allocate(kPageBytes / 2);
  allocate(kPageBytes / 2, side_);
  free(allocate(10 * kPageBytes));
  // Half of each of the two pages that stay is free: together they would be the missing one.
  const auto facts = refuse((kDevicePages - 1) * kPageBytes, stream_);
  EXPECT_EQ(pages().idle, 0U);
  EXPECT_EQ(pages().held, 2U);
  EXPECT_EQ(diagnose(*facts), Verdict::kFragmentation) << explain(*facts);
}

TEST_F(LadderTest, TheFactsOfPrivatePoolsAreApart) {
  device_->pools().hold(kGraphPool);
  const DevicePtr a = allocate(4 * kPageBytes, stream_, kGraphPool);
  static_cast<void>(a);
  free(allocate(8 * kPageBytes, side_, kGraphPool));
  allocate(2 * kPageBytes);
  const auto facts = refuse(8 * kPageBytes, stream_);
  EXPECT_EQ(facts->live, 6 * kPageBytes);
  EXPECT_EQ(facts->live_private, 4 * kPageBytes);
  EXPECT_EQ(facts->free_private, 8 * kPageBytes);
  EXPECT_EQ(facts->free_default, 0U);
  EXPECT_EQ(diagnose(*facts), Verdict::kPrivatePools);
}

TEST_F(LadderTest, TheLimitHoldsAndIsNamed) {
  device_->store().set_limit(4 * kPageBytes);
  const DevicePtr a = allocate(4 * kPageBytes);
  const auto facts = refuse(kPageBytes, side_);
  EXPECT_EQ(facts->limit, 4 * kPageBytes);
  EXPECT_EQ(diagnose(*facts), Verdict::kLimit);
  free(a);
  allocate(4 * kPageBytes, side_);
  EXPECT_EQ(pages().peak_held, 4U);
}

TEST_F(LadderTest, BlocksThatACaptureDefersAreNotWaitedFor) {
  const DevicePtr a = allocate(kDevicePages * kPageBytes);
  device_->set_captures(1);
  SimGpu::begin_capture(side_);
  EXPECT_TRUE(heap_of(a).record_stream(*addresses_.find(a), a, side_));
  free(a);
  const auto facts = refuse(kPageBytes, stream_);
  EXPECT_EQ(facts->pending, kDevicePages * kPageBytes);
  EXPECT_EQ(diagnose(*facts), Verdict::kWaiting);
  SimGpu::end_capture(side_);
  device_->set_captures(0);
  expect_ended_by(LadderStep::kCollectPending, [this] { allocate(kPageBytes); });
}

TEST_F(LadderTest, ACapturingStreamCanGrowAndDoesNotInvalidateItsCapture) {
  free(allocate(kDevicePages * kPageBytes, side_));
  device_->pools().hold(kGraphPool);
  device_->set_captures(1);
  SimGpu::begin_capture(stream_);
  allocate(4 * kPageBytes, stream_, kGraphPool);
  EXPECT_EQ(device_->driver().capture_info(stream_).status, CaptureStatus::kActive);
  SimGpu::end_capture(stream_);
  device_->set_captures(0);
}

TEST_F(LadderTest, WhatIsFreedDuringACaptureLeavesItsArenaWhenMemoryIsShort) {
  const DevicePtr a = allocate(kDevicePages * kPageBytes, side_);
  device_->set_captures(1);
  const StreamId unknown = SimGpu::make_stream();
  SimGpu::fill(unknown, a, 1, 1);
  free(a);
  const DriverCalls before = device_->driver().calls();
  EXPECT_NE(allocate(10 * kPageBytes), kNull);
  EXPECT_EQ(SimGpu::api().stream_query(testing::raw(unknown)), CUDA_SUCCESS);
  EXPECT_EQ(device_->driver().calls().event_wait, before.event_wait + 1);
  device_->set_captures(0);
}

TEST_F(LadderTest, EmptyCacheReleasesMemoryFreedDuringACapture) {
  const DevicePtr a = allocate(10 * kPageBytes, side_);
  device_->set_captures(1);
  SimGpu::begin_capture(stream_);
  const StreamId unknown = SimGpu::make_stream();
  SimGpu::fill(unknown, a, 1, 1);
  free(a);
  device_->empty_cache();
  EXPECT_EQ(device_->report().held_bytes(), 0U);
  SimGpu::end_capture(stream_);  // it was not invalidated
  EXPECT_EQ(SimGpu::api().stream_query(testing::raw(unknown)), CUDA_SUCCESS);
  device_->set_captures(0);
}

TEST_F(LadderTest, EmptyCacheReleasesMemoryFreedDuringASilentCapture) {
  const DevicePtr a = allocate(10 * kPageBytes, side_);
  SimGpu::begin_capture(side_, CU_STREAM_CAPTURE_MODE_RELAXED);
  free(a);
  device_->empty_cache();
  EXPECT_EQ(device_->report().held_bytes(), 0U);
  SimGpu::end_capture(side_);  // it was not invalidated
}

TEST_F(LadderTest, ARequestBesideASilentCaptureOfItsStreamIsServedAndDoesNotEndIt) {
  free(allocate(kDevicePages * kPageBytes, side_));
  SimGpu::begin_capture(stream_, CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_NE(allocate(4 * kPageBytes), kNull);
  EXPECT_EQ(device_->driver().capture_info(stream_).status, CaptureStatus::kActive);
  SimGpu::end_capture(stream_);
}

TEST_F(LadderTest, APageSizeThatTheDriverCannotMapIsRefused) {
  AllocatorConfig config;
  config.page_bytes = 3 * kMiB;
  AddressIndex addresses;
  DeviceMemory device(FaultyApi::table(), 0, addresses, config, nullptr);
  EXPECT_THROW(static_cast<void>(device.allocate(kDefaultPool, stream_, testing::bytes(512))),
               DriverError);
}

TEST_F(LadderTest, LargerPagesWork) {
  AllocatorConfig config;
  config.page_bytes = 4 * kPageBytes;
  AddressIndex addresses;
  DeviceMemory device(FaultyApi::table(), 0, addresses, config, nullptr);
  const DevicePtr ptr = device.allocate(kDefaultPool, stream_, testing::bytes(512)).ptr;
  device.report().check_invariants();
  EXPECT_EQ(SimGpu::used_pages(), 4U);
  EXPECT_EQ(addresses.find(ptr)->heap()->free(*addresses.find(ptr), ptr).error, FreeError::kNone);
}

class LadderOfLargeHandlesTest : public testing::DeviceFixture {
 protected:
  LadderOfLargeHandlesTest()
      : DeviceFixture(32, SimGpu::kManual, AllocatorConfig{.handles = testing::kCoarseHandles}) {}
};

TEST_F(LadderOfLargeHandlesTest, WhereOnlySmallerHandlesFitTheyAreExchanged) {
  // Two pages apart in a graph's pool, whose pages do not move, with nine free ones behind them.
  device_->pools().hold(kGraphPool);
  ASSERT_EQ(graphs_->begin_capture(kGraphPool), SharingResult::kOk);
  ASSERT_EQ(graphs_->end_capture(kGraphPool, GraphMemory::Outcome::kFailed), SharingResult::kOk);
  const DevicePtr first = allocate(kPageBytes, stream_, kGraphPool);
  const DevicePtr second = allocate(kPageBytes, stream_, kGraphPool);
  std::vector<DevicePtr> others;
  for (int i = 0; i < 9; ++i) {
    others.push_back(allocate(kPageBytes, stream_, kGraphPool));
  }
  const DevicePtr last = allocate(kPageBytes, stream_, kGraphPool);
  free(second);
  SimGpu::finish_all();
  ASSERT_EQ(release_pages_of(first, 1), 1U);
  ASSERT_EQ(device_->store().trim(1), 1U);
  for (const DevicePtr ptr : others) {
    free(ptr);
  }
  const DevicePtr a = allocate(16 * kPageBytes);
  free(a);
  SimGpu::finish_all();
  ASSERT_EQ(release_pages_of(a, 1), 8U);
  allocate(8 * kPageBytes);
  ASSERT_EQ(layout_of(kGraphPool), "L1p | F9p L1p");
  ASSERT_EQ(pages().idle, 8U);
  device_->store().set_limit(pages().held * kPageBytes);
  EXPECT_EQ(allocate(10 * kPageBytes, stream_, kGraphPool), second);
  EXPECT_EQ(pages().idle, 0U);
  EXPECT_EQ(device_->report().counters().pages_released, 9U);
  free(last);
}

TEST_F(LadderTest, ARequestBeyondTheRejectionLimitIsRefusedAtOnce) {
  const DevicePtr kept = allocate(2 * kPageBytes, side_);
  const DevicePtr a = allocate(2 * kPageBytes);
  free(a);
  rejection_limit_ = 5 * kPageBytes;
  on_shortage_ = [] {
    ADD_FAILURE() << "no callback should be asked to release memory";
    return false;
  };
  const auto failure = refuse(4 * kPageBytes, stream_);
  EXPECT_EQ(failure->rejected_beyond, 5 * kPageBytes);
  EXPECT_EQ(device_->report().counters().rejected, 1U);
  EXPECT_EQ(device_->report().counters().out_of_memory, 0U);
  EXPECT_EQ(device_->report().counters().retries, 0U);
  EXPECT_EQ(pages().held, 4U) << "the cache stays";
  EXPECT_EQ(allocate(3 * kPageBytes), a) << "free pages count as room";
  EXPECT_NE(kept, kNull);
}

TEST_F(LadderTest, TheOrdinaryLimitComesBeforeTheRejectionLimit) {
  rejection_limit_ = 4 * kPageBytes;
  device_->store().set_limit(4 * kPageBytes);
  const DevicePtr a = allocate(3 * kPageBytes, side_);
  free(a);
  // Releasing memory reaches it, as without the other limit.
  EXPECT_NE(allocate(4 * kPageBytes), kNull);
  EXPECT_EQ(refuse(5 * kPageBytes, stream_)->rejected_beyond, std::nullopt);
  EXPECT_EQ(device_->report().counters().rejected, 0U);
}

TEST_F(LadderTest, MoreThanTheDeviceHasIsRejectedToo) {
  rejection_limit_ = 4 * kPageBytes;
  EXPECT_EQ(refuse((kDevicePages + 1) * kPageBytes, stream_)->rejected_beyond, 4 * kPageBytes);
}

}  // namespace ladder_test
}  // namespace ferro
