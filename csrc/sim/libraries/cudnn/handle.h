// What a cudnnHandle_t is here: the stream that the operations of its owner go to.
//
// As cuDNN's, a handle belongs to one thread at a time.
#pragma once

#include "sim/libraries/cublas_lt/blas_operation.h"

#include <cuda.h>
#include <cudnn.h>
#include <dlfcn.h>

struct cudnnContext {
  CUstream stream = nullptr;
};

namespace ferro::sim {

inline cudnnStatus_t cudnn_status(CUresult result) {
  return result == CUDA_SUCCESS ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_EXECUTION_FAILED;
}

// cuDNN is a client of libcudart, which gives a thread the context of its device when it is first
// needed. Threads of autograd come without one.
inline void ensure_context() {
  CUcontext current = nullptr;
  if (cuCtxGetCurrent(&current) == CUDA_SUCCESS && current != nullptr) return;
  using Free = int (*)(void*);
  static const auto free = reinterpret_cast<Free>(dlsym(RTLD_DEFAULT, "cudaFree"));
  if (free != nullptr) free(nullptr);
}

// Enqueues the stand-in of a function that is no convolution.
inline cudnnStatus_t run(cudnnHandle_t handle) {
  if (handle == nullptr) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
  ensure_context();
  return cudnn_status(enqueue_operation(handle->stream));
}

}  // namespace ferro::sim
