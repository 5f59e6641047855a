// The object behind a cudnnHandle_t: the stream of its operations.
//
// Not thread-safe: as with cuDNN, a handle belongs to one thread at a time.
#pragma once

#include "sim/libraries/cublas_lt/blas_operation.h"
#include "sim/libraries/cuda/thread_context.h"

#include <cuda.h>

#include <cudnn.h>

struct cudnnContext {
  CUstream stream = nullptr;
};

namespace ferro::sim {

inline cudnnStatus_t cudnn_status(CUresult result) {
  return result == CUDA_SUCCESS ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_EXECUTION_FAILED;
}

// Enqueues the stand-in for a function other than a convolution.
inline cudnnStatus_t run(cudnnHandle_t handle) {
  if (handle == nullptr) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
  ensure_context();
  return cudnn_status(enqueue_operation(handle->stream));
}

}  // namespace ferro::sim
