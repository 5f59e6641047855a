#include "ferro/core/streams/device_timeline.h"

#include "ferro/driver/error.h"
#include "support/faulty_api.h"
#include "support/sim_gpu.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace ferro::testing {
namespace device_timeline_test {

class DeviceTimelineTest : public ::testing::Test {
 protected:
  DeviceTimelineTest() : gpu_(4), stream_(SimGpu::make_stream()), other_(SimGpu::make_stream()) {
    FaultyApi::reset();
    SimGpu::expect(SimGpu::api().mem_alloc(&memory_, kPageBytes));
  }
  ~DeviceTimelineTest() override { FaultyApi::reset(); }

  void work_on(StreamId stream) { SimGpu::fill(stream, DevicePtr{memory_}, 1, 1); }

  SimGpu gpu_;
  const StreamId stream_;
  const StreamId other_;
  CUdeviceptr memory_ = 0;
  Driver driver_{FaultyApi::table(), 0};
  EventPool events_{driver_};
  CaptureCount captures_;
  std::vector<StreamId> known_;
  DeviceTimeline timeline_{
      driver_, events_, captures_, [this](std::span<StreamId> to) {
        return static_cast<std::size_t>(std::ranges::copy(known_, to.begin()).out - to.begin());
      }};
};

TEST_F(DeviceTimelineTest, AnEpochPassesWithTheWorkThatTheDeviceHadWhenItsPointWasRecorded) {
  work_on(stream_);
  const Epoch freed = timeline_.now();
  ASSERT_TRUE(timeline_.record());
  EXPECT_EQ(timeline_.now(), freed + 1);
  work_on(other_);
  EXPECT_FALSE(timeline_.has_passed(freed));
  EXPECT_LT(timeline_.update(), freed);
  SimGpu::finish(stream_);
  EXPECT_EQ(timeline_.update(), freed);
  EXPECT_FALSE(timeline_.has_passed(timeline_.now()));
  EXPECT_EQ(timeline_.points(), 0U);
}

TEST_F(DeviceTimelineTest, APointCoversStreamsThatWereNeverNamed) {
  work_on(other_);
  const Epoch freed = timeline_.now();
  ASSERT_TRUE(timeline_.record());
  SimGpu::finish(stream_);
  EXPECT_FALSE(timeline_.update() >= freed);
  EXPECT_TRUE(timeline_.wait(freed));
  EXPECT_EQ(SimGpu::api().stream_query(raw(other_)), CUDA_SUCCESS);
}

TEST_F(DeviceTimelineTest, AWaitRecordsThePointThatItNeeds) {
  work_on(stream_);
  EXPECT_TRUE(timeline_.wait_for_all());
  EXPECT_EQ(SimGpu::api().stream_query(raw(stream_)), CUDA_SUCCESS);
  EXPECT_EQ(driver_.calls().event_wait, 1U);
}

TEST_F(DeviceTimelineTest, AStreamComesBehindAnEpochWithoutAWaitOfTheHost) {
  work_on(stream_);
  const Epoch freed = timeline_.now();
  EXPECT_FALSE(timeline_.order_before(freed, other_)) << "there is no point yet";
  ASSERT_TRUE(timeline_.record());
  ASSERT_TRUE(timeline_.order_before(freed, other_));
  work_on(other_);
  SimGpu::finish(other_);
  EXPECT_EQ(SimGpu::api().stream_query(raw(stream_)), CUDA_SUCCESS);
  EXPECT_EQ(driver_.calls().event_wait, 0U);
}

TEST_F(DeviceTimelineTest, NoPointIsRecordedWhileACaptureIsAnnounced) {
  work_on(stream_);
  ASSERT_TRUE(timeline_.record());
  const Epoch before = timeline_.last_waitable();
  captures_.set(1);
  SimGpu::begin_capture(other_);
  const Epoch during = timeline_.now();
  EXPECT_FALSE(timeline_.record());
  EXPECT_FALSE(timeline_.wait(during));
  EXPECT_FALSE(timeline_.order_before(during, stream_));
  EXPECT_EQ(timeline_.last_waitable(), before - 1);
  EXPECT_TRUE(timeline_.wait(before - 1));
  SimGpu::end_capture(other_);  // it was not invalidated
  captures_.set(0);
  EXPECT_TRUE(timeline_.wait(during));
}

TEST_F(DeviceTimelineTest, AnUnannouncedCaptureOfAKnownStreamSurvives) {
  known_ = {other_};
  SimGpu::begin_capture(other_, CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_FALSE(timeline_.record());
  SimGpu::end_capture(other_);  // it was not invalidated
  EXPECT_TRUE(timeline_.record());
  EXPECT_TRUE(timeline_.has_points());
}

TEST_F(DeviceTimelineTest, OnlyTheFirstUnannouncedCaptureOfAnUnknownStreamFails) {
  SimGpu::begin_capture(other_, CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_FALSE(timeline_.record());
  SimGpu::abandon_capture(other_);
  EXPECT_FALSE(timeline_.has_points());
  SimGpu::begin_capture(other_, CU_STREAM_CAPTURE_MODE_RELAXED);
  work_on(stream_);
  const Epoch freed = timeline_.now();
  EXPECT_FALSE(timeline_.record());
  EXPECT_LT(timeline_.update(), freed);
  EXPECT_TRUE(timeline_.wait(freed));
  EXPECT_TRUE(timeline_.has_passed(freed));
  EXPECT_EQ(SimGpu::api().stream_query(raw(stream_)), CUDA_SUCCESS);
  SimGpu::end_capture(other_);  // it was not invalidated
}

TEST_F(DeviceTimelineTest, AWaitBesideCapturesCoversStreamsThatWereNeverNamed) {
  const StreamId unknown = SimGpu::make_stream();
  ASSERT_TRUE(timeline_.record());
  captures_.set(1);
  SimGpu::begin_capture(other_);
  work_on(unknown);
  const Epoch freed = timeline_.now();
  EXPECT_FALSE(timeline_.wait(freed));
  timeline_.wait_during_captures();
  EXPECT_TRUE(timeline_.has_passed(freed));
  EXPECT_FALSE(timeline_.has_passed(timeline_.now()));
  EXPECT_EQ(timeline_.last_waitable(), freed);
  EXPECT_EQ(timeline_.points(), 0U);
  SimGpu::end_capture(other_);  // it was not invalidated
  EXPECT_EQ(SimGpu::api().stream_query(raw(unknown)), CUDA_SUCCESS);
  captures_.set(0);
  EXPECT_TRUE(timeline_.record());
}

TEST_F(DeviceTimelineTest, ARefusedWaitBesideCapturesLeavesTheEpochOpen) {
  captures_.set(1);
  work_on(stream_);
  const Epoch freed = timeline_.now();
  for (const char* call : {"cuMemHostAlloc", "cuMemFreeHost"}) {
    FaultyApi::fail_only(call, 1, CUDA_ERROR_UNKNOWN);
    EXPECT_THROW(timeline_.wait_during_captures(), DriverError) << call;
    FaultyApi::reset();
    EXPECT_FALSE(timeline_.has_passed(freed));
  }
  timeline_.wait_during_captures();
  EXPECT_TRUE(timeline_.has_passed(freed));
}

TEST_F(DeviceTimelineTest, WithoutContextPointsTheHostWaits) {
  CudaApi old = FaultyApi::table();
  old.ctx_record_event = nullptr;
  Driver driver(old, 0);
  EventPool events(driver);
  DeviceTimeline timeline(driver, events, captures_, nullptr);
  work_on(other_);
  const Epoch freed = timeline.now();
  EXPECT_FALSE(timeline.record());
  EXPECT_FALSE(timeline.order_before(freed, stream_));
  EXPECT_TRUE(timeline.wait(freed));
  EXPECT_EQ(SimGpu::api().stream_query(raw(other_)), CUDA_SUCCESS);
  captures_.set(1);
  EXPECT_FALSE(timeline.wait(timeline.now()));
}

TEST_F(DeviceTimelineTest, ManyPointsAreKeptAsFew) {
  work_on(stream_);
  for (int i = 0; i < 1000; ++i) {
    ASSERT_TRUE(timeline_.record());
  }
  EXPECT_EQ(timeline_.points(), 256U);
  work_on(stream_);
  const Epoch freed = timeline_.now();
  ASSERT_TRUE(timeline_.record());
  EXPECT_TRUE(timeline_.wait(freed));
  EXPECT_EQ(SimGpu::api().stream_query(raw(stream_)), CUDA_SUCCESS);
}

TEST_F(DeviceTimelineTest, PointsThatHavePassedLeaveTheirEventsToLaterOnes) {
  FaultyApi::fail_only("cuEventCreate", 0, CUDA_SUCCESS);
  for (int i = 0; i < 1000; ++i) {
    work_on(stream_);
    ASSERT_TRUE(timeline_.record());
    SimGpu::finish(stream_);
    timeline_.update();
  }
  EXPECT_EQ(FaultyApi::calls(), 1U);
}

TEST_F(DeviceTimelineTest, AThreadWhoseWaitFailedKeepsNoEvent) {
  for (int i = 0; i < 3; ++i) {
    work_on(stream_);
    FaultyApi::fail_only("cuEventSynchronize", 1, CUDA_ERROR_UNKNOWN);
    EXPECT_THROW(timeline_.wait_for_all(), DriverError);
  }
  SimGpu::finish(stream_);
  timeline_.update();
  FaultyApi::fail_only("cuEventCreate", 0, CUDA_SUCCESS);
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(timeline_.record());
    timeline_.update();
  }
  EXPECT_EQ(FaultyApi::calls(), 0U) << "events of points that have passed serve the next";
}

TEST_F(DeviceTimelineTest, AThreadThatWaitsKeepsItsEvent) {
  work_on(stream_);
  ASSERT_TRUE(timeline_.record());
  const Epoch freed = timeline_.recorded();
  bool has_recorded = false;
  FaultyApi::set_watcher([&](const char* symbol) {
    if (std::string_view(symbol) == "cuEventSynchronize" && !std::exchange(has_recorded, true)) {
      // Another thread records a point after the points were read and before the driver's call.
      SimGpu::finish(stream_);
      EXPECT_EQ(timeline_.update(), freed);
      work_on(other_);
      EXPECT_TRUE(timeline_.record());
    }
  });
  EXPECT_TRUE(timeline_.wait(freed));
  FaultyApi::set_watcher(nullptr);
  EXPECT_TRUE(has_recorded);
  EXPECT_EQ(SimGpu::api().stream_query(raw(other_)), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(timeline_.points(), 1U);
  FaultyApi::fail_only("cuEventCreate", 0, CUDA_SUCCESS);
  EXPECT_TRUE(timeline_.wait_for_all());
  EXPECT_EQ(FaultyApi::calls(), 0U) << "the first event is free again";
}

TEST_F(DeviceTimelineTest, AfterARefusalTheNextPointCoversTheEpoch) {
  ASSERT_TRUE(timeline_.record());
  work_on(stream_);
  const Epoch freed = timeline_.now();
  for (const char* call : {"cuCtxRecordEvent", "cuStreamIsCapturing"}) {
    FaultyApi::fail_only(call, 1, CUDA_ERROR_UNKNOWN);
    EXPECT_THROW(static_cast<void>(timeline_.record()), DriverError) << call;
    FaultyApi::reset();
  }
  EXPECT_TRUE(timeline_.wait(freed));
  EXPECT_EQ(SimGpu::api().stream_query(raw(stream_)), CUDA_SUCCESS);
}

}  // namespace device_timeline_test
}  // namespace ferro::testing
