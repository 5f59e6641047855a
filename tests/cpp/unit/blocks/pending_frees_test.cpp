#include "ferro/core/streams/pending_frees.h"

#include "ferro/driver/error.h"
#include "support/faulty_api.h"
#include "support/sim_gpu.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <initializer_list>

namespace ferro {
namespace pending_frees_test {

using testing::FaultyApi;
using testing::SimGpu;

// Waits on the host for the next event, as a heap does without its lock. False if there is none and
// no block became ready.
bool wait_for_one(Driver& driver, PendingFrees& pending, std::vector<Block*>& ready) {
  const std::size_t before = ready.size();
  if (const std::optional<EventId> event = pending.next_event(ready)) {
    driver.wait(*event);
    pending.collect(ready);
    return true;
  }
  return ready.size() != before;
}

class PendingFreesTest : public ::testing::Test {
 protected:
  PendingFreesTest() { FaultyApi::reset(); }
  ~PendingFreesTest() override {
    FaultyApi::reset();
    for (Block& block : blocks_) {
      delete block.extra;
    }
  }

  // A freed block with uses by streams outside of captures.
  Block* used_by(std::initializer_list<StreamId> streams) {
    Block* block = make();
    for (const StreamId stream : streams) {
      block->extra->uses.push_back({stream, 0});
    }
    return block;
  }
  Block* used_in_capture(StreamId stream) {
    Block* block = make();
    block->extra->uses.push_back({stream, driver_.capture_info(stream).id});
    EXPECT_NE(block->extra->uses.front().capture_id, 0U);
    return block;
  }
  Block* make() {
    Block& block = blocks_.emplace_back();
    block.state = BlockState::kPending;
    block.extra = new BlockExtra;
    return &block;
  }
  std::vector<Block*> collect() {
    std::vector<Block*> ready;
    pending_.collect(ready);
    pending_.check_invariants();
    return ready;
  }
  bool add(Block* block) {
    const bool waits = pending_.add(block);
    if (waits) {
      pending_.check_invariants();
    }
    return waits;
  }

  SimGpu gpu_{8};
  const StreamId a_ = SimGpu::make_stream();
  const StreamId b_ = SimGpu::make_stream();
  Driver driver_{FaultyApi::table(), 0};
  EventPool events_{driver_};
  CaptureCount captures_;
  DeviceTimeline timeline_{driver_, events_, captures_, nullptr};
  const StreamId own_ = SimGpu::make_stream();
  PendingFrees pending_{driver_, events_, own_};
  std::deque<Block> blocks_;
};

using Blocks = std::vector<Block*>;

TEST_F(PendingFreesTest, ABlockWaitsForTheEventOfItsUse) {
  Block* block = used_by({a_});
  ASSERT_TRUE(add(block));
  EXPECT_EQ(pending_.count(), 1U);
  EXPECT_EQ(collect(), Blocks{});
  SimGpu::finish(a_);
  EXPECT_EQ(collect(), Blocks{block});
  EXPECT_EQ(pending_.count(), 0U);
}

TEST_F(PendingFreesTest, ABlockOfTwoStreamsWaitsForBoth) {
  Block* block = used_by({a_, b_});
  ASSERT_TRUE(add(block));
  EXPECT_EQ(block->extra->events, 2U);
  SimGpu::finish(a_);
  EXPECT_EQ(collect(), Blocks{});
  EXPECT_EQ(block->extra->events, 1U);
  SimGpu::finish(b_);
  EXPECT_EQ(collect(), Blocks{block});
}

TEST_F(PendingFreesTest, ASlowStreamDoesNotHoldBackAnother) {
  Block* slow = used_by({a_});
  Block* quick = used_by({b_});
  ASSERT_TRUE(add(slow));
  ASSERT_TRUE(add(quick));
  SimGpu::finish(b_);
  EXPECT_EQ(collect(), Blocks{quick});
  EXPECT_EQ(pending_.count(), 1U);
  SimGpu::finish(a_);
  EXPECT_EQ(collect(), Blocks{slow});
}

TEST_F(PendingFreesTest, OneStreamIsAskedUntilItsFirstIncompleteEvent) {
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(add(used_by({a_})));
  }
  const std::uint64_t before = driver_.calls().event_query;
  EXPECT_EQ(collect(), Blocks{});
  EXPECT_EQ(driver_.calls().event_query - before, 1U);
  SimGpu::finish(a_);
  EXPECT_EQ(collect().size(), 5U);
}

TEST_F(PendingFreesTest, NothingPendingAsksNothing) {
  const std::uint64_t before = FaultyApi::calls();
  EXPECT_EQ(collect(), Blocks{});
  EXPECT_EQ(FaultyApi::calls(), before);
}

TEST_F(PendingFreesTest, EventsAreUsedAgain) {
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(add(used_by({a_})));
    SimGpu::finish(a_);
    EXPECT_EQ(collect().size(), 1U);
  }
  EXPECT_EQ(SimGpu::calls("cuEventCreate"), 1U);
}

TEST_F(PendingFreesTest, WaitingTakesTheOldestEventOfOneStream) {
  Block* first = used_by({a_});
  Block* second = used_by({a_});
  ASSERT_TRUE(add(first));
  ASSERT_TRUE(add(second));
  Blocks ready;
  EXPECT_TRUE(wait_for_one(driver_, pending_, ready));
  EXPECT_EQ(ready, Blocks{first});
  EXPECT_TRUE(wait_for_one(driver_, pending_, ready));
  EXPECT_EQ(ready, (Blocks{first, second}));
  EXPECT_FALSE(wait_for_one(driver_, pending_, ready));
  EXPECT_EQ(driver_.calls().event_wait, 2U);
}

TEST_F(PendingFreesTest, TheOwnStreamCanWaitInsteadOfTheHost) {
  Block* first = used_by({a_});
  Block* second = used_by({a_, b_});
  Block* third = used_by({a_});
  Block* fourth = used_by({b_});
  std::size_t size = 512;
  for (Block* block : {first, second, third, fourth}) {
    block->size = size;
    size *= 2;
    ASSERT_TRUE(add(block));
  }
  EXPECT_EQ(pending_.bytes_on_events(), 15U * 512);
  Blocks ready;
  EXPECT_FALSE(pending_.stream_wait_for_one(16 * 512, timeline_, ready));
  EXPECT_EQ(driver_.calls().stream_wait, 0U);
  // The second block is the first large enough one; blocks freed before it need no separate wait.
  EXPECT_TRUE(pending_.stream_wait_for_one(2 * 512, timeline_, ready));
  EXPECT_EQ(ready, (Blocks{first, second}));
  EXPECT_EQ(driver_.calls().stream_wait, 2U);
  EXPECT_EQ(pending_.bytes_on_events(), 12U * 512);
  pending_.check_invariants();
  SimGpu::finish(own_);
  EXPECT_EQ(collect(), Blocks{}) << "blocks freed later are not waited for";
  EXPECT_EQ(driver_.calls().event_wait, 0U);
  SimGpu::finish_all();
  EXPECT_EQ(collect().size(), 2U);
}

TEST_F(PendingFreesTest, TheOwnStreamComesBehindTheLastUseOfTheBlockThatItGets) {
  Block* small = used_by({a_});
  small->size = 512;
  ASSERT_TRUE(add(small));
  const EventId later_use = events_.record(a_);
  Block* large = used_by({a_});
  large->size = 1024;
  ASSERT_TRUE(add(large));
  Blocks ready;
  ASSERT_TRUE(pending_.stream_wait_for_one(1024, timeline_, ready));
  EXPECT_EQ(ready, (Blocks{small, large}));
  SimGpu::finish(own_);
  EXPECT_TRUE(driver_.is_complete(later_use)) << "not only after the use of the small block";
}

// The own stream comes behind a use of the second block too, which another stream still uses. A
// point from before the wait need not cover that use.
TEST_F(PendingFreesTest, AWaitStampsEachBlockThatItIsFor) {
  Block* first = used_by({a_});
  Block* second = used_by({a_, b_});
  Block* third = used_by({a_});
  Block* later = used_by({a_});
  for (Block* block : {first, second, third, later}) {
    block->size = block == third ? 1024 : 512;
    block->freed = timeline_.now();
    ASSERT_TRUE(add(block));
  }
  const Epoch freed = timeline_.now();
  timeline_.begin_epoch();
  Blocks ready;
  ASSERT_TRUE(pending_.stream_wait_for_one(1024, timeline_, ready));
  EXPECT_EQ(ready, (Blocks{first, third}));
  for (const Block* block : {first, second, third}) {
    EXPECT_EQ(block->freed, timeline_.now());
  }
  EXPECT_EQ(later->freed, freed);
}

TEST_F(PendingFreesTest, ARefusedStreamWaitStampsWhatWasOrdered) {
  Block* first = used_by({a_});
  Block* block = used_by({a_, b_});
  block->size = 1024;
  ASSERT_TRUE(add(first));
  ASSERT_TRUE(add(block));
  FaultyApi::fail_only("cuStreamWaitEvent", 2, CUDA_ERROR_UNKNOWN);
  Blocks ready;
  EXPECT_THROW(pending_.stream_wait_for_one(1024, timeline_, ready), DriverError);
  for (const Block* one : ready) {
    EXPECT_EQ(one->freed, timeline_.now());
  }
  EXPECT_EQ(block->freed, timeline_.now());
}

TEST_F(PendingFreesTest, ACapturingStreamWaitsForNothingOutside) {
  Block* block = used_by({a_});
  ASSERT_TRUE(add(block));
  SimGpu::begin_capture(own_);
  Blocks ready;
  EXPECT_FALSE(pending_.stream_wait_for_one(0, timeline_, ready));
  EXPECT_EQ(driver_.capture_info(own_).status, CaptureStatus::kActive);
  SimGpu::end_capture(own_);
  EXPECT_TRUE(pending_.stream_wait_for_one(0, timeline_, ready));
  EXPECT_EQ(ready, Blocks{block});
}

TEST_F(PendingFreesTest, ARefusedStreamWaitLosesNothing) {
  Block* block = used_by({a_, b_});
  ASSERT_TRUE(add(block));
  FaultyApi::fail_only("cuStreamWaitEvent", 2, CUDA_ERROR_UNKNOWN);
  Blocks ready;
  EXPECT_THROW(pending_.stream_wait_for_one(0, timeline_, ready), DriverError);
  EXPECT_EQ(ready, Blocks{});
  pending_.check_invariants();
  EXPECT_EQ(block->extra->events, 1U) << "one of the two was ordered";
  EXPECT_TRUE(pending_.stream_wait_for_one(0, timeline_, ready));
  EXPECT_EQ(ready, Blocks{block});
}

TEST_F(PendingFreesTest, ABlockUsedInARunningCaptureIsDeferred) {
  SimGpu::begin_capture(a_);
  Block* block = used_in_capture(a_);
  const std::uint64_t records = driver_.calls().event_record;
  ASSERT_TRUE(add(block));
  EXPECT_EQ(driver_.calls().event_record, records) << "an event would become part of the graph";
  EXPECT_EQ(collect(), Blocks{});
  Blocks ready;
  EXPECT_FALSE(wait_for_one(driver_, pending_, ready)) << "there is no event to wait for";
  SimGpu::end_capture(a_);
  EXPECT_EQ(collect(), Blocks{block}) << "the end of the capture joins its uses";
}

TEST_F(PendingFreesTest, AUseFromBeforeTheCaptureGetsItsEventWhenTheCaptureEnds) {
  Block* block = used_by({a_});
  SimGpu::begin_capture(a_);
  ASSERT_TRUE(add(block));
  SimGpu::end_capture(a_);
  EXPECT_EQ(collect(), Blocks{}) << "the event is recorded and not complete";
  SimGpu::finish(a_);
  EXPECT_EQ(collect(), Blocks{block});
}

TEST_F(PendingFreesTest, AUseInACaptureThatIsOverNeedsNoWait) {
  SimGpu::begin_capture(a_);
  Block* block = used_in_capture(a_);
  SimGpu::end_capture(a_);
  EXPECT_FALSE(add(block));
  EXPECT_EQ(pending_.count(), 0U);
}

TEST_F(PendingFreesTest, AUseInAnEarlierCaptureDoesNotWaitForTheNext) {
  SimGpu::begin_capture(a_);
  Block* block = used_in_capture(a_);
  SimGpu::end_capture(a_);
  SimGpu::begin_capture(a_);
  EXPECT_FALSE(add(block));
  SimGpu::end_capture(a_);
}

TEST_F(PendingFreesTest, AnInvalidatedCaptureDefersUntilItIsEnded) {
  SimGpu::begin_capture(a_);
  Block* block = used_in_capture(a_);
  EXPECT_NE(SimGpu::api().stream_synchronize(testing::raw(a_)), CUDA_SUCCESS);
  ASSERT_EQ(driver_.capture_info(a_).status, CaptureStatus::kInvalidated);
  ASSERT_TRUE(add(block));
  EXPECT_EQ(collect(), Blocks{});
  SimGpu::abandon_capture(a_);
  EXPECT_EQ(collect(), Blocks{block});
}

TEST_F(PendingFreesTest, ACaptureOnOneStreamDoesNotDeferBlocksOfAnother) {
  SimGpu::begin_capture(a_);
  Block* block = used_by({b_});
  ASSERT_TRUE(add(block));
  EXPECT_EQ(collect(), Blocks{});
  EXPECT_EQ(driver_.capture_info(a_).status, CaptureStatus::kActive)
      << "a query must not invalidate";
  Blocks ready;
  EXPECT_TRUE(wait_for_one(driver_, pending_, ready));
  EXPECT_EQ(ready, Blocks{block});
  EXPECT_EQ(driver_.capture_info(a_).status, CaptureStatus::kActive);
  SimGpu::end_capture(a_);
}

// The driver's table, but another thread begins to capture a stream right before an event is
// recorded on it.
struct LateCapture {
  static inline int at_record = 0;  // counted from 1; 0 means never
  static const CudaApi& table() {
    static const CudaApi table = [] {
      CudaApi made = FaultyApi::table();
      made.event_record = [](CUevent event, CUstream stream) {
        if (at_record != 0 && --at_record == 0) {
          SimGpu::begin_capture(StreamId{reinterpret_cast<std::uint64_t>(stream)});
        }
        return FaultyApi::table().event_record(event, stream);
      };
      return made;
    }();
    return table;
  }
};

TEST_F(PendingFreesTest, ACaptureThatBeginsMeanwhileDefersTheBlock) {
  Driver driver{LateCapture::table(), 0};
  EventPool events{driver};
  PendingFrees pending{driver, events, own_};
  for (const int at : {1, 2}) {
    Block* block = at == 1 ? used_by({b_, a_}) : used_by({a_, b_});
    LateCapture::at_record = at;
    ASSERT_TRUE(pending.add(block));
    Blocks ready;
    EXPECT_FALSE(wait_for_one(driver_, pending, ready))
        << "an event of the graph cannot be waited for";
    pending.check_invariants();
    SimGpu::end_capture(b_);
    EXPECT_TRUE(wait_for_one(driver_, pending, ready));
    SimGpu::finish_all();
    pending.collect(ready);
    EXPECT_EQ(ready, Blocks{block});
  }
  EXPECT_EQ(SimGpu::calls("cuEventCreate"), 2U) << "the events of the failed tries were kept";
}

// The driver's table, which also counts the calls that FaultyApi leaves out.
struct CountedApi {
  static inline std::uint64_t others = 0;
  static std::uint64_t calls() { return FaultyApi::calls() + others; }
  static const CudaApi& table() {
    static const CudaApi table = [] {
      CudaApi made = FaultyApi::table();
      made.ctx_get_current = [](CUcontext* context) {
        ++others;
        return FaultyApi::table().ctx_get_current(context);
      };
      made.thread_exchange_capture_mode = [](CUstreamCaptureMode* mode) {
        ++others;
        return FaultyApi::table().thread_exchange_capture_mode(mode);
      };
      return made;
    }();
    return table;
  }
};

// A free runs under the lock of a heap.
TEST_F(PendingFreesTest, AFreeMakesAHandfulOfCalls) {
  Driver driver{CountedApi::table(), 0};
  EventPool events{driver};
  PendingFrees pending{driver, events, own_};
  std::vector<Block*> ready;
  const auto calls_of_free = [&](std::initializer_list<StreamId> streams) {
    Block* block = used_by(streams);
    const std::uint64_t before = CountedApi::calls();
    EXPECT_TRUE(pending.add(block));
    const std::uint64_t calls = CountedApi::calls() - before;
    EXPECT_EQ(block->extra->events, streams.size());
    SimGpu::finish_all();
    pending.collect(ready);
    EXPECT_EQ(pending.count(), 0U);
    return calls;
  };
  calls_of_free({a_, b_});  // creates the events
  EXPECT_LE(calls_of_free({a_}), 6U);
  EXPECT_LE(calls_of_free({a_, b_}), 9U);
  EXPECT_LE(calls_of_free({kLegacyStream}), 6U);
}

TEST_F(PendingFreesTest, AFreeWhileItsStreamCapturesLeavesTheCaptureAsItIs) {
  Block* block = used_by({a_, b_});
  SimGpu::begin_capture(b_);
  ASSERT_TRUE(add(block));
  EXPECT_EQ(block->extra->events, 0U);
  EXPECT_EQ(driver_.capture_info(b_).status, CaptureStatus::kActive);
  EXPECT_EQ(collect(), Blocks{});
  SimGpu::end_capture(b_);
  EXPECT_EQ(collect(), Blocks{});
  EXPECT_EQ(block->extra->events, 2U);
  SimGpu::finish_all();
  EXPECT_EQ(collect(), Blocks{block});
  EXPECT_EQ(SimGpu::calls("cuEventCreate"), 2U) << "the events of the failed try were kept";
}

class RefusedRecordTest : public PendingFreesTest,
                          public ::testing::WithParamInterface<const char*> {};

TEST_P(RefusedRecordTest, DefersTheBlockAndTriesAgain) {
  Block* block = used_by({a_, b_});
  FaultyApi::fail_only(GetParam(), 2, CUDA_ERROR_UNKNOWN);
  ASSERT_TRUE(add(block));
  ASSERT_STREQ(FaultyApi::failed(), GetParam());
  EXPECT_EQ(collect(), Blocks{}) << "now both events are recorded";
  EXPECT_EQ(block->extra->events, 2U);
  SimGpu::finish_all();
  EXPECT_EQ(collect(), Blocks{block});
  EXPECT_LE(SimGpu::calls("cuEventCreate"), 2U) << "the events of the failed try were kept";
}

INSTANTIATE_TEST_SUITE_P(Calls, RefusedRecordTest,
                         ::testing::Values("cuEventRecord", "cuEventCreate",
                                           "cuStreamIsCapturing"));

TEST_F(PendingFreesTest, ARefusedQueryLosesNothing) {
  Block* first = used_by({a_});
  Block* second = used_by({a_});
  ASSERT_TRUE(add(first));
  ASSERT_TRUE(add(second));
  SimGpu::finish(a_);
  FaultyApi::fail_only("cuEventQuery", 2, CUDA_ERROR_UNKNOWN);
  Blocks ready;
  EXPECT_THROW(pending_.collect(ready), DriverError);
  EXPECT_EQ(ready, Blocks{first});
  pending_.check_invariants();
  EXPECT_EQ(collect(), Blocks{second});
}

TEST_F(PendingFreesTest, ARefusedWaitLosesNothing) {
  Block* block = used_by({a_});
  ASSERT_TRUE(add(block));
  FaultyApi::fail_only("cuEventSynchronize", 1, CUDA_ERROR_UNKNOWN);
  Blocks ready;
  EXPECT_THROW(wait_for_one(driver_, pending_, ready), DriverError);
  EXPECT_EQ(ready, Blocks{});
  pending_.check_invariants();
  EXPECT_TRUE(wait_for_one(driver_, pending_, ready));
  EXPECT_EQ(ready, Blocks{block});
}

TEST_F(PendingFreesTest, ADestroyedStreamStillCompletesItsBlocks) {
  Block* block = used_by({a_});
  ASSERT_TRUE(add(block));
  SimGpu::destroy_stream(a_);
  SimGpu::finish_all();
  EXPECT_EQ(collect(), Blocks{block});
}

}  // namespace pending_frees_test
}  // namespace ferro
