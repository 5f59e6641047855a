// Private to the driver layer: the surroundings of a driver call, and its raw types.
#pragma once

#include "ferro/driver/driver.h"

#include <optional>

namespace ferro {

inline CUdeviceptr raw(DevicePtr ptr) { return static_cast<CUdeviceptr>(address_of(ptr)); }
inline CUstream raw(StreamId stream) { return reinterpret_cast<CUstream>(stream); }

// A session for one call, unless the thread is in one of that context already.
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
