// Private to the driver layer: the session of a driver call, and conversions to raw types.
#pragma once

#include "ferro/driver/driver.h"

#include <optional>

namespace ferro {

inline CUdeviceptr raw(DevicePtr ptr) { return static_cast<CUdeviceptr>(address_of(ptr)); }
inline CUstream raw(StreamId stream) { return reinterpret_cast<CUstream>(stream); }

// Opens a session for one call, unless the thread's innermost session has this context already.
class Driver::CallScope {
 public:
  explicit CallScope(Driver& driver) : CallScope(driver, driver.context()) {}
  CallScope(Driver& driver, CUcontext context) {
    if (Session::current_ == nullptr || Session::current_->context_ != context) {
      session_.emplace(driver, context);
    }
  }

 private:
  std::optional<Session> session_;
};

}  // namespace ferro
