// Driver functions: the driver's log of errors and warnings, which stays empty here. Programs may
// register callbacks for new entries.
#include "sim/driver/api_call.h"

#include <cstdint>
#include <set>

namespace {

// Handles are numbers, never reused. Guarded by the machine's lock.
struct Listeners {
  std::uintptr_t last = 0;
  std::set<CUlogsCallbackHandle> registered;
};

Listeners& listeners() {
  static Listeners* const instance = new Listeners;
  return *instance;
}

}  // namespace

FERRO_SIM_API cuLogsRegisterCallback(CUlogsCallback callback, void*, CUlogsCallbackHandle* out) {
  FERRO_SIM_QUERY();
  if (callback == nullptr) {
    return call.finish(CUDA_ERROR_INVALID_VALUE);
  }
  const auto handle = reinterpret_cast<CUlogsCallbackHandle>(++listeners().last);
  listeners().registered.insert(handle);
  if (out != nullptr) {
    *out = handle;
  }
  return call.finish(CUDA_SUCCESS);
}

FERRO_SIM_API cuLogsUnregisterCallback(CUlogsCallbackHandle handle) {
  FERRO_SIM_QUERY();
  const bool known = listeners().registered.erase(handle) != 0;
  return call.finish(known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}
