// Points of a device in a process whose work on another device may use its memory.
#include "ferro/core/streams/device_timeline.h"
#include "ferro/driver/error.h"
#include "support/device_fixture.h"
#include "support/faulty_api.h"
#include "support/sim_gpu.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace ferro::testing {
namespace timeline_devices_test {

constexpr DeviceId kSecond = 1;
const std::string kTwoDevices = std::string(SimGpu::kManual) + ",devices=2";

CUcontext context_of_second() {
  CUcontext context = nullptr;
  SimGpu::expect(SimGpu::api().primary_ctx_retain(&context, kSecond));
  return context;
}

StreamId make_stream_of_second(unsigned flags = CU_STREAM_NON_BLOCKING) {
  SimGpu::expect(SimGpu::api().ctx_set_current(context_of_second()));
  CUstream stream = nullptr;
  SimGpu::expect(SimGpu::api().stream_create(&stream, flags));
  SimGpu::make_current();
  return static_cast<StreamId>(reinterpret_cast<std::uint64_t>(stream));
}

// Queues work that is done only when the stream is finished.
void work_on(StreamId stream) {
  SimGpu::expect(SimGpu::api().launch_host_func(
      raw(stream), [](void*) {}, nullptr));
}

bool is_idle(StreamId stream) { return SimGpu::api().stream_query(raw(stream)) == CUDA_SUCCESS; }

class TimelineDevicesTest : public ::testing::Test {
 protected:
  TimelineDevicesTest() { FaultyApi::reset(); }
  ~TimelineDevicesTest() override { FaultyApi::reset(); }

  SimGpu gpu_{4, kTwoDevices};
  const StreamId stream_ = SimGpu::make_stream();
  const StreamId other_ = SimGpu::make_stream();
  const StreamId second_ = make_stream_of_second();
  Driver driver_{FaultyApi::table(), 0};
  EventPool events_{driver_};
  CaptureCount captures_;
  std::vector<StreamId> known_;
  DeviceTimeline timeline_{
      driver_, events_, captures_, [this](std::span<StreamId> to) {
        return static_cast<std::size_t>(std::ranges::copy(known_, to.begin()).out - to.begin());
      }};
};

TEST_F(TimelineDevicesTest, AnEpochPassesWithTheWorkOfAllDevices) {
  work_on(second_);
  const Epoch freed = timeline_.now();
  ASSERT_TRUE(timeline_.record());
  work_on(second_);
  SimGpu::finish(stream_);
  EXPECT_LT(timeline_.update(), freed);
  EXPECT_EQ(timeline_.points(), 1U);
  SimGpu::finish(second_);
  EXPECT_EQ(timeline_.update(), freed);
  EXPECT_EQ(timeline_.points(), 0U);
}

TEST_F(TimelineDevicesTest, AnEpochPassesWithTheWorkOfItsOwnDeviceToo) {
  work_on(stream_);
  const Epoch freed = timeline_.now();
  ASSERT_TRUE(timeline_.record());
  SimGpu::finish(second_);
  EXPECT_LT(timeline_.update(), freed);
  SimGpu::finish(stream_);
  EXPECT_EQ(timeline_.update(), freed);
}

TEST_F(TimelineDevicesTest, TheHostWaitsForAllDevices) {
  work_on(second_);
  const Epoch freed = timeline_.now();
  std::thread other([this] {
    SimGpu::make_current();
    SimGpu::finish(second_);
  });
  EXPECT_TRUE(timeline_.wait_for_all());
  EXPECT_TRUE(is_idle(second_));
  EXPECT_EQ(timeline_.passed(), freed);
  other.join();
}

// Its kernel may wait for what this thread gives its own device next.
TEST_F(TimelineDevicesTest, TheHostGivesUpWaitingForAnotherDevice) {
  DeviceTimeline impatient(driver_, events_, captures_, nullptr, std::chrono::milliseconds(1));
  work_on(stream_);
  work_on(second_);
  const Epoch freed = impatient.now();
  EXPECT_FALSE(impatient.wait(freed));
  EXPECT_TRUE(is_idle(stream_)) << "its own device is waited for";
  EXPECT_FALSE(is_idle(second_));
  EXPECT_FALSE(impatient.has_passed(freed));
  SimGpu::finish(second_);
  EXPECT_TRUE(impatient.wait(freed));
}

TEST_F(TimelineDevicesTest, AWaitSoonAfterOneThatWasGivenUpIsBrief) {
  DeviceTimeline timeline(driver_, events_, captures_, nullptr, std::chrono::seconds(1));
  work_on(second_);
  EXPECT_FALSE(timeline.wait_for_all());
  const std::uint64_t queries = driver_.calls().event_query;
  EXPECT_FALSE(timeline.wait(timeline.recorded()));
  EXPECT_LE(driver_.calls().event_query, queries + 101) << "5 ms with pauses of 50 us";
  SimGpu::finish(second_);
  EXPECT_TRUE(timeline.wait(timeline.recorded()));
}

// The other device's work may be its part of a collective, and wait for this device's part behind
// the stream.
TEST_F(TimelineDevicesTest, NoStreamWaitsForWorkOfOtherDevices) {
  work_on(stream_);
  const Epoch early = timeline_.now();
  ASSERT_TRUE(timeline_.record());
  EXPECT_EQ(timeline_.last_orderable(), early) << "the other device is idle";
  work_on(second_);
  const Epoch late = timeline_.now();
  ASSERT_TRUE(timeline_.record());
  EXPECT_EQ(timeline_.last_orderable(), early);
  EXPECT_FALSE(timeline_.order_before(late, other_));
  EXPECT_TRUE(timeline_.order_before(early, other_));
  EXPECT_EQ(driver_.calls().stream_wait, 1U);
  EXPECT_FALSE(is_idle(second_));
  SimGpu::finish(second_);
  EXPECT_LT(timeline_.update(), early);
  EXPECT_EQ(timeline_.last_orderable(), late);
  EXPECT_TRUE(timeline_.order_before(late, other_));
  work_on(other_);
  SimGpu::finish(other_);
  EXPECT_TRUE(is_idle(stream_));
  EXPECT_EQ(driver_.calls().event_wait, 0U);
}

TEST_F(TimelineDevicesTest, AReplacedPointLeavesEarlierEpochsToStreams) {
  work_on(stream_);
  for (int i = 0; i < 256; ++i) {
    ASSERT_TRUE(timeline_.record());
  }
  const Epoch early = timeline_.last_orderable();
  EXPECT_EQ(early, timeline_.recorded());
  work_on(second_);
  ASSERT_TRUE(timeline_.record());
  EXPECT_EQ(timeline_.points(), 256U);
  EXPECT_TRUE(timeline_.order_before(early, other_));
  EXPECT_FALSE(timeline_.order_before(timeline_.recorded(), other_));
  work_on(other_);
  SimGpu::finish(other_);
  EXPECT_TRUE(is_idle(stream_));
  EXPECT_FALSE(is_idle(second_));
}

// The contexts that are current when pinned host memory is freed.
std::set<CUcontext> contexts_waited_for(DeviceTimeline& timeline) {
  std::set<CUcontext> found;
  FaultyApi::set_watcher([&](const char* symbol) {
    if (std::string_view(symbol) == "cuMemFreeHost") {
      CUcontext current = nullptr;
      SimGpu::api().ctx_get_current(&current);
      found.insert(current);
    }
  });
  EXPECT_TRUE(timeline.wait_during_captures());
  FaultyApi::set_watcher(nullptr);
  return found;
}

TEST_F(TimelineDevicesTest, AWaitDuringCapturesGivesUpOnOtherDevices) {
  std::promise<void> release;
  const std::shared_future<void> released = release.get_future().share();
  const CUcontext second = context_of_second();
  captures_.set(1);
  FaultyApi::set_watcher([&](const char* symbol) {
    CUcontext current = nullptr;
    SimGpu::api().ctx_get_current(&current);
    if (std::string_view(symbol) == "cuMemFreeHost" && current == second) {
      released.wait();
    }
  });
  {
    DeviceTimeline impatient(driver_, events_, captures_, nullptr, std::chrono::milliseconds(1));
    const Epoch freed = impatient.now();
    EXPECT_FALSE(impatient.wait_during_captures());
    EXPECT_FALSE(impatient.has_passed(freed));
    release.set_value();
    EXPECT_TRUE(impatient.wait_during_captures(DeviceTimeline::OfOthers::kUnlimited));
    EXPECT_TRUE(impatient.has_passed(freed));
  }  // which waits for the thread
  FaultyApi::set_watcher(nullptr);
}

TEST_F(TimelineDevicesTest, AWaitDuringCapturesCoversAllDevices) {
  captures_.set(1);
  SimGpu::begin_capture(other_);
  work_on(second_);
  const Epoch freed = timeline_.now();
  const std::set<CUcontext> contexts = contexts_waited_for(timeline_);
  EXPECT_EQ(contexts.size(), 2U);
  EXPECT_TRUE(contexts.contains(context_of_second()));
  EXPECT_TRUE(timeline_.has_passed(freed));
  EXPECT_EQ(timeline_.last_orderable(), freed);
  SimGpu::end_capture(other_);  // it was not invalidated
  EXPECT_TRUE(is_idle(second_));
}

TEST_F(TimelineDevicesTest, AnUnlimitedWaitDuringCapturesCoversAllDevices) {
  captures_.set(1);
  work_on(second_);
  EXPECT_FALSE(is_idle(second_));
  EXPECT_TRUE(timeline_.wait_during_captures(DeviceTimeline::OfOthers::kUnlimited));
  EXPECT_TRUE(is_idle(second_));
}

TEST_F(TimelineDevicesTest, AnAnnouncedCaptureOfAnotherDeviceSurvives) {
  captures_.set(1);
  SimGpu::begin_capture(second_);
  EXPECT_FALSE(timeline_.record());
  EXPECT_FALSE(timeline_.wait(timeline_.now()));
  SimGpu::end_capture(second_);  // it was not invalidated
  captures_.set(0);
  EXPECT_TRUE(timeline_.record());
}

TEST_F(TimelineDevicesTest, AnUnannouncedCaptureOfABlockingStreamElsewhereSurvives) {
  const StreamId blocking = make_stream_of_second(CU_STREAM_DEFAULT);
  SimGpu::begin_capture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_FALSE(timeline_.record());
  SimGpu::end_capture(blocking);  // it was not invalidated
  EXPECT_TRUE(timeline_.record());
}

TEST_F(TimelineDevicesTest, OnlyTheFirstUnannouncedCaptureElsewhereFails) {
  Driver driver_of_second(FaultyApi::table(), kSecond);
  EventPool events_of_second(driver_of_second);
  DeviceTimeline timeline_of_second(driver_of_second, events_of_second, captures_, nullptr);
  work_on(stream_);
  const Epoch freed = timeline_.now();
  SimGpu::begin_capture(second_, CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_FALSE(timeline_.record());
  SimGpu::abandon_capture(second_);
  EXPECT_FALSE(timeline_.has_points());
  EXPECT_FALSE(timeline_of_second.has_points()) << "nor do its own points disturb the next one";
  SimGpu::begin_capture(second_, CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_FALSE(timeline_.record());
  EXPECT_FALSE(timeline_of_second.record());
  EXPECT_LT(timeline_.update(), freed) << "the device's event is not enough";
  EXPECT_TRUE(timeline_.wait(freed));
  EXPECT_TRUE(is_idle(stream_));
  SimGpu::end_capture(second_);  // it was not invalidated
}

// Each driver call fails in turn; later waits still include the other device.
TEST_F(TimelineDevicesTest, AfterARefusalEpochsStillWaitForAllDevices) {
  work_on(second_);
  work_on(stream_);
  const auto use_timeline = [this] {
    static_cast<void>(timeline_.record());
    timeline_.update();
    static_cast<void>(timeline_.order_before(timeline_.last_orderable(), other_));
  };
  std::map<std::string, int> refused;
  for (const char* symbol :
       {"cuEventCreate", "cuStreamIsCapturing", "cuCtxRecordEvent", "cuEventQuery"}) {
    for (std::uint64_t call : {1U, 2U}) {
      const Epoch freed = timeline_.now();
      FaultyApi::fail_only(symbol, call, CUDA_ERROR_UNKNOWN);
      try {
        use_timeline();
      } catch (const DriverError&) {
        ++refused[symbol];
      }
      FaultyApi::reset();
      use_timeline();
      EXPECT_LT(timeline_.passed(), freed) << symbol << call;
      EXPECT_LT(timeline_.last_orderable(), freed) << symbol << call;
    }
  }
  EXPECT_EQ(refused, (std::map<std::string, int>{{"cuStreamIsCapturing", 2},
                                                 {"cuEventCreate", 2},
                                                 {"cuCtxRecordEvent", 2},
                                                 {"cuEventQuery", 2}}));
  SimGpu::finish(second_);
  timeline_.update();
  EXPECT_EQ(timeline_.last_orderable(), timeline_.recorded());
  SimGpu::finish(stream_);
  EXPECT_EQ(timeline_.update(), timeline_.recorded());
}

TEST_F(TimelineDevicesTest, ARefusedHostWaitLeavesTheEpochOpen) {
  work_on(second_);
  const Epoch freed = timeline_.now();
  // The second query is that of the wait.
  for (const auto& [symbol, call] :
       {std::pair("cuEventSynchronize", 1U), std::pair("cuEventQuery", 2U)}) {
    FaultyApi::fail_only(symbol, call, CUDA_ERROR_UNKNOWN);
    EXPECT_THROW(timeline_.wait_for_all(), DriverError);
    EXPECT_FALSE(timeline_.has_passed(freed));
  }
  for (std::uint64_t call : {1U, 2U}) {
    FaultyApi::fail_only("cuMemFreeHost", call, CUDA_ERROR_UNKNOWN);
    EXPECT_THROW(timeline_.wait_during_captures(), DriverError);
    EXPECT_FALSE(timeline_.has_passed(freed));
  }
  FaultyApi::reset();
  SimGpu::finish(second_);
  EXPECT_TRUE(timeline_.wait(freed));
  timeline_.update();
  FaultyApi::fail_only("cuEventCreate", 0, CUDA_SUCCESS);
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(timeline_.record());
    timeline_.update();
  }
  EXPECT_EQ(FaultyApi::calls(), 0U) << "a failed wait keeps no events";
}

// After an error such as a failed assertion of a kernel, every call about that device's context fails.
TEST_F(TimelineDevicesTest, ADeviceThatIsLostHoldsUpNothing) {
  for (const auto& [symbol, call] : std::map<std::string, std::uint64_t>{
           {"cuCtxRecordEvent", 2}, {"cuStreamIsCapturing", 2}, {"cuEventQuery", 1}}) {
    SCOPED_TRACE(symbol);
    const Epoch freed = timeline_.now();
    FaultyApi::fail_only(symbol, call, CUDA_ERROR_ASSERT);
    ASSERT_TRUE(timeline_.record());
    SimGpu::finish(stream_);
    SimGpu::finish(second_);
    EXPECT_EQ(timeline_.update(), freed);
    EXPECT_STREQ(FaultyApi::failed(), symbol.c_str());
    FaultyApi::fail_only(symbol, call, CUDA_ERROR_UNKNOWN);
    EXPECT_THROW(timeline_.record() && timeline_.update() != 0, DriverError);
    FaultyApi::reset();
    timeline_.record();
    timeline_.update();
  }
}

// The second device has no context until a test makes a stream there.
class TimelineOfFirstTest : public ::testing::Test {
 protected:
  TimelineOfFirstTest() { FaultyApi::reset(); }
  ~TimelineOfFirstTest() override { FaultyApi::reset(); }
  // The driver calls of a point that is recorded and queried.
  std::uint64_t calls_of_point() {
    FaultyApi::reset();
    EXPECT_TRUE(timeline_.record());
    timeline_.update();
    return FaultyApi::calls();
  }

  SimGpu gpu_{4, kTwoDevices};
  const StreamId stream_ = SimGpu::make_stream();
  Driver driver_{FaultyApi::table(), 0};
  EventPool events_{driver_};
  CaptureCount captures_;
  DeviceTimeline timeline_{driver_, events_, captures_, nullptr};
};

TEST_F(TimelineOfFirstTest, PointsFromBeforeTheContextAreOfOneDevice) {
  work_on(stream_);
  const Epoch before = timeline_.now();
  ASSERT_TRUE(timeline_.record());
  const StreamId second = make_stream_of_second();
  work_on(second);
  const Epoch after = timeline_.now();
  ASSERT_TRUE(timeline_.record());
  EXPECT_EQ(SimGpu::calls("cuCtxRecordEvent"), 3U);
  SimGpu::finish(stream_);
  EXPECT_EQ(timeline_.update(), before);
  SimGpu::finish(second);
  EXPECT_EQ(timeline_.update(), after);
}

TEST_F(TimelineOfFirstTest, EventsOfPassedPointsServeLaterPoints) {
  ASSERT_TRUE(timeline_.record());
  timeline_.update();
  const StreamId second = make_stream_of_second();
  for (int i = 0; i < 100; ++i) {
    work_on(second);
    ASSERT_TRUE(timeline_.record());
    SimGpu::finish(second);
    EXPECT_EQ(timeline_.update(), timeline_.recorded());
  }
  EXPECT_EQ(SimGpu::calls("cuEventCreate"), 2U);
}

TEST_F(TimelineOfFirstTest, AnUnusedDeviceCostsOneQueryAndGetsNoContext) {
  calls_of_point();
  EXPECT_EQ(calls_of_point(), 4U) << "a context? A capture? Record and query the event";
  EXPECT_FALSE(driver_.has_primary_context(kSecond));
  const StreamId second = make_stream_of_second();
  calls_of_point();
  EXPECT_EQ(calls_of_point(), 8U)
      << "for each device: a capture? Record and query the event. The context changes twice";
  SimGpu::finish(second);
}

TEST_F(TimelineOfFirstTest, AWaitDuringCapturesFindsNewContexts) {
  EXPECT_EQ(contexts_waited_for(timeline_).size(), 1U);
  const StreamId second = make_stream_of_second();
  work_on(second);
  EXPECT_EQ(contexts_waited_for(timeline_).size(), 2U);
  EXPECT_TRUE(is_idle(second));
}

// A refused call leaves the context to the next point.
TEST_F(TimelineOfFirstTest, ARefusedContextIsFoundLater) {
  for (const char* symbol :
       {"cuDeviceGetCount", "cuDevicePrimaryCtxGetState", "cuDevicePrimaryCtxRetain"}) {
    SCOPED_TRACE(symbol);
    Driver driver(FaultyApi::table(), 0);
    static_cast<void>(driver.own_context());
    EventPool events(driver);
    DeviceTimeline timeline(driver, events, captures_, nullptr);
    const StreamId second = make_stream_of_second();
    work_on(second);
    const Epoch freed = timeline.now();
    FaultyApi::fail_only(symbol, 1, CUDA_ERROR_UNKNOWN);
    EXPECT_THROW(static_cast<void>(timeline.record()), DriverError);
    EXPECT_STREQ(FaultyApi::failed(), symbol);
    FaultyApi::reset();
    ASSERT_TRUE(timeline.record());
    EXPECT_LT(timeline.update(), freed);
    SimGpu::finish(second);
    EXPECT_EQ(timeline.update(), timeline.recorded());
    EXPECT_GE(timeline.passed(), freed);
  }
}

// The numbers of calls are those from before other devices were supported.
TEST(TimelineOfOneTest, OneDeviceIsCalledAsOften) {
  const SimGpu gpu(4);
  const StreamId stream = SimGpu::make_stream();
  const StreamId other = SimGpu::make_stream();
  Driver driver(FaultyApi::table(), 0);
  EventPool events(driver);
  CaptureCount captures;
  DeviceTimeline timeline(driver, events, captures, [&](std::span<StreamId> to) {
    to[0] = stream;
    to[1] = other;
    return 2;
  });
  ASSERT_TRUE(timeline.record());
  timeline.update();
  work_on(stream);
  FaultyApi::reset();
  ASSERT_TRUE(timeline.record());
  EXPECT_EQ(FaultyApi::calls(), 4U) << "three queries whether a stream captures, and the record";
  FaultyApi::reset();
  timeline.update();
  EXPECT_EQ(FaultyApi::calls(), 1U);
  FaultyApi::reset();
  ASSERT_TRUE(timeline.order_before(timeline.recorded(), other));
  EXPECT_EQ(FaultyApi::calls(), 2U) << "does the stream capture? It waits";
  FaultyApi::reset();
  ASSERT_TRUE(timeline.wait(timeline.recorded()));
  EXPECT_EQ(FaultyApi::calls(), 1U);
  FaultyApi::reset();
  timeline.wait_during_captures();
  EXPECT_EQ(FaultyApi::calls(), 2U) << "pinned memory is allocated and freed";
}

// The memory of one of two devices.
class MemoryOfDevicesTest : public DeviceFixture {
 protected:
  MemoryOfDevicesTest() : MemoryOfDevicesTest(std::make_shared<std::vector<StreamId>>()) {}

  const StreamId second_ = make_stream_of_second();
  const std::shared_ptr<std::vector<StreamId>> known_of_second_;

 private:
  explicit MemoryOfDevicesTest(const std::shared_ptr<std::vector<StreamId>>& known)
      : DeviceFixture(16, kTwoDevices, config_with(known)), known_of_second_(known) {}
  // The device queries these streams until it is destroyed, after the test's members.
  static AllocatorConfig config_with(const std::shared_ptr<std::vector<StreamId>>& known) {
    AllocatorConfig config;
    config.streams_of_others = [known](DeviceId own, std::span<StreamId> to) {
      EXPECT_EQ(own, 0);
      std::ranges::copy(*known, to.begin());
      return known->size();
    };
    return config;
  }
};

// Another device reads memory that its stream has freed. That stream waits for the reader before its
// own next request; other streams request memory meanwhile. The reader has no access as a peer.
TEST_F(MemoryOfDevicesTest, PagesLeaveTheirArenaAfterTheWorkOfAllDevices) {
  const DevicePtr block = allocate(4 * kPageBytes);
  work_on(second_);
  free(block);
  const std::size_t held = pages().held;
  const DevicePtr other = allocate(4 * kPageBytes, side_);
  EXPECT_EQ(pages().held, held + 4) << "memory grows";
  EXPECT_EQ(device_->driver().calls().stream_wait, 0U);
  EXPECT_FALSE(is_idle(second_));
  free(other);
  SimGpu::finish(second_);
  allocate(8 * kPageBytes, SimGpu::make_stream());
  EXPECT_EQ(pages().held, held + 4) << "the other device has finished";
}

// The stream waits for the recorded use of another block. This one has a second use, which ends later.
TEST_F(MemoryOfDevicesTest, APageLeavesBehindAUseThatItsStreamWaitedForEarlier) {
  const DevicePtr twice = allocate(4 * kPageBytes);
  const DevicePtr once = allocate(8 * kPageBytes);
  for (const DevicePtr block : {twice, once}) {
    EXPECT_TRUE(heap_of(block).record_stream(*addresses_.find(block), block, second_));
  }
  work_on(second_);
  free_used_by(twice, side_);
  free(once);
  EXPECT_EQ(allocate(8 * kPageBytes), once);
  EXPECT_EQ(device_->driver().calls().stream_wait, 1U);
  SimGpu::finish(side_);
  device_->collect_pending();
  EXPECT_FALSE(is_idle(second_));
  const StreamId third = SimGpu::make_stream();
  allocate(8 * kPageBytes, third);
  EXPECT_EQ(pages().held, 16U) << "the request has pages of the first block";
  SimGpu::finish(third);
  EXPECT_TRUE(is_idle(second_));
}

TEST_F(MemoryOfDevicesTest, AFullDeviceWaitsForTheWorkOfAllDevices) {
  const DevicePtr block = allocate(16 * kPageBytes);
  work_on(second_);
  free(block);
  std::thread other([this] {
    SimGpu::make_current();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    SimGpu::finish(second_);
  });
  allocate(16 * kPageBytes, side_);
  EXPECT_TRUE(is_idle(second_));
  other.join();
  EXPECT_EQ(device_->driver().calls().stream_wait, 0U);
}

TEST_F(MemoryOfDevicesTest, AnUnannouncedCaptureOfAKnownStreamElsewhereSurvives) {
  *known_of_second_ = {second_};
  SimGpu::begin_capture(second_, CU_STREAM_CAPTURE_MODE_RELAXED);
  allocate(kPageBytes);
  allocate(4 * kPageBytes);
  SimGpu::end_capture(second_);  // it was not invalidated
}

}  // namespace timeline_devices_test
}  // namespace ferro::testing
