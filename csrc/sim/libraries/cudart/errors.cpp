// Errors and versions of the runtime.
#include "sim/libraries/cudart/state.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

using ferro::sim::finish;

extern "C" {

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
#define FERRO_SIM_NAME(name) \
  case name:                 \
    return #name;
#include "sim/libraries/names/cudart_errors.def"
#undef FERRO_SIM_NAME
    default:
      return "unrecognized error code";
  }
}

const char* cudaGetErrorString(cudaError_t error) {
  // The driver has no text for errors of the runtime.
  if (error == cudaErrorInvalidDeviceFunction) return "invalid device function";
  const char* text = nullptr;
  const CUresult found = cuGetErrorString(static_cast<CUresult>(error), &text);
  return found == CUDA_SUCCESS && text != nullptr ? text : "unrecognized error code";
}

cudaError_t cudaGetLastError() { return ferro::sim::take_last_error(); }
cudaError_t cudaPeekAtLastError() { return ferro::sim::peek_last_error(); }

cudaError_t cudaDriverGetVersion(int* version) { return finish(cuDriverGetVersion(version)); }

cudaError_t cudaRuntimeGetVersion(int* version) {
  if (version == nullptr) return finish(cudaErrorInvalidValue);
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned version,
                                             unsigned long long flags,
                                             cudaDriverEntryPointQueryResult* status) {
  if (symbol == nullptr || function == nullptr) return finish(cudaErrorInvalidValue);
  *function = nullptr;
  CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  const CUresult result =
      cuGetProcAddress(symbol, function, static_cast<int>(version), flags, &found);
  // An absent symbol is an answer, not an error, as long as the caller asked for the status.
  if (status != nullptr) *status = static_cast<cudaDriverEntryPointQueryResult>(found);
  if (found != CU_GET_PROC_ADDRESS_SUCCESS) {
    return status != nullptr ? cudaSuccess : finish(cudaErrorSymbolNotFound);
  }
  return finish(result);
}

cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long flags,
                                    cudaDriverEntryPointQueryResult* status) {
  return cudaGetDriverEntryPointByVersion(symbol, function, CUDART_VERSION, flags, status);
}

cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }

}  // extern "C"
