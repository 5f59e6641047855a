// Blocks that bypass the cache: each is allocated by cudaMalloc and released by cudaFree.
//
// torch.cuda.caching_allocator_enable(False) and PYTORCH_NO_CUDA_MEMORY_CACHING request them. They
// belong to no pool and count in no statistic. Their pointers identify them, so that caching may be
// turned on and off while they are live. Thread-safe.
#pragma once

#include "ferro/base/mutex.h"

#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDAException.h>
#include <c10/util/env.h>

#include <cstddef>
#include <unordered_set>

namespace ferro {

// Whether the environment forbids caching, for the life of the process.
inline bool caching_is_forbidden() {
  static const bool forbidden = c10::utils::check_env("PYTORCH_NO_CUDA_MEMORY_CACHING") == true;
  return forbidden;
}

class UncachedAllocations {
 public:
  // Allocates on the current device. Throws PyTorch's exception for a CUDA error when out of
  // memory, and while the current stream captures.
  void* allocate(std::size_t bytes) FERRO_EXCLUDES(mutex_) {
    void* ptr = nullptr;
    C10_CUDA_CHECK(cudaMalloc(&ptr, bytes));
    {
      const MutexLock lock(mutex_);
      live_.insert(ptr);
    }
    if (const c10::impl::PyInterpreter* trace = c10::impl::GPUTrace::get_trace()) {
      (*trace)->trace_gpu_memory_allocation(c10::kCUDA, reinterpret_cast<std::uintptr_t>(ptr));
    }
    return ptr;
  }

  bool owns(void* ptr) const FERRO_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    return live_.contains(ptr);
  }

  // False, with nothing done, if the block is not one of them.
  bool free(void* ptr) FERRO_EXCLUDES(mutex_) {
    {
      const MutexLock lock(mutex_);
      if (live_.erase(ptr) == 0) {
        return false;
      }
    }
    if (const c10::impl::PyInterpreter* trace = c10::impl::GPUTrace::get_trace()) {
      (*trace)->trace_gpu_memory_deallocation(c10::kCUDA, reinterpret_cast<std::uintptr_t>(ptr));
    }
    const cudaError_t error = C10_CUDA_ERROR_HANDLED(cudaFree(ptr));
    // At the end of the process the driver has freed it already.
    if (error != cudaErrorCudartUnloading) {
      C10_CUDA_CHECK(error);
    }
    return true;
  }

 private:
  mutable Mutex mutex_;
  std::unordered_set<void*> live_ FERRO_GUARDED_BY(mutex_);
};

}  // namespace ferro
