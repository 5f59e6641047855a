// The allocator calls code of the program in the program's own context and capture mode.
#include "ferro/core/device/device_memory.h"
#include "support/heap_fixture.h"
#include "support/sim_gpu.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>

namespace ferro {
namespace callbacks_test {

using testing::bytes;
using testing::kPageBytes;
using testing::SimGpu;

class CallbacksTest : public ::testing::Test {
 protected:
  CallbacksTest() {
    AllocatorConfig config;
    config.rejection_limit = [this](std::size_t) {
      note("rejection limit");
      return PageStore::kNoLimit;
    };
    config.stream_lasts = [this](DeviceId, StreamId) {
      note("stream lasts");
      return true;
    };
    device_ = std::make_unique<DeviceMemory>(SimGpu::api(), 0, addresses_, config, [this] {
      note("shortage");
      return false;
    });
    // From here on the device is in use, and a request makes its context current.
    block_ = device_->allocate(kDefaultPool, stream_, bytes(4 * kPageBytes)).ptr;
    SimGpu::expect(SimGpu::api().ctx_set_current(nullptr));
    asked_.clear();
  }
  ~CallbacksTest() override { free(block_); }

  void note(const std::string& question) {
    CUcontext context = nullptr;
    SimGpu::expect(SimGpu::api().ctx_get_current(&context));
    EXPECT_TRUE(context == nullptr || block_ == kNull) << question;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    SimGpu::expect(SimGpu::api().thread_exchange_capture_mode(&mode));
    EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_GLOBAL) << question;
    SimGpu::expect(SimGpu::api().thread_exchange_capture_mode(&mode));
    asked_.insert(question);
  }
  void free(DevicePtr ptr) {
    Span& span = *addresses_.find(ptr);
    EXPECT_EQ(span.heap()->free(span, ptr).error, FreeError::kNone);
  }

  SimGpu gpu_{8};
  const StreamId stream_ = SimGpu::make_stream();
  const StreamId side_ = SimGpu::make_stream();
  AddressIndex addresses_;
  std::unique_ptr<DeviceMemory> device_;
  DevicePtr block_ = kNull;
  std::set<std::string> asked_;
};

TEST_F(CallbacksTest, CallbacksRunInTheProgramsContext) {
  EXPECT_EQ(device_->allocate(kDefaultPool, side_, bytes(8 * kPageBytes)).ptr, kNull);
  EXPECT_EQ(asked_, (std::set<std::string>{"rejection limit", "shortage", "stream lasts"}));
}

}  // namespace callbacks_test
}  // namespace ferro
