// Values that the driver writes in the order of a stream.
#include "ferro/driver/driver.h"
#include "support/captured_graph.h"
#include "support/faulty_api.h"
#include "support/sim_gpu.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstring>

namespace ferro {
namespace stream_writes_test {

using testing::FaultyApi;
using testing::kPageBytes;
using testing::SimGpu;

class StreamWritesTest : public ::testing::Test {
 protected:
  StreamWritesTest() {
    FaultyApi::reset();
    target_ = SimGpu::allocate(kPageBytes);
  }
  ~StreamWritesTest() override {
    FaultyApi::reset();
    SimGpu::finish_all();
    SimGpu::free(target_);
  }

  template <typename T>
  void write(DevicePtr at, T value) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof(T));
    driver_.write(at, bits, sizeof(T), stream_);
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

TEST_F(StreamWritesTest, EverySizeIsWrittenExactly) {
  SimGpu::fill(stream_, target_, 0xee, 16);
  write(target_ + 8, std::int64_t{-5});
  write(target_ + 4, 1.5F);
  write(target_ + 2, std::int16_t{-2});
  write(target_, std::uint8_t{9});
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

TEST_F(StreamWritesTest, LaterWorkReadsWhatWasWrittenBeforeIt) {
  constexpr std::size_t kUpdates = 100;
  for (std::uint64_t i = 1; i <= kUpdates; ++i) {
    // The updates are far ahead of the device, which has run nothing yet.
    write(target_, i);
    SimGpu::expect(SimGpu::api().memcpy_dtod_async(address_of(target_ + 8 * i), address_of(target_),
                                                   8, testing::raw(stream_)));
  }
  SimGpu::finish_all();
  for (std::uint64_t i = 1; i <= kUpdates; ++i) {
    EXPECT_EQ(SimGpu::peek(target_ + 8 * i), i);
  }
}

TEST_F(StreamWritesTest, EightBytesAreOneCallWhereTheDeviceHasIt) {
  write(target_, std::int64_t{-5});
  EXPECT_EQ(SimGpu::calls("cuStreamWriteValue64_v2"), 1U);
  EXPECT_EQ(SimGpu::calls("cuMemsetD32Async"), 0U);
  FaultyApi::fail_only("cuStreamWriteValue64_v2", 1, CUDA_ERROR_NOT_SUPPORTED);
  write(target_, std::int64_t{-6});
  EXPECT_EQ(SimGpu::calls("cuMemsetD32Async"), 2U);
  EXPECT_EQ(read<std::int64_t>(), -6);
}

TEST_F(StreamWritesTest, InACaptureTheValueBelongsToTheGraph) {
  SimGpu::begin_capture(stream_);
  write(target_, std::uint64_t{1} << 40);
  testing::DriverGraph graph(stream_);
  write(target_, std::uint64_t{2});
  EXPECT_EQ(read<std::uint64_t>(), 2U);
  graph.launch(stream_);
  EXPECT_EQ(read<std::uint64_t>(), std::uint64_t{1} << 40);
}

}  // namespace stream_writes_test
}  // namespace ferro
