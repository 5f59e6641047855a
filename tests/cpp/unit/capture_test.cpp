#include "ferro/graph/capture.h"

#include "ferro/driver/error.h"
#include "ferro/graph/device_scalar.h"
#include "support/faulty_api.h"
#include "support/sim_gpu.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <memory>
#include <utility>

namespace ferro {
namespace {

using testing::FaultyApi;
using testing::kPageBytes;
using testing::SimGpu;

constexpr PoolId kPool{0, 7};

class CaptureTest : public ::testing::Test {
 protected:
  CaptureTest() : stream_(SimGpu::make_stream()), side_(SimGpu::make_stream()) {
    FaultyApi::reset();
    target_ = driver_.allocate(kPageBytes);
  }
  ~CaptureTest() override {
    FaultyApi::reset();
    SimGpu::finish_all();
    EXPECT_TRUE(driver_.free(target_));
  }

  std::unique_ptr<CaptureGuard> begin(CaptureMode mode = CaptureMode::kThreadLocal) {
    return CaptureGuard::begin(driver_, stream_, mode, pool_);
  }
  // A graph that fills the first byte of the target.
  std::unique_ptr<CapturedGraph> captured(std::uint8_t value) {
    const auto guard = begin();
    SimGpu::fill(stream_, target_, value, 1);
    return guard->end();
  }
  std::uint8_t after_all() {
    SimGpu::finish_all();
    return SimGpu::peek(target_);
  }
  // A capture that a forbidden call spoils.
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

TEST_F(CaptureTest, TheStatusIsThatOfTheStreamAsked) {
  EXPECT_EQ(capture_status(driver_, stream_), CaptureStatus::kNone);
  const auto guard = begin();
  EXPECT_EQ(guard->status(), CaptureStatus::kActive);
  EXPECT_EQ(capture_status(driver_, side_), CaptureStatus::kNone);
  invalidate(stream_);
  EXPECT_EQ(guard->status(), CaptureStatus::kInvalidated);
  EXPECT_TRUE(is_capturing(guard->status()));
  EXPECT_TRUE(is_invalidated(guard->status()));
}

TEST_F(CaptureTest, TheLegacyStreamNeverCaptures) {
  CUstream blocking = nullptr;
  SimGpu::expect(SimGpu::api().stream_create(&blocking, CU_STREAM_DEFAULT));
  const StreamId stream{reinterpret_cast<std::uint64_t>(blocking)};
  const auto guard = CaptureGuard::begin(driver_, stream, CaptureMode::kGlobal, nullptr);
  EXPECT_EQ(capture_status(driver_, StreamId{0}), CaptureStatus::kNone);
  EXPECT_EQ(guard->status(), CaptureStatus::kActive) << "asking must not invalidate";
}

TEST_F(CaptureTest, WhatWasCapturedRunsWhenItIsLaunched) {
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

TEST_F(CaptureTest, ALaunchThatIsRefusedDoesNotCount) {
  const auto graph = captured(7);
  FaultyApi::fail_only("cuGraphLaunch", 1, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_THROW(graph->launch(stream_), DriverError);
  EXPECT_EQ(graph->num_replays(), 0U);
  graph->launch(stream_);
  EXPECT_EQ(graph->num_replays(), 1U);
}

TEST_F(CaptureTest, ItIsUploadedOnce) {
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

TEST_F(CaptureTest, AGuardThatGoesDiscardsItsCapture) {
  { const auto guard = begin(); }
  EXPECT_EQ(capture_status(driver_, stream_), CaptureStatus::kNone);
  {
    const auto guard = begin();
    invalidate(stream_);
  }
  EXPECT_EQ(capture_status(driver_, stream_), CaptureStatus::kNone);
  captured(3)->launch(stream_);
  EXPECT_EQ(after_all(), 3);
}

TEST_F(CaptureTest, AnInvalidatedCaptureHasNoGraph) {
  const auto guard = begin(CaptureMode::kRelaxed);
  invalidate(stream_);
  EXPECT_THROW(guard->end(), DriverError);
  EXPECT_EQ(capture_status(driver_, stream_), CaptureStatus::kNone);
}

TEST_F(CaptureTest, AStreamThatStaysAwayInvalidatesTheCapture) {
  const auto guard = begin();
  SimGpu::fork(stream_, side_);
  SimGpu::fill(side_, target_, 1, 1);
  EXPECT_THROW(guard->end(), DriverError);
  EXPECT_EQ(capture_status(driver_, stream_), CaptureStatus::kNone);
  EXPECT_EQ(capture_status(driver_, side_), CaptureStatus::kNone);
}

TEST_F(CaptureTest, AGraphThatCannotBeMadeLeavesNothing) {
  FaultyApi::fail_only("cuGraphInstantiateWithFlags", 1, CUDA_ERROR_OUT_OF_MEMORY);
  const std::uint64_t destroyed = SimGpu::calls("cuGraphDestroy");
  const auto guard = begin();
  EXPECT_THROW(guard->end(), DriverError);
  EXPECT_EQ(SimGpu::calls("cuGraphDestroy"), destroyed + 1);
  EXPECT_EQ(capture_status(driver_, stream_), CaptureStatus::kNone);
}

TEST_F(CaptureTest, ACaptureThatCannotBeginChangesNothing) {
  FaultyApi::fail_only("cuStreamBeginCapture_v2", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_THROW(begin(), DriverError);
  EXPECT_EQ(capture_status(driver_, stream_), CaptureStatus::kNone);
}

TEST_F(CaptureTest, NothingIsCapturedIntoASealedPool) {
  pool_->seal();
  EXPECT_EQ(begin(), nullptr);
  EXPECT_EQ(capture_status(driver_, stream_), CaptureStatus::kNone);
  pool_->unseal();
  EXPECT_NE(begin(), nullptr);
}

TEST_F(CaptureTest, AGraphKeepsItsPoolAndTheBuffersInIt) {
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

TEST_F(CaptureTest, AThousandFailedCapturesLeaveNothing) {
  const std::uint64_t pages = SimGpu::used_pages();
  for (int i = 0; i < 1000; ++i) {
    const auto guard = begin();
    SimGpu::fill(stream_, target_, 1, 1);
    if (i % 2 == 0) {
      invalidate(stream_);
    }
    if (i % 3 == 0 && i % 2 == 0) {
      EXPECT_THROW(guard->end(), DriverError);
    }
  }
  EXPECT_EQ(SimGpu::used_pages(), pages);
  EXPECT_EQ(SimGpu::calls("cuStreamBeginCapture_v2"), SimGpu::calls("cuStreamEndCapture"));
}

class DeviceScalarTest : public CaptureTest {
 protected:
  template <typename T>
  T read() {
    SimGpu::finish_all();
    T value{};
    auto* bytes = reinterpret_cast<std::uint8_t*>(&value);
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      bytes[i] = SimGpu::peek(target_ + i);
    }
    return value;
  }
};

TEST_F(DeviceScalarTest, EverySizeIsWrittenWholeAndNothingBeside) {
  SimGpu::fill(stream_, target_, 0xee, 16);
  DeviceScalar(driver_, target_ + 8, 8).update(std::int64_t{-5}, stream_);
  DeviceScalar(driver_, target_ + 4, 4).update(1.5F, stream_);
  DeviceScalar(driver_, target_ + 2, 2).update(std::int16_t{-2}, stream_);
  DeviceScalar(driver_, target_, 1).update(std::uint8_t{9}, stream_);
  EXPECT_EQ(read<std::uint8_t>(), 9);
  EXPECT_EQ(SimGpu::peek(target_ + 1), 0xee);
  struct Rest {
    std::array<std::uint8_t, 2> before;
    std::int16_t two;
    float four;
    std::int64_t eight;
  };
  const Rest rest = read<Rest>();
  EXPECT_EQ(rest.two, -2);
  EXPECT_EQ(rest.four, 1.5F);
  EXPECT_EQ(rest.eight, -5);
}

TEST_F(DeviceScalarTest, LaterWorkReadsWhatWasWrittenBeforeIt) {
  constexpr std::size_t kUpdates = 100;
  DeviceScalar scalar(driver_, target_, 8);
  for (std::uint64_t i = 1; i <= kUpdates; ++i) {
    // Far ahead of the device, which has run nothing yet.
    scalar.update(i, stream_);
    SimGpu::expect(SimGpu::api().memcpy_dtod_async(address_of(target_ + 8 * i), address_of(target_),
                                                   8, testing::raw(stream_)));
  }
  SimGpu::finish_all();
  for (std::uint64_t i = 1; i <= kUpdates; ++i) {
    EXPECT_EQ(SimGpu::peek(target_ + 8 * i), i);
  }
}

TEST_F(DeviceScalarTest, EightBytesAreOneCallWhereTheDeviceHasIt) {
  DeviceScalar scalar(driver_, target_, 8);
  scalar.update(std::int64_t{-5}, stream_);
  EXPECT_EQ(SimGpu::calls("cuStreamWriteValue64_v2"), 1U);
  EXPECT_EQ(SimGpu::calls("cuMemsetD32Async"), 0U);
  FaultyApi::fail_only("cuStreamWriteValue64_v2", 1, CUDA_ERROR_NOT_SUPPORTED);
  scalar.update(std::int64_t{-6}, stream_);
  EXPECT_EQ(SimGpu::calls("cuMemsetD32Async"), 2U);
  EXPECT_EQ(read<std::int64_t>(), -6);
}

TEST_F(DeviceScalarTest, InACaptureTheValueBelongsToTheGraph) {
  DeviceScalar scalar(driver_, target_, 8);
  const auto guard = begin();
  scalar.update(std::uint64_t{1} << 40, stream_);
  const auto graph = guard->end();
  scalar.update(std::uint64_t{2}, stream_);
  EXPECT_EQ(read<std::uint64_t>(), 2U);
  graph->launch(stream_);
  EXPECT_EQ(read<std::uint64_t>(), std::uint64_t{1} << 40);
}

}  // namespace
}  // namespace ferro
