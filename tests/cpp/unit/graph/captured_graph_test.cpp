#include "ferro/graph/captured_graph.h"

#include "ferro/driver/error.h"
#include "support/captured_graph.h"
#include "support/faulty_api.h"
#include "support/sim_gpu.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>

namespace ferro {
namespace captured_graph_test {

using testing::FaultyApi;
using testing::kPageBytes;
using testing::SimGpu;

constexpr PoolId kPool{0, 7};

class CapturedGraphTest : public ::testing::Test {
 protected:
  CapturedGraphTest() : stream_(SimGpu::make_stream()), side_(SimGpu::make_stream()) {
    FaultyApi::reset();
    target_ = SimGpu::allocate(kPageBytes);
  }
  ~CapturedGraphTest() override {
    FaultyApi::reset();
    SimGpu::finish_all();
    SimGpu::free(target_);
  }

  // A graph that fills the first byte of the target.
  std::unique_ptr<CapturedGraph> captured(std::uint8_t value) {
    SimGpu::begin_capture(stream_);
    SimGpu::fill(stream_, target_, value, 1);
    return std::make_unique<CapturedGraph>(std::make_unique<testing::DriverGraph>(stream_), pool_);
  }
  std::uint8_t after_all() {
    SimGpu::finish_all();
    return SimGpu::peek(target_);
  }
  // Invalidates the capture of the stream by a forbidden call.
  static void invalidate(StreamId stream) {
    EXPECT_NE(SimGpu::api().stream_synchronize(testing::raw(stream)), CUDA_SUCCESS);
  }

  SimGpu gpu_{16};
  Driver driver_{FaultyApi::table(), 0};
  const StreamId stream_;
  const StreamId side_;
  std::shared_ptr<CapturePool> pool_ = std::make_shared<CapturePool>(kPool, "decode");
  DevicePtr target_;
};

TEST_F(CapturedGraphTest, TheStatusOfACaptureIsThatOfTheStreamAsked) {
  EXPECT_EQ(capture_status(driver_, stream_), CaptureStatus::kNone);
  SimGpu::begin_capture(stream_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  EXPECT_EQ(capture_status(driver_, stream_), CaptureStatus::kActive);
  EXPECT_EQ(capture_status(driver_, side_), CaptureStatus::kNone);
  invalidate(stream_);
  EXPECT_EQ(capture_status(driver_, stream_), CaptureStatus::kInvalidated);
  EXPECT_TRUE(is_capturing(capture_status(driver_, stream_)));
  SimGpu::abandon_capture(stream_);
  EXPECT_EQ(capture_status(driver_, stream_), CaptureStatus::kNone);
}

TEST_F(CapturedGraphTest, TheLegacyStreamNeverCaptures) {
  CUstream blocking = nullptr;
  SimGpu::expect(SimGpu::api().stream_create(&blocking, CU_STREAM_DEFAULT));
  const StreamId stream{reinterpret_cast<std::uint64_t>(blocking)};
  SimGpu::begin_capture(stream);
  EXPECT_EQ(capture_status(driver_, StreamId{0}), CaptureStatus::kNone);
  EXPECT_EQ(capture_status(driver_, stream), CaptureStatus::kActive)
      << "a query must not invalidate";
  SimGpu::end_capture(stream);
}

TEST_F(CapturedGraphTest, WhatWasCapturedRunsWhenItIsLaunched) {
  const auto graph = captured(7);
  EXPECT_EQ(after_all(), 0) << "a capture runs nothing";
  EXPECT_EQ(graph->num_replays(), 0U);
  graph->launch(side_);
  EXPECT_EQ(after_all(), 7);
  SimGpu::fill(stream_, target_, 1, 1);
  SimGpu::finish_all();
  graph->launch(stream_);
  EXPECT_EQ(after_all(), 7);
  EXPECT_EQ(graph->num_replays(), 2U);
}

TEST_F(CapturedGraphTest, ALaunchThatIsRefusedDoesNotCount) {
  const auto graph = captured(7);
  FaultyApi::fail_only("cuGraphLaunch", 1, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_THROW(graph->launch(stream_), DriverError);
  EXPECT_EQ(graph->num_replays(), 0U);
  graph->launch(stream_);
  EXPECT_EQ(graph->num_replays(), 1U);
}

TEST_F(CapturedGraphTest, ItIsUploadedOnce) {
  const auto graph = captured(7);
  EXPECT_FALSE(graph->is_uploaded());
  FaultyApi::fail_only("cuGraphUpload", 1, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_THROW(graph->upload(stream_), DriverError);
  EXPECT_FALSE(graph->is_uploaded());
  const std::uint64_t before = SimGpu::calls("cuGraphUpload");
  graph->upload(stream_);
  graph->upload(side_);
  EXPECT_TRUE(graph->is_uploaded());
  EXPECT_EQ(SimGpu::calls("cuGraphUpload"), before + 1);
}

TEST_F(CapturedGraphTest, AGraphKeepsItsPoolAndTheBuffersInIt) {
  auto graph = captured(1);
  auto buffer = std::make_shared<int>(5);
  const std::weak_ptr<int> seen = buffer;
  pool_->record_buffer(std::move(buffer));
  pool_.reset();
  EXPECT_EQ(graph->buffer_count(), 1U);
  EXPECT_EQ(graph->pool()->name(), "decode");
  EXPECT_FALSE(seen.expired());
  graph.reset();
  EXPECT_TRUE(seen.expired());
}

}  // namespace captured_graph_test
}  // namespace ferro
