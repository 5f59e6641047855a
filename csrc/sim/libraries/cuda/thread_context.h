// The context of a thread that has not called the CUDA runtime yet, as one of autograd's.
#pragma once

#include <cuda.h>

#include <dlfcn.h>

namespace ferro::sim {

// NVIDIA's libraries call libcudart, whose first call in a thread makes the context of its device
// current. Autograd's threads start without one.
inline void ensure_context() {
  CUcontext current = nullptr;
  if (cuCtxGetCurrent(&current) == CUDA_SUCCESS && current != nullptr) return;
  using Free = int (*)(void*);
  static const auto free = reinterpret_cast<Free>(dlsym(RTLD_DEFAULT, "cudaFree"));
  if (free != nullptr) free(nullptr);
}

}  // namespace ferro::sim
