// Streams and events.
#include "sim/libraries/cudart/state.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstring>
#include <memory>

using ferro::sim::finish;

namespace {

struct Callback {
  cudaStreamCallback_t function;
  cudaStream_t stream;
  void* user_data;
};

void run_callback(void* data) {
  const std::unique_ptr<Callback> callback(static_cast<Callback*>(data));
  callback->function(callback->stream, cudaSuccess, callback->user_data);
}

}  // namespace

extern "C" {

cudaError_t cudaStreamCreate(cudaStream_t* out) { FERRO_SIM_FORWARD(cuStreamCreate(out, 0)); }

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* out, unsigned flags) {
  FERRO_SIM_FORWARD(cuStreamCreate(out, flags));
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* out, unsigned flags, int priority) {
  FERRO_SIM_FORWARD(cuStreamCreateWithPriority(out, flags, priority));
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) { FERRO_SIM_FORWARD(cuStreamDestroy(stream)); }

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  FERRO_SIM_FORWARD(cuStreamGetPriority(stream, priority));
}

cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned* flags) {
  FERRO_SIM_FORWARD(cuStreamGetFlags(stream, flags));
}

cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long* id) {
  FERRO_SIM_FORWARD(cuStreamGetId(stream, id));
}

cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* device) {
  FERRO_SIM_FORWARD(cuStreamGetDevice(stream, device));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  FERRO_SIM_FORWARD(cuStreamWaitEvent(stream, event, flags));
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function,
                                  void* user_data, unsigned) {
  const cudaError_t ready = ferro::sim::ensure_context();
  if (ready != cudaSuccess) return finish(ready);
  auto callback = std::make_unique<Callback>(Callback{function, stream, user_data});
  const CUresult result = cuLaunchHostFunc(stream, run_callback, callback.get());
  if (result == CUDA_SUCCESS) (void)callback.release();
  return finish(result);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* user_data) {
  FERRO_SIM_FORWARD(cuLaunchHostFunc(stream, function, user_data));
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  FERRO_SIM_FORWARD(cuStreamSynchronize(stream));
}

cudaError_t cudaStreamQuery(cudaStream_t stream) { FERRO_SIM_FORWARD(cuStreamQuery(stream)); }

cudaError_t cudaStreamGetAttribute(cudaStream_t, cudaLaunchAttributeID,
                                   cudaLaunchAttributeValue* value) {
  if (value == nullptr) return finish(cudaErrorInvalidValue);
  std::memset(value, 0, sizeof *value);
  return cudaSuccess;
}

// Attributes are hints about caches and synchronisation, which the simulation does not model.
cudaError_t cudaStreamSetAttribute(cudaStream_t, cudaLaunchAttributeID,
                                   const cudaLaunchAttributeValue*) {
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* out) { FERRO_SIM_FORWARD(cuEventCreate(out, 0)); }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* out, unsigned flags) {
  FERRO_SIM_FORWARD(cuEventCreate(out, flags));
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  FERRO_SIM_FORWARD(cuEventRecord(event, stream));
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  FERRO_SIM_FORWARD(cuEventRecordWithFlags(event, stream, flags));
}

cudaError_t cudaEventQuery(cudaEvent_t event) { FERRO_SIM_FORWARD(cuEventQuery(event)); }

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  FERRO_SIM_FORWARD(cuEventSynchronize(event));
}

cudaError_t cudaEventDestroy(cudaEvent_t event) { FERRO_SIM_FORWARD(cuEventDestroy(event)); }

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  FERRO_SIM_FORWARD(cuEventElapsedTime(milliseconds, start, end));
}

cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event) {
  static_assert(sizeof(cudaIpcEventHandle_t) == sizeof(CUipcEventHandle));
  FERRO_SIM_FORWARD(cuIpcGetEventHandle(reinterpret_cast<CUipcEventHandle*>(handle), event));
}

cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t handle) {
  CUipcEventHandle driver_handle{};
  std::memcpy(&driver_handle, &handle, sizeof handle);
  FERRO_SIM_FORWARD(cuIpcOpenEventHandle(event, driver_handle));
}

}  // extern "C"
