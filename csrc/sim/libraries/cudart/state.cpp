#include "sim/libraries/cudart/state.h"

#include <array>
#include <mutex>

namespace ferro::sim {
namespace {

constexpr int kMaxDevices = 64;

thread_local cudaError_t last_error = cudaSuccess;
thread_local int thread_device = 0;

// Errors after which the process's context is unusable.
bool is_sticky(cudaError_t error) {
  switch (error) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorECCUncorrectable:
      return true;
    default:
      return false;
  }
}

struct Primaries {
  std::mutex mutex;
  std::array<CUcontext, kMaxDevices> contexts{};
};

// Never destroyed: programs call the runtime from static destructors.
Primaries& primaries() {
  static Primaries* const instance = new Primaries;
  return *instance;
}

CUresult initialise_driver() {
  static const CUresult result = cuInit(0);
  return result;
}

}  // namespace

cudaError_t finish(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

cudaError_t peek_last_error() { return last_error; }

cudaError_t take_last_error() {
  const cudaError_t error = last_error;
  if (!is_sticky(error)) last_error = cudaSuccess;
  return error;
}

cudaError_t primary_context(int device, CUcontext* out) {
  if (const CUresult ready = initialise_driver(); ready != CUDA_SUCCESS) return to_runtime(ready);
  if (device < 0 || device >= kMaxDevices) return cudaErrorInvalidDevice;
  Primaries& p = primaries();
  const std::lock_guard lock(p.mutex);
  CUcontext& context = p.contexts[static_cast<size_t>(device)];
  if (context == nullptr) {
    CUdevice handle = 0;
    CUresult result = cuDeviceGet(&handle, device);
    if (result == CUDA_SUCCESS) result = cuDevicePrimaryCtxRetain(&context, handle);
    if (result != CUDA_SUCCESS) {
      context = nullptr;
      return to_runtime(result);
    }
  }
  *out = context;
  return cudaSuccess;
}

CUresult find_device(int* device) {
  CUcontext context = nullptr;
  const CUresult result = cuCtxGetCurrent(&context);
  if (result != CUDA_SUCCESS || context == nullptr || cuCtxGetDevice(device) != CUDA_SUCCESS) {
    *device = thread_device;
  }
  return result;
}

int current_device() {
  int device = 0;
  static_cast<void>(find_device(&device));
  return device;
}

cudaError_t set_device(int device) {
  CUcontext context = nullptr;
  const cudaError_t error = primary_context(device, &context);
  if (error != cudaSuccess) return error;
  thread_device = device;
  return to_runtime(cuCtxSetCurrent(context));
}

cudaError_t ensure_context() {
  CUcontext context = nullptr;
  if (cuCtxGetCurrent(&context) == CUDA_SUCCESS && context != nullptr) return cudaSuccess;
  return set_device(thread_device);
}

}  // namespace ferro::sim
