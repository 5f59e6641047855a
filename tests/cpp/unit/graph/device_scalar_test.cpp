#include "ferro/graph/device_scalar.h"

#include "support/captured_graph.h"
#include "support/faulty_api.h"
#include "support/sim_gpu.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>

namespace ferro {
namespace device_scalar_test {

using testing::FaultyApi;
using testing::kPageBytes;
using testing::SimGpu;

class DeviceScalarTest : public ::testing::Test {
 protected:
  DeviceScalarTest() {
    FaultyApi::reset();
    target_ = SimGpu::allocate(kPageBytes);
  }
  ~DeviceScalarTest() override {
    FaultyApi::reset();
    SimGpu::finish_all();
    SimGpu::free(target_);
  }

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

  SimGpu gpu_{16};
  Driver driver_{FaultyApi::table(), 0};
  const StreamId stream_ = SimGpu::make_stream();
  DevicePtr target_;
};

TEST_F(DeviceScalarTest, EverySizeIsWrittenExactly) {
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
    // The updates are far ahead of the device, which has run nothing yet.
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
  SimGpu::begin_capture(stream_);
  scalar.update(std::uint64_t{1} << 40, stream_);
  testing::DriverGraph graph(stream_);
  scalar.update(std::uint64_t{2}, stream_);
  EXPECT_EQ(read<std::uint64_t>(), 2U);
  graph.launch(stream_);
  EXPECT_EQ(read<std::uint64_t>(), std::uint64_t{1} << 40);
}

}  // namespace device_scalar_test
}  // namespace ferro
