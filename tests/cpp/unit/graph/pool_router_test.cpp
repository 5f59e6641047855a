#include "ferro/graph/pool_router.h"

#include "support/device_fixture.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string_view>
#include <thread>
#include <utility>

namespace ferro {
namespace pool_router_test {

using testing::SimGpu;

class PoolRouterTest : public testing::DeviceFixture {
 protected:
  static constexpr PoolId kOther{4, 0};

  explicit PoolRouterTest(AllocatorConfig config = {})
      : DeviceFixture(16, SimGpu::kManual, std::move(config)) {}

  PoolRouter::Filter only(StreamId stream) {
    return [stream](StreamId asked) { return asked == stream; };
  }
  // A filter like those of PyTorch: accepts the streams of the capture that `stream` is in.
  PoolRouter::Filter captured_with(StreamId stream) {
    return [this, stream](StreamId asked) {
      const CaptureInfo mine = device_->driver().capture_info(stream);
      const CaptureInfo its = device_->driver().capture_info(asked);
      return its.status == CaptureStatus::kActive && its.id == mine.id;
    };
  }

  template <typename Body>
  static void on_another_thread(Body body) {
    std::thread([&body] {
      SimGpu::make_current();
      body();
    }).join();
  }

  PoolRouter router_{*device_};
};

TEST_F(PoolRouterTest, WithoutOneTheDefaultPoolServes) {
  EXPECT_FALSE(router_.any());
  EXPECT_EQ(router_.pool_for(stream_), kDefaultPool);
}

TEST_F(PoolRouterTest, ADiversionOfAStreamServesThatStream) {
  ASSERT_TRUE(router_.begin(kGraphPool, only(stream_), stream_));
  EXPECT_TRUE(router_.any());
  EXPECT_EQ(router_.pool_for(stream_), kGraphPool);
  EXPECT_EQ(router_.pool_for(side_), kDefaultPool);
  EXPECT_EQ(device_->pools().use_count(kGraphPool), 1);
  EXPECT_TRUE(router_.end(kGraphPool));
  EXPECT_FALSE(router_.any());
  EXPECT_EQ(router_.pool_for(stream_), kDefaultPool);
  EXPECT_EQ(device_->pools().use_count(kGraphPool), 1) << "the pool stays held";
}

TEST_F(PoolRouterTest, APoolIsDivertedToOnce) {
  ASSERT_TRUE(router_.begin(kGraphPool, only(stream_), stream_));
  EXPECT_FALSE(router_.begin(kGraphPool, only(side_), side_));
  EXPECT_EQ(router_.pool_for(side_), kDefaultPool);
  EXPECT_EQ(device_->pools().use_count(kGraphPool), 1);
}

TEST_F(PoolRouterTest, EndingAnUnknownDiversionReturnsFalse) {
  EXPECT_FALSE(router_.end(kGraphPool));
}

TEST_F(PoolRouterTest, TheInnermostServes) {
  ASSERT_TRUE(router_.begin(kGraphPool, only(stream_), stream_));
  ASSERT_TRUE(router_.begin(kOther, only(stream_), stream_));
  EXPECT_EQ(router_.pool_for(stream_), kOther);
  EXPECT_TRUE(router_.end(kGraphPool));
  EXPECT_EQ(router_.pool_for(stream_), kOther);
  EXPECT_TRUE(router_.end(kOther));
}

TEST_F(PoolRouterTest, ACapturesDiversionServesItsStreamsWhileItRuns) {
  // The diversion begins before the capture, whose filter refuses the stream until then.
  ASSERT_TRUE(router_.begin(kGraphPool, captured_with(stream_), stream_));
  on_another_thread([this] { EXPECT_EQ(router_.pool_for(stream_), kDefaultPool); });
  SimGpu::begin_capture(stream_);
  EXPECT_EQ(router_.pool_for(stream_), kGraphPool);
  EXPECT_EQ(router_.pool_for(side_), kDefaultPool);
  SimGpu::fork(stream_, side_);
  EXPECT_EQ(router_.pool_for(side_), kGraphPool) << "a forked stream is part of the capture";
  SimGpu::fork(side_, stream_);
  SimGpu::end_capture(stream_);
  on_another_thread([this] { EXPECT_EQ(router_.pool_for(stream_), kDefaultPool); });
  EXPECT_TRUE(router_.end(kGraphPool)) << "only its own thread may treat it as abandoned";
}

TEST_F(PoolRouterTest, AnEndedCapturesFilterIsNotCalled) {
  bool alive = true;
  const auto filter = [&alive, accepts = captured_with(stream_)](StreamId asked) {
    EXPECT_TRUE(alive) << "the graph of this filter is destroyed";
    return accepts(asked);
  };
  ASSERT_TRUE(router_.begin(kGraphPool, filter, stream_));
  SimGpu::begin_capture(stream_);
  EXPECT_EQ(router_.pool_for(stream_), kGraphPool);
  SimGpu::abandon_capture(stream_);
  alive = false;
  const auto ask = [this] {
    EXPECT_EQ(router_.pool_for(stream_), kDefaultPool);
    EXPECT_EQ(router_.pool_for(side_), kDefaultPool);
  };
  on_another_thread(ask);
  EXPECT_TRUE(router_.any()) << "this thread must not drop it";
  ask();
}

// The graph of a failed capture is destroyed while the capture of another thread runs on.
class GoneGraphTest : public PoolRouterTest {
 protected:
  GoneGraphTest() {
    EXPECT_TRUE(router_.begin(kOther, captured_with(stream_), stream_));
    SimGpu::begin_capture(stream_);
  }
  ~GoneGraphTest() override { SimGpu::abandon_capture(stream_); }

  // Like PyTorch's, it knows the capture from its begin on.
  PoolRouter::Filter mortal() {
    return [this](StreamId asked) {
      EXPECT_TRUE(alive_) << "the graph of this filter is destroyed";
      const CaptureInfo capture = device_->driver().capture_info(asked);
      return capture.status == CaptureStatus::kActive && capture.id == id_;
    };
  }
  void begin_capture(StreamId stream) {
    SimGpu::begin_capture(stream);
    id_ = device_->driver().capture_info(stream).id;
  }
  // Begins the later diversion, and lets its capture fail after `body`, in a thread that goes on.
  template <typename Body>
  void fail_elsewhere(StreamId stream, Body body) {
    failing_ = std::thread([=, this] {
      SimGpu::make_current();
      EXPECT_TRUE(router_.begin(kGraphPool, mortal(), stream));
      body();
      alive_ = false;
      failed_.set_value();
      may_end_.get_future().wait();
    });
    failed_.get_future().wait();
  }
  void let_end() {
    may_end_.set_value();
    failing_.join();
  }

 private:
  std::atomic<bool> alive_{true};
  std::atomic<std::uint64_t> id_{0};
  std::thread failing_;
  std::promise<void> failed_;
  std::promise<void> may_end_;
};

TEST_F(GoneGraphTest, ItsFilterIsNotCalled) {
  fail_elsewhere(side_, [this] {
    begin_capture(side_);
    EXPECT_EQ(router_.pool_for(side_), kGraphPool);
    SimGpu::abandon_capture(side_);
  });
  EXPECT_EQ(router_.pool_for(stream_), kOther);
  let_end();
}

TEST_F(GoneGraphTest, ItsFilterIsNotCalledIfItRequestedNothing) {
  fail_elsewhere(side_, [this] {
    begin_capture(side_);
    SimGpu::abandon_capture(side_);
  });
  EXPECT_EQ(router_.pool_for(stream_), kOther);
  let_end();
}

TEST_F(GoneGraphTest, ItsFilterIsNotCalledIfItsStreamCapturedAlready) {
  fail_elsewhere(stream_, [] {});
  EXPECT_EQ(router_.pool_for(stream_), kOther);
  let_end();
}

TEST_F(GoneGraphTest, ACaptureOfAnotherGraphOnItsStreamIsNotItsOwn) {
  fail_elsewhere(side_, [this] {
    begin_capture(side_);
    EXPECT_EQ(router_.pool_for(side_), kGraphPool);
    SimGpu::abandon_capture(side_);
  });
  SimGpu::begin_capture(side_);  // unannounced, as of a library
  EXPECT_EQ(router_.pool_for(side_), kDefaultPool);
  SimGpu::end_capture(side_);
  let_end();
}

TEST_F(PoolRouterTest, AnAbandonedCaptureIsDroppedWhenItsThreadAllocates) {
  ASSERT_TRUE(router_.begin(kGraphPool, captured_with(stream_), stream_));
  SimGpu::begin_capture(stream_);
  EXPECT_EQ(router_.pool_for(stream_), kGraphPool);
  SimGpu::abandon_capture(stream_);
  EXPECT_EQ(router_.pool_for(side_), kDefaultPool);
  EXPECT_EQ(device_->pools().use_count(kGraphPool), 0) << "its pool is released";
  EXPECT_FALSE(router_.has_captures());
  EXPECT_FALSE(router_.any());
  EXPECT_FALSE(router_.end(kGraphPool));
}

TEST_F(PoolRouterTest, AnAbandonedCaptureIsDroppedWhenItsThreadAsksForThat) {
  ASSERT_TRUE(router_.begin(kGraphPool, captured_with(stream_), stream_));
  SimGpu::begin_capture(stream_);
  router_.release_failed_captures();
  EXPECT_EQ(device_->pools().use_count(kGraphPool), 1) << "it runs";
  SimGpu::abandon_capture(stream_);
  on_another_thread([this] { router_.release_failed_captures(); });
  EXPECT_EQ(device_->pools().use_count(kGraphPool), 1);
  router_.release_failed_captures();
  EXPECT_EQ(device_->pools().use_count(kGraphPool), 0);
  EXPECT_FALSE(router_.any());
}

TEST_F(PoolRouterTest, AnAbandonedCaptureIsDroppedByTheThreadsNextBegin) {
  ASSERT_TRUE(router_.begin(kGraphPool, captured_with(stream_), stream_));
  SimGpu::begin_capture(stream_);
  SimGpu::abandon_capture(stream_);
  ASSERT_TRUE(router_.begin(kOther, captured_with(stream_), stream_));
  EXPECT_EQ(device_->pools().use_count(kGraphPool), 0) << "its pool is released";
  SimGpu::begin_capture(stream_);
  EXPECT_EQ(router_.pool_for(stream_), kOther);
  SimGpu::end_capture(stream_);
  EXPECT_TRUE(router_.end(kOther));
  EXPECT_FALSE(router_.end(kGraphPool));
}

TEST_F(PoolRouterTest, DroppingAnAbandonedCaptureShowsInTheCountsAlsoWhenTheNextIsRefused) {
  ASSERT_TRUE(router_.begin(kOther, only(side_), side_));
  ASSERT_TRUE(router_.begin(kGraphPool, captured_with(stream_), stream_));
  EXPECT_TRUE(router_.has_captures());
  SimGpu::begin_capture(stream_);
  SimGpu::abandon_capture(stream_);
  EXPECT_FALSE(router_.begin(kOther, only(side_), side_)) << "this diversion exists already";
  EXPECT_FALSE(router_.has_captures());
  EXPECT_TRUE(router_.end(kOther));
  EXPECT_FALSE(router_.any());
}

TEST_F(PoolRouterTest, AProgramsFilterOfAnotherStreamServesThatStream) {
  ASSERT_TRUE(
      router_.begin(kGraphPool, only(side_), stream_, PoolHold::kHere, FilterOwner::kProgram));
  EXPECT_EQ(router_.pool_for(side_), kGraphPool) << "although it does not capture";
  EXPECT_EQ(router_.pool_for(stream_), kDefaultPool);
  ASSERT_TRUE(router_.begin(kOther, only(stream_), stream_));
  EXPECT_EQ(router_.pool_for(side_), kGraphPool) << "it was not abandoned";
  EXPECT_TRUE(router_.end(kGraphPool));
}

TEST_F(PoolRouterTest, APoolOfAnotherAllocatorIsNotHeldHere) {
  ASSERT_TRUE(router_.begin(kOther, captured_with(stream_), stream_, PoolHold::kElsewhere));
  EXPECT_EQ(device_->pools().use_count(kOther), -1);
  SimGpu::begin_capture(stream_);
  EXPECT_EQ(router_.pool_for(stream_), kOther);
  SimGpu::abandon_capture(stream_);
  ASSERT_TRUE(router_.begin(kGraphPool, captured_with(stream_), stream_));
  EXPECT_EQ(device_->pools().use_count(kOther), -1) << "so dropping it releases nothing";
  EXPECT_TRUE(router_.end(kGraphPool));
}

TEST_F(PoolRouterTest, TheSamePoolCanBeginAgainAfterAFailedCapture) {
  ASSERT_TRUE(router_.begin(kGraphPool, captured_with(stream_), stream_));
  SimGpu::begin_capture(stream_);
  SimGpu::abandon_capture(stream_);
  EXPECT_TRUE(router_.begin(kGraphPool, captured_with(stream_), stream_));
  EXPECT_EQ(device_->pools().use_count(kGraphPool), 1);
}

TEST_F(PoolRouterTest, AnyThreadDropsAFailedCaptureOfAnEndedThread) {
  for (const bool begins_again : {true, false}) {
    on_another_thread([this] {
      ASSERT_TRUE(router_.begin(kGraphPool, captured_with(stream_), stream_));
      SimGpu::begin_capture(stream_);
      SimGpu::abandon_capture(stream_);
    });
    EXPECT_EQ(router_.pool_for(stream_), kDefaultPool);
    EXPECT_EQ(device_->pools().use_count(kGraphPool), 1) << "an allocation is too early";
    if (begins_again) {
      EXPECT_TRUE(router_.begin(kGraphPool, captured_with(stream_), stream_));
      EXPECT_TRUE(router_.end(kGraphPool));
      device_->pools().release(kGraphPool);
    } else {
      router_.release_failed_captures();
    }
    EXPECT_EQ(device_->pools().use_count(kGraphPool), 0);
    EXPECT_FALSE(router_.any());
  }
}

// A thread that worked in the capture of another one may be between the end of the capture and of
// its diversion.
TEST_F(PoolRouterTest, ACaptureThatAnotherThreadMayBeEndingIsNotDropped) {
  for (const bool is_failed : {false, true}) {
    PoolRouter router(*device_, FailedGraphs::kForget, std::chrono::hours(1));
    ASSERT_TRUE(router.begin(kGraphPool, captured_with(stream_), stream_));
    SimGpu::begin_capture(stream_, CU_STREAM_CAPTURE_MODE_RELAXED);
    on_another_thread([&] { EXPECT_EQ(router.pool_for(stream_), kGraphPool); });
    SimGpu::end_capture(stream_);
    EXPECT_EQ(router.pool_for(side_), kDefaultPool);
    router.release_failed_captures();
    EXPECT_EQ(router.captures(), 0) << "it is over";
    EXPECT_EQ(device_->pools().use_count(kGraphPool), 1);
    if (is_failed) {
      EXPECT_TRUE(router.begin(kGraphPool, captured_with(stream_), stream_));
      EXPECT_EQ(device_->pools().use_count(kGraphPool), 1) << "of the later capture";
      EXPECT_EQ(router.captures(), 1);
    }
    EXPECT_TRUE(router.end(kGraphPool));
    device_->pools().release(kGraphPool);
  }
}

// Between the end of a capture and of its diversion the graph's memory gets its pages.
TEST_F(PoolRouterTest, ACaptureThatAnotherThreadIsEndingIsNotDropped) {
  PoolRouter router(*device_, FailedGraphs::kForget, std::chrono::hours(1));
  ASSERT_TRUE(router.begin(kGraphPool, captured_with(stream_), stream_));
  SimGpu::begin_capture(stream_, CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_EQ(router.pool_for(stream_), kGraphPool);
  SimGpu::end_capture(stream_);
  on_another_thread([&] { router.note_capture_over(kGraphPool); });
  EXPECT_EQ(router.pool_for(side_), kDefaultPool);
  router.release_failed_captures();
  EXPECT_EQ(device_->pools().use_count(kGraphPool), 1);
  EXPECT_TRUE(router.end(kGraphPool));
  device_->pools().release(kGraphPool);
}

// While `end` runs on the thread whose capture is over, another stream asks for its pool. That does not
// wait for the hour.
class PoolRouterWaitTest : public PoolRouterTest {
 protected:
  template <typename End>
  void ask_while(const End& end) {
    ASSERT_TRUE(router_.begin(kGraphPool, captured_with(stream_), stream_));
    SimGpu::begin_capture(stream_, CU_STREAM_CAPTURE_MODE_RELAXED);
    SimGpu::end_capture(stream_);
    std::thread other([&] {
      SimGpu::make_current();
      while (router_.captures() != 0) {  // until the first thread has seen it
        std::this_thread::yield();
      }
      end();
    });
    EXPECT_EQ(router_.pool_for(side_), kDefaultPool);
    other.join();
  }

  PoolRouter router_{*device_, FailedGraphs::kForget, std::chrono::hours(1), std::chrono::hours(1)};
};

// The thread that ends a capture may have allocated nothing in it, and is about to note its end.
TEST_F(PoolRouterWaitTest, AThreadThatHasJustEndedACaptureMayNoteThat) {
  ask_while([&] { router_.note_capture_over(kGraphPool); });
  EXPECT_EQ(device_->pools().use_count(kGraphPool), 1);
  EXPECT_TRUE(router_.end(kGraphPool));
  device_->pools().release(kGraphPool);
}

TEST_F(PoolRouterWaitTest, TheEndOfADiversionWakesAThreadThatWaitsForIt) {
  ask_while([&] { EXPECT_TRUE(router_.end(kGraphPool)); });
  EXPECT_TRUE(device_->pools().release(kGraphPool));
}

TEST_F(PoolRouterTest, ACaptureThatAnotherThreadDoesNotEndInTimeHasFailed) {
  PoolRouter router(*device_, FailedGraphs::kForget, std::chrono::milliseconds(1));
  ASSERT_TRUE(router.begin(kGraphPool, captured_with(stream_), stream_));
  SimGpu::begin_capture(stream_, CU_STREAM_CAPTURE_MODE_RELAXED);
  on_another_thread([&] { EXPECT_EQ(router.pool_for(stream_), kGraphPool); });
  SimGpu::abandon_capture(stream_);
  router.release_failed_captures();
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  router.release_failed_captures();
  EXPECT_EQ(device_->pools().use_count(kGraphPool), 0);
  EXPECT_FALSE(router.any());
}

// With or without an allocation in the failed capture.
TEST_F(PoolRouterTest, AnotherThreadBeginsAfterAFailedCapture) {
  for (const bool has_served : {true, false}) {
    for (const bool is_capture : {true, false}) {
      PoolRouter router(*device_, FailedGraphs::kForget, std::chrono::milliseconds(1));
      ASSERT_TRUE(router.begin(kGraphPool, captured_with(stream_), stream_));
      SimGpu::begin_capture(stream_);
      if (has_served) {
        EXPECT_EQ(router.pool_for(stream_), kGraphPool);
      }
      SimGpu::abandon_capture(stream_);
      on_another_thread([&] {
        EXPECT_TRUE(
            router.begin(kGraphPool, is_capture ? captured_with(side_) : only(side_), side_));
      });
      EXPECT_EQ(device_->pools().use_count(kGraphPool), 1) << "of the later diversion";
      EXPECT_EQ(router.captures(), is_capture ? 1 : 0);
      EXPECT_EQ(router.take_released(),
                (std::vector<PoolRouter::Released>{{kGraphPool, PoolHold::kHere, false}}));
      EXPECT_EQ(router.pool_for(side_), is_capture ? kDefaultPool : kGraphPool);
      EXPECT_TRUE(router.end(kGraphPool));
      EXPECT_TRUE(device_->pools().release(kGraphPool));
    }
  }
}

TEST_F(PoolRouterTest, AnotherThreadWaitsForTheEndOfADiversion) {
  PoolRouter router(*device_, FailedGraphs::kForget, std::chrono::hours(1));
  ASSERT_TRUE(router.begin(kGraphPool, captured_with(stream_), stream_));
  SimGpu::begin_capture(stream_, CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_EQ(router.pool_for(stream_), kGraphPool);
  SimGpu::end_capture(stream_);
  std::thread other([&] {
    SimGpu::make_current();
    EXPECT_TRUE(router.begin(kGraphPool, only(side_), side_));
  });
  EXPECT_TRUE(router.end(kGraphPool));
  other.join();
  EXPECT_EQ(device_->pools().use_count(kGraphPool), 2) << "both hold it";
  EXPECT_TRUE(router.take_released().empty());
  EXPECT_TRUE(router.end(kGraphPool));
}

TEST_F(PoolRouterTest, AnotherThreadIsRefusedOnceTheCaptureBegins) {
  PoolRouter router(*device_, FailedGraphs::kForget, std::chrono::hours(1));
  ASSERT_TRUE(router.begin(kGraphPool, captured_with(stream_), stream_));
  std::thread other([&] {
    SimGpu::make_current();
    EXPECT_FALSE(router.begin(kGraphPool, only(side_), side_));
  });
  SimGpu::begin_capture(stream_, CU_STREAM_CAPTURE_MODE_RELAXED);
  other.join();
  EXPECT_EQ(router.pool_for(stream_), kGraphPool);
  SimGpu::end_capture(stream_);
  EXPECT_TRUE(router.end(kGraphPool));
}

// A thread that waited for a diversion and was refused has not used up the patience of the next.
TEST_F(PoolRouterTest, ARefusedThreadWaitsAgainForTheEndOfTheCapture) {
  constexpr auto kPatience = std::chrono::seconds(1);
  PoolRouter router(*device_, FailedGraphs::kForget, kPatience);
  std::atomic<int> looks{0};
  ASSERT_TRUE(router.begin(kGraphPool, captured_with(stream_), stream_));
  testing::FaultyApi::set_watcher([&, first = std::this_thread::get_id()](const char* symbol) {
    looks += std::this_thread::get_id() != first &&
                     std::string_view(symbol) == "cuStreamGetCaptureInfo_v3"
                 ? 1
                 : 0;
  });
  // Begins on another thread. `then` runs here once that thread waits, or has not waited.
  const auto begin_and = [&](bool expected, auto then) {
    looks = 0;
    std::atomic<bool> has_begun{false};
    std::thread other([&] {
      SimGpu::make_current();
      EXPECT_EQ(router.begin(kGraphPool, only(side_), side_), expected);
      has_begun = true;
    });
    while (looks < 2 && !has_begun) {
      std::this_thread::yield();
    }
    then();
    other.join();
  };
  begin_and(false, [&] { SimGpu::begin_capture(stream_, CU_STREAM_CAPTURE_MODE_RELAXED); });
  std::this_thread::sleep_for(kPatience);
  SimGpu::end_capture(stream_);
  begin_and(true, [&] { EXPECT_TRUE(router.end(kGraphPool)); });
  testing::FaultyApi::set_watcher(nullptr);
  EXPECT_TRUE(router.take_released().empty()) << "the capture has succeeded";
  EXPECT_EQ(device_->pools().use_count(kGraphPool), 2) << "both hold it";
  EXPECT_TRUE(router.end(kGraphPool));
}

TEST_F(PoolRouterTest, ARunningCaptureOfAnEndedThreadIsNotDropped) {
  on_another_thread([this] {
    ASSERT_TRUE(router_.begin(kGraphPool, captured_with(stream_), stream_));
    SimGpu::begin_capture(stream_, CU_STREAM_CAPTURE_MODE_RELAXED);
  });
  EXPECT_FALSE(router_.begin(kGraphPool, captured_with(side_), side_));
  router_.release_failed_captures();
  EXPECT_EQ(router_.pool_for(stream_), kGraphPool);
  SimGpu::end_capture(stream_);
}

TEST_F(PoolRouterTest, ARunningCaptureOfThisThreadIsNotDropped) {
  ASSERT_TRUE(router_.begin(kGraphPool, captured_with(stream_), stream_));
  SimGpu::begin_capture(stream_, CU_STREAM_CAPTURE_MODE_RELAXED);
  ASSERT_TRUE(router_.begin(kOther, only(side_), side_));
  EXPECT_EQ(device_->pools().use_count(kGraphPool), 1);
  EXPECT_EQ(router_.pool_for(stream_), kGraphPool);
  SimGpu::end_capture(stream_);
}

TEST_F(PoolRouterTest, AnotherThreadsCaptureThatHasNotBegunYetIsNotDropped) {
  ASSERT_TRUE(router_.begin(kGraphPool, captured_with(stream_), stream_));
  on_another_thread([this] { ASSERT_TRUE(router_.begin(kOther, captured_with(side_), side_)); });
  EXPECT_EQ(device_->pools().use_count(kGraphPool), 1);
  SimGpu::begin_capture(stream_);
  EXPECT_EQ(router_.pool_for(stream_), kGraphPool);
  SimGpu::end_capture(stream_);
}

TEST_F(PoolRouterTest, AThreadsDiversionOutlivesTheCapturesInIt) {
  ASSERT_TRUE(router_.begin(kGraphPool, only(stream_), stream_));
  ASSERT_TRUE(router_.begin(kOther, captured_with(stream_), stream_));
  SimGpu::begin_capture(stream_);
  EXPECT_EQ(router_.pool_for(stream_), kOther);
  SimGpu::end_capture(stream_);
  EXPECT_TRUE(router_.end(kOther));
  EXPECT_EQ(router_.pool_for(stream_), kGraphPool);
}

class DiversionOfGoneStreamTest : public testing::GoneStreamFixture {
 protected:
  // Its capture has failed.
  void begin_and_abandon() {
    const auto accepts = [this](StreamId asked) {
      return device_->driver().capture_info(asked).status == CaptureStatus::kActive;
    };
    ASSERT_TRUE(router_.begin(kGraphPool, accepts, gone_));
    SimGpu::begin_capture(gone_);
    EXPECT_EQ(router_.pool_for(gone_), kGraphPool);
    SimGpu::abandon_capture(gone_);
  }

  PoolRouter router_{*device_};
};

TEST_F(DiversionOfGoneStreamTest, ItsStreamIsNotQueried) {
  begin_and_abandon();
  SimGpu::destroy_stream(gone_);
  EXPECT_EQ(router_.pool_for(stream_), kDefaultPool);
  router_.release_failed_captures();
  EXPECT_EQ(device_->pools().use_count(kGraphPool), 1) << "it could still be capturing";
}

TEST_F(DiversionOfGoneStreamTest, AnAllocationOfItsOwnShowsThatItIsThere) {
  begin_and_abandon();
  EXPECT_EQ(router_.pool_for(gone_), kDefaultPool);
  EXPECT_EQ(device_->pools().use_count(kGraphPool), 0);
  SimGpu::destroy_stream(gone_);
}

class MarkedCapturesTest : public PoolRouterTest {
 protected:
  MarkedCapturesTest() : MarkedCapturesTest(std::make_shared<CaptureCount>()) {}

  // Private pools release nothing while a capture counts as running.
  bool captures_count() {
    device_->pools().hold(kOther);
    free(allocate(testing::kPageBytes, side_, kOther));
    device_->pools().release(kOther);
    device_->empty_cache();
    return device_->pools().use_count(kOther) == 0;
  }

  const std::shared_ptr<CaptureCount> captures_of_process_;

 private:
  explicit MarkedCapturesTest(const std::shared_ptr<CaptureCount>& captures)
      : PoolRouterTest({.captures_of_process = captures}), captures_of_process_(captures) {}
};

TEST_F(MarkedCapturesTest, WithoutMarksACaptureCountsFromItsDiversionOn) {
  ASSERT_TRUE(router_.begin(kGraphPool, captured_with(stream_), stream_));
  EXPECT_TRUE(captures_count());
  EXPECT_TRUE(router_.end(kGraphPool));
  EXPECT_FALSE(captures_count());
}

// Pages leave arenas only behind points, which an announced capture forbids. It must forbid them
// from its diversion on, because a mark is set after the capture has begun.
TEST_F(MarkedCapturesTest, ACaptureIsAnnouncedBeforeItIsMarked) {
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(router_.begin(kGraphPool, captured_with(stream_), stream_));
    EXPECT_TRUE(captures_count());
    router_.mark_capture_begin();
    EXPECT_TRUE(captures_count());
    router_.mark_capture_end();
    EXPECT_TRUE(router_.end(kGraphPool));
    EXPECT_FALSE(captures_count());
  }
}

TEST_F(MarkedCapturesTest, AMarkLeftBehindEndsWithTheDiversion) {
  ASSERT_TRUE(router_.begin(kGraphPool, captured_with(stream_), stream_));
  router_.mark_capture_begin();
  EXPECT_TRUE(router_.end(kGraphPool));
  EXPECT_FALSE(captures_count());
  router_.mark_capture_end();
  router_.mark_capture_end();
  EXPECT_FALSE(captures_count());
}

// Each change is published at once: no later change may be needed for the device to see it.
TEST_F(MarkedCapturesTest, TheDeviceSeesEachBeginAndEnd) {
  struct Counts {
    int running;
    int announced;
  };
  const auto expect = [this](Counts expected, const char* after) {
    EXPECT_EQ(device_->parts().captures.load(), expected.running) << after;
    EXPECT_EQ(captures_of_process_->load(), expected.announced) << after;
  };
  ASSERT_TRUE(router_.begin(kGraphPool, captured_with(stream_), stream_));
  expect({1, 1}, "the first diversion, before any mark");
  SimGpu::begin_capture(stream_, CU_STREAM_CAPTURE_MODE_RELAXED);
  router_.mark_capture_begin();
  expect({1, 1}, "a mark");
  ASSERT_TRUE(router_.begin(kOther, captured_with(side_), side_));
  expect({1, 2}, "a diversion whose capture is not marked yet");
  SimGpu::begin_capture(side_, CU_STREAM_CAPTURE_MODE_RELAXED);
  router_.mark_capture_begin();
  expect({2, 2}, "its mark");
  SimGpu::end_capture(side_);
  router_.mark_capture_end();
  expect({1, 2}, "the end of a marked capture");
  router_.note_capture_over(kOther);
  expect({1, 1}, "its diversion's capture is over");
  EXPECT_TRUE(router_.end(kOther));
  expect({1, 1}, "the end of its diversion");
  SimGpu::end_capture(stream_);
  router_.mark_capture_end();
  expect({0, 1}, "the end of the last marked capture");
  EXPECT_TRUE(router_.end(kGraphPool));
  expect({0, 0}, "the end of the last diversion");
  ASSERT_TRUE(router_.begin(kGraphPool, captured_with(stream_), stream_));
  expect({0, 1}, "an unmarked capture after the first mark");
  EXPECT_TRUE(router_.end(kGraphPool));
}

TEST_F(MarkedCapturesTest, ADiversionOfAStreamIsNoCaptureWhateverIsMarked) {
  ASSERT_TRUE(router_.begin(kGraphPool, only(stream_), stream_));
  router_.mark_capture_begin();
  EXPECT_FALSE(captures_count());
  EXPECT_TRUE(router_.end(kGraphPool));
}

TEST_F(PoolRouterTest, AFailedCaptureThatOnlyEndsItsDiversionLosesItsPool) {
  ASSERT_TRUE(router_.begin(kOther, only(stream_), stream_));
  ASSERT_TRUE(router_.begin(kGraphPool, captured_with(stream_), stream_));
  EXPECT_TRUE(router_.end(kGraphPool, EndOfCapture::kFailed));
  EXPECT_EQ(device_->pools().use_count(kGraphPool), 0);
  // The failure of a capture does not end a diversion of a thread or stream.
  EXPECT_TRUE(router_.end(kOther, EndOfCapture::kFailed));
  EXPECT_EQ(device_->pools().use_count(kOther), 1);
  EXPECT_TRUE(device_->pools().release(kOther));
}

// The other steps of its end were refused.
TEST_F(PoolRouterTest, AnEndedCaptureDoesNotCountAndIsDroppedLikeAFailedOne) {
  ASSERT_TRUE(router_.begin(kGraphPool, captured_with(stream_), stream_));
  SimGpu::begin_capture(stream_);
  EXPECT_TRUE(router_.has_captures());
  SimGpu::end_capture(stream_);
  router_.note_capture_over(kGraphPool);
  router_.note_capture_over(kOther);  // there is none
  EXPECT_FALSE(router_.has_captures());
  EXPECT_TRUE(router_.any());
  EXPECT_EQ(device_->pools().use_count(kGraphPool), 1);
  EXPECT_EQ(router_.pool_for(stream_), kDefaultPool);
  EXPECT_FALSE(router_.any());
  EXPECT_EQ(device_->pools().use_count(kGraphPool), 0);
}

TEST_F(PoolRouterTest, AGraphThatCleansUpEndsItsDiversionItself) {
  PoolRouter diversions(*device_, FailedGraphs::kCleanUp);
  ASSERT_TRUE(diversions.begin(kGraphPool, captured_with(stream_), stream_));
  // The capture failed, and the thread begins the next one before the graph object is destroyed.
  ASSERT_TRUE(diversions.begin(kOther, captured_with(side_), side_));
  EXPECT_EQ(device_->pools().use_count(kGraphPool), 1);
  EXPECT_TRUE(diversions.end(kGraphPool));
  EXPECT_TRUE(device_->pools().release(kGraphPool));
  EXPECT_TRUE(diversions.end(kOther));
}

// Where the body of a conditional node begins and ends, a graph changes its filter.
TEST_F(PoolRouterTest, ACaptureThatGoesOnKeepsItsDiversion) {
  PoolRouter diversions(*device_, FailedGraphs::kCleanUp);
  EXPECT_FALSE(diversions.hand_over(kGraphPool)) << "there is none";
  ASSERT_TRUE(diversions.begin(kGraphPool, captured_with(stream_), stream_));
  EXPECT_FALSE(diversions.hand_over(kGraphPool)) << "its capture has not begun";
  SimGpu::begin_capture(stream_);
  EXPECT_FALSE(diversions.begin(kGraphPool, only(side_), stream_));
  EXPECT_TRUE(diversions.hand_over(kGraphPool));
  EXPECT_TRUE(diversions.is_handed_over(kGraphPool));
  EXPECT_TRUE(diversions.has_captures());
  ASSERT_TRUE(diversions.begin(kGraphPool, only(side_), stream_));
  EXPECT_FALSE(diversions.is_handed_over(kGraphPool));
  EXPECT_TRUE(diversions.has_captures());
  EXPECT_EQ(device_->pools().use_count(kGraphPool), 2) << "each begin adds a hold";
  EXPECT_TRUE(device_->pools().release(kGraphPool));
  SimGpu::end_capture(stream_);
  EXPECT_FALSE(diversions.hand_over(kGraphPool)) << "its capture has ended";
  EXPECT_TRUE(diversions.end(kGraphPool));
  EXPECT_FALSE(diversions.has_captures());
  EXPECT_TRUE(device_->pools().release(kGraphPool));
}

TEST_F(PoolRouterTest, ADiversionOfTheProgramIsNotHandedOver) {
  PoolRouter diversions(*device_, FailedGraphs::kCleanUp);
  SimGpu::begin_capture(stream_);
  ASSERT_TRUE(
      diversions.begin(kGraphPool, only(stream_), stream_, PoolHold::kHere, FilterOwner::kProgram));
  EXPECT_FALSE(diversions.hand_over(kGraphPool));
  EXPECT_TRUE(diversions.end(kGraphPool));
  SimGpu::end_capture(stream_);
  EXPECT_TRUE(device_->pools().release(kGraphPool));
}

TEST_F(PoolRouterTest, ReturnsTheReleasedPools) {
  ASSERT_TRUE(router_.begin(kGraphPool, captured_with(stream_), stream_));
  EXPECT_TRUE(router_.end(kGraphPool));
  EXPECT_TRUE(router_.take_released().empty()) << "the pool stays held";
  ASSERT_TRUE(router_.begin(kGraphPool, captured_with(stream_), stream_));
  EXPECT_TRUE(router_.end(kGraphPool, EndOfCapture::kFailed));
  ASSERT_TRUE(router_.begin(kOther, captured_with(side_), side_));
  router_.release_failed_captures();
  EXPECT_EQ(router_.take_released(),
            (std::vector<PoolRouter::Released>{{kGraphPool, PoolHold::kHere, true},
                                               {kOther, PoolHold::kHere, false}}));
  EXPECT_TRUE(router_.take_released().empty());
}

}  // namespace pool_router_test
}  // namespace ferro
