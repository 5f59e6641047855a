#include "ferro/core/streams/device_timeline.h"

#include "ferro/driver/error.h"
#include "support/faulty_api.h"
#include "support/sim_gpu.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <vector>

namespace ferro::testing {
namespace {

class DeviceTimelineTest : public ::testing::Test {
 protected:
  DeviceTimelineTest() : gpu_(4), stream_(SimGpu::make_stream()), other_(SimGpu::make_stream()) {
    FaultyApi::reset();
    SimGpu::expect(SimGpu::api().mem_alloc(&memory_, kPageBytes));
  }
  ~DeviceTimelineTest() override { FaultyApi::reset(); }

  void work_on(StreamId stream) { SimGpu::fill(stream, DevicePtr{memory_}, 1, 1); }
  // A capture that is not announced takes one number.
  void capture_silently() {
    SimGpu::begin_capture(other_, CU_STREAM_CAPTURE_MODE_RELAXED);
    SimGpu::end_capture(other_);
  }

  SimGpu gpu_;
  const StreamId stream_;
  const StreamId other_;
  CUdeviceptr memory_ = 0;
  Driver driver_{FaultyApi::table(), 0};
  EventPool events_{driver_};
  CaptureCount captures_;
  CaptureLedger ledger_;
  std::vector<StreamId> known_;
  DeviceTimeline timeline_{driver_, events_, captures_, ledger_, [this] { return known_; }};
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

TEST_F(DeviceTimelineTest, AWaitWithALimitGivesUp) {
  work_on(stream_);
  std::promise<void> over;
  FaultyApi::set_watcher([waits = over.get_future().share()](const char* symbol) {
    if (symbol == std::string("cuEventSynchronize")) {
      waits.wait();
    }
  });
  EXPECT_FALSE(timeline_.wait_for_all(std::chrono::milliseconds(2)));
  const std::uint64_t waits = SimGpu::calls("cuEventSynchronize");
  over.set_value();
  while (SimGpu::calls("cuEventSynchronize") == waits) {
    std::this_thread::yield();  // the thread that waits goes on by itself
  }
  FaultyApi::set_watcher(nullptr);
  SimGpu::finish_all();
  EXPECT_TRUE(timeline_.wait_for_all(std::chrono::milliseconds(2)));
}

TEST_F(DeviceTimelineTest, AStreamComesBehindAnEpochWithoutAWaitOfTheHost) {
  work_on(stream_);
  const Epoch freed = timeline_.now();
  ASSERT_TRUE(timeline_.order_before(freed, other_));
  work_on(other_);
  SimGpu::finish(other_);
  EXPECT_EQ(SimGpu::api().stream_query(raw(stream_)), CUDA_SUCCESS);
  EXPECT_EQ(driver_.calls().event_wait, 0U);
}

TEST_F(DeviceTimelineTest, NoPointIsRecordedWhileACaptureIsAnnounced) {
  work_on(stream_);
  ASSERT_TRUE(timeline_.record());
  const Epoch before = timeline_.last_orderable();
  captures_.set(1);
  SimGpu::begin_capture(other_);
  const Epoch during = timeline_.now();
  EXPECT_FALSE(timeline_.record());
  EXPECT_FALSE(timeline_.wait(during));
  EXPECT_FALSE(timeline_.order_before(during, stream_));
  EXPECT_EQ(timeline_.last_orderable(), before - 1);
  EXPECT_TRUE(timeline_.wait(before - 1));
  SimGpu::end_capture(other_);  // it was not invalidated
  captures_.set(0);
  EXPECT_TRUE(timeline_.wait(during));
}

TEST_F(DeviceTimelineTest, ASilentCaptureLivesOnAndIsRemembered) {
  ASSERT_TRUE(timeline_.record());
  SimGpu::begin_capture(other_, CU_STREAM_CAPTURE_MODE_RELAXED);
  known_ = {stream_, other_};
  EXPECT_FALSE(timeline_.record());  // finds out
  EXPECT_TRUE(ledger_.has_seen_silent_capture());
  EXPECT_FALSE(timeline_.wait_for_all());
  SimGpu::end_capture(other_);  // it was not invalidated
  work_on(stream_);
  const Epoch freed = timeline_.now();
  const std::uint64_t points = SimGpu::calls("cuCtxRecordEvent");
  ASSERT_TRUE(timeline_.record());
  EXPECT_EQ(SimGpu::calls("cuCtxRecordEvent"), points);
  EXPECT_LT(timeline_.update(), freed);
  EXPECT_TRUE(timeline_.wait(freed));
  EXPECT_EQ(SimGpu::api().stream_query(raw(stream_)), CUDA_SUCCESS);
}

TEST_F(DeviceTimelineTest, ASilentCaptureThatIsOverIsNoticedToo) {
  ASSERT_TRUE(timeline_.record());
  capture_silently();
  EXPECT_FALSE(timeline_.record());
  EXPECT_TRUE(ledger_.has_seen_silent_capture());
}

TEST_F(DeviceTimelineTest, AnnouncedCapturesAreNotTakenForSilentOnes) {
  ASSERT_TRUE(timeline_.record());
  for (int i = 0; i < 3; ++i) {
    ledger_.change(1);
    captures_.set(1);
    if (i != 1) {  // the second one is announced and never begins
      capture_silently();
    }
    captures_.set(0);
    ledger_.change(-1);
    EXPECT_TRUE(timeline_.record()) << i;
  }
  capture_silently();
  EXPECT_FALSE(timeline_.record());
}

TEST_F(DeviceTimelineTest, ADriverWithoutContextPointsUsesTheKnownStreams) {
  CudaApi old = FaultyApi::table();
  old.ctx_record_event = nullptr;
  Driver driver(old, 0);
  EventPool events(driver);
  known_ = {stream_, other_};
  DeviceTimeline timeline(driver, events, captures_, ledger_, [this] { return known_; });
  work_on(other_);
  const Epoch freed = timeline.now();
  ASSERT_TRUE(timeline.record());
  EXPECT_LT(timeline.update(), freed);
  EXPECT_TRUE(timeline.wait(freed));
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

TEST_F(DeviceTimelineTest, AfterARefusalTheNextPointCoversTheEpoch) {
  ASSERT_TRUE(timeline_.record());
  work_on(stream_);
  const Epoch freed = timeline_.now();
  for (const char* call : {"cuCtxRecordEvent", "cuStreamBeginCapture_v2"}) {
    FaultyApi::fail_only(call, 1, CUDA_ERROR_UNKNOWN);
    EXPECT_THROW(static_cast<void>(timeline_.record()), DriverError) << call;
    FaultyApi::reset();
  }
  EXPECT_TRUE(timeline_.wait(freed));
  EXPECT_EQ(SimGpu::api().stream_query(raw(stream_)), CUDA_SUCCESS);
}

}  // namespace
}  // namespace ferro::testing
