// Private to the driver layer: the surroundings of a driver call, and its raw types.
#pragma once

#include "ferro/driver/driver.h"

namespace ferro {

inline CUdeviceptr raw(DevicePtr ptr) { return static_cast<CUdeviceptr>(address_of(ptr)); }
inline CUstream raw(StreamId stream) { return reinterpret_cast<CUstream>(stream); }

// Makes the device's context current and the thread's capture mode relaxed, and restores both. The
// mode matters because event queries are refused, and invalidate the capture, while any thread
// captures in global mode.
class Driver::CallScope {
 public:
  explicit CallScope(Driver& driver) : api_(driver.api_) {
    const CUcontext wanted = driver.context();
    api_.ctx_get_current(&previous_);
    if (previous_ != wanted) {
      driver.expect(api_.ctx_set_current(wanted), "cuCtxSetCurrent");
      switched_ = true;
    }
    api_.thread_exchange_capture_mode(&mode_);
  }
  ~CallScope() {
    api_.thread_exchange_capture_mode(&mode_);
    if (switched_) {
      api_.ctx_set_current(previous_);
    }
  }
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;

 private:
  const CudaApi& api_;
  CUcontext previous_ = nullptr;
  bool switched_ = false;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

}  // namespace ferro
