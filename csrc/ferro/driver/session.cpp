// The context and capture mode of driver calls. The mode is relaxed, because while any thread
// captures in global mode the driver otherwise refuses event queries and invalidates the capture.
#include "ferro/driver/driver.h"

namespace ferro {

constinit thread_local Driver::Session* Driver::Session::current_ = nullptr;

Driver::Session::Session(Driver& driver, CUcontext context)
    : api_(driver.api_), context_(context), outer_(current_) {
  if (context_ != nullptr) {
    driver.expect(enter(), "cuCtxSetCurrent");
    current_ = this;
  }
}

CUresult Driver::Session::enter() noexcept {
  mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
  switched_ = false;
  api_.ctx_get_current(&previous_);
  if (previous_ != context_) {
    if (const CUresult result = api_.ctx_set_current(context_)) {
      return result;
    }
    switched_ = true;
  }
  api_.thread_exchange_capture_mode(&mode_);
  return CUDA_SUCCESS;
}

void Driver::Session::leave() noexcept {
  api_.thread_exchange_capture_mode(&mode_);
  if (switched_) {
    api_.ctx_set_current(previous_);
  }
}

Driver::SessionBreak::SessionBreak() : innermost_(Session::current_) {
  for (Session* session = innermost_; session != nullptr; session = session->outer_) {
    session->leave();
  }
  Session::current_ = nullptr;
}

Driver::SessionBreak::~SessionBreak() { resume(innermost_); }

void Driver::SessionBreak::resume(Session* session) {
  if (session == nullptr) {
    return;
  }
  resume(session->outer_);
  // If the context no longer exists, the next call reports the error.
  static_cast<void>(session->enter());
  Session::current_ = session;
}

}  // namespace ferro
