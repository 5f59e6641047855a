// Streams of another device that use memory of this one: the host does not wait for them.
#include "ferro/driver/error.h"
#include "support/device_fixture.h"

#include <gtest/gtest.h>

#include <string>

namespace ferro {
namespace foreign_streams_test {

using testing::FaultyApi;
using testing::kPageBytes;
using testing::SimGpu;

StreamId stream_of_device(CUdevice device) {
  CUcontext context = nullptr;
  SimGpu::expect(SimGpu::api().primary_ctx_retain(&context, device));
  SimGpu::expect(SimGpu::api().ctx_set_current(context));
  const StreamId stream = SimGpu::make_stream();
  SimGpu::make_current();
  return stream;
}

// Queues work that is done only when the stream is finished.
void keep_busy(StreamId stream) {
  SimGpu::expect(SimGpu::api().launch_host_func(
      testing::raw(stream), [](void*) {}, nullptr));
}

std::uint64_t host_waits() {
  return SimGpu::calls("cuEventSynchronize") + SimGpu::calls("cuStreamSynchronize") +
         SimGpu::calls("cuCtxSynchronize");
}

class ForeignStreamsTest : public testing::DeviceFixture {
 protected:
  ForeignStreamsTest() : DeviceFixture(16, std::string(SimGpu::kManual) + ",devices=2") {}

  void free_used_by_foreign(DevicePtr ptr) {
    EXPECT_TRUE(heap_of(ptr).record_stream(*addresses_.find(ptr), ptr, foreign_));
    keep_busy(foreign_);
    free(ptr);
  }

  const StreamId foreign_ = stream_of_device(1);
};

TEST_F(ForeignStreamsTest, AFreeDoesNotWaitForThem) {
  const DevicePtr block = allocate(kPageBytes);
  const std::uint64_t waits = host_waits();
  free_used_by_foreign(block);
  EXPECT_EQ(host_waits(), waits);
  EXPECT_EQ(device_->driver().calls().event_wait, 0U);
  EXPECT_TRUE(heap_of(block).has_pending());
  device_->collect_pending();
  EXPECT_TRUE(heap_of(block).has_pending()) << "the other device has not finished";
  SimGpu::finish(foreign_);
  device_->collect_pending();
  EXPECT_FALSE(heap_of(block).has_pending());
  EXPECT_EQ(allocate(kPageBytes), block);
}

TEST_F(ForeignStreamsTest, ARequestThatReusesTheirBlockIsOrderedBehindThem) {
  const DevicePtr block = allocate(kPageBytes);
  free_used_by_foreign(block);
  const std::uint64_t waits = host_waits();
  EXPECT_EQ(allocate(kPageBytes), block);
  EXPECT_EQ(host_waits(), waits);
  EXPECT_EQ(device_->driver().calls().stream_wait, 1U);
  keep_busy(stream_);
  const EventId next_work = device_->driver().create_event();
  EXPECT_TRUE(device_->driver().record(next_work, stream_));
  EXPECT_FALSE(device_->driver().is_complete(next_work));
  SimGpu::finish(stream_);
  EXPECT_EQ(SimGpu::api().stream_query(testing::raw(foreign_)), CUDA_SUCCESS) << "it came first";
}

TEST_F(ForeignStreamsTest, AShortageWaitsForThem) {
  const DevicePtr block = allocate(16 * kPageBytes);
  free_used_by_foreign(block);
  EXPECT_EQ(allocate(16 * kPageBytes), block);
}

TEST_F(ForeignStreamsTest, EventsUseTheContextOfTheStreamsDevice) {
  Driver& driver = device_->driver();
  EXPECT_EQ(driver.context_of(stream_), driver.own_context());
  EXPECT_EQ(driver.context_of(StreamId{0}), driver.own_context());
  EXPECT_NE(driver.context_of(foreign_), driver.own_context());
}

TEST_F(ForeignStreamsTest, ThePoolKeepsTheirEventsApart) {
  Driver& driver = device_->driver();
  EventPool events(driver);
  keep_busy(foreign_);
  const EventId theirs = events.record(foreign_);
  ASSERT_NE(theirs, kNoEvent);
  EXPECT_FALSE(driver.is_complete(theirs));
  EXPECT_TRUE(driver.stream_wait(theirs, stream_)) << "the two devices' streams order each other";
  SimGpu::finish(foreign_);
  EXPECT_TRUE(driver.is_complete(theirs));
  events.put(theirs);
  const std::uint64_t created = SimGpu::calls("cuEventCreate");
  const EventId own = events.take();
  EXPECT_NE(own, theirs);
  EXPECT_TRUE(driver.record(own, stream_));
  EXPECT_EQ(SimGpu::calls("cuEventCreate"), created)
      << "the event that could not be recorded there";
  EXPECT_EQ(events.record(foreign_), theirs);
  EXPECT_EQ(SimGpu::calls("cuEventCreate"), created + 1) << "their event was reused";
}

TEST_F(ForeignStreamsTest, AnEventOfThisDeviceIsNotRecordedThere) {
  Driver& driver = device_->driver();
  keep_busy(foreign_);
  const std::uint64_t waits = host_waits();
  EXPECT_FALSE(driver.record(driver.create_event(), foreign_));
  EXPECT_EQ(host_waits(), waits);
}

TEST_F(ForeignStreamsTest, ARefusedRecordKeepsTheEvent) {
  EventPool events(device_->driver());
  // The first record uses an event of this device, and shows that the stream is of another one.
  FaultyApi::fail_only("cuEventRecord", 2, CUDA_ERROR_UNKNOWN);
  EXPECT_THROW(events.record(foreign_), DriverError);
  FaultyApi::reset();
  const std::uint64_t created = SimGpu::calls("cuEventCreate");
  EXPECT_NE(events.record(foreign_), kNoEvent);
  EXPECT_EQ(SimGpu::calls("cuEventCreate"), created);
}

}  // namespace foreign_streams_test
}  // namespace ferro
