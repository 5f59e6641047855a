// The runtime's state of a thread, on top of the driver's: the device and the last error.
//
// Every runtime function of this directory ends with `finish()`. Thread-safe: all state is
// thread-local or belongs to the driver.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace ferro::sim {

// The runtime's error values are the driver's.
constexpr cudaError_t to_runtime(CUresult result) { return static_cast<cudaError_t>(result); }

// Remembers a failure as the thread's last error and returns it.
cudaError_t finish(cudaError_t error);
inline cudaError_t finish(CUresult result) { return finish(to_runtime(result)); }

// The thread's last error; `take` also clears it, unless the error is sticky.
cudaError_t peek_last_error();
cudaError_t take_last_error();

// Initialises the driver once and makes the primary context of the thread's device current where
// the thread has none, as the first runtime call of a thread does.
cudaError_t ensure_context();

// The device of the current context, else the one set by `set_device`, else 0.
int current_device();
// The same, with an error where the driver has none of its functions: in a child of fork().
CUresult find_device(int* device);
cudaError_t set_device(int device);

// The primary context of `device`, retained for the life of the process.
cudaError_t primary_context(int device, CUcontext* out);

inline CUdeviceptr device_ptr(const void* ptr) { return reinterpret_cast<CUdeviceptr>(ptr); }

}  // namespace ferro::sim

// The frame of a runtime function that needs a context: forwards to the driver call.
#define FERRO_SIM_FORWARD(call)                                 \
  do {                                                          \
    const cudaError_t ready = ferro::sim::ensure_context();     \
    if (ready != cudaSuccess) return ferro::sim::finish(ready); \
    return ferro::sim::finish(call);                            \
  } while (false)
