#include "ferro/adapter/torch/runtime_memory.h"

#include <c10/cuda/CUDAException.h>

namespace ferro {
namespace {

// An error of the runtime has the number of the driver's; a later call of PyTorch's must not find it.
CUresult driver_result(cudaError_t error) {
  if (error != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
  }
  return static_cast<CUresult>(error);
}

CUresult allocate_plain(CUdeviceptr* out, std::size_t bytes) {
  void* base = nullptr;
  const CUresult result = driver_result(cudaMalloc(&base, bytes));
  *out = reinterpret_cast<CUdeviceptr>(base);
  return result;
}

CUresult release_plain(CUdeviceptr base) {
  return driver_result(cudaFree(reinterpret_cast<void*>(base)));
}

LoadedCudaApi load_with_runtime() {
  const LoadedCudaApi& driver = load_cuda_api();
  if (driver.api == nullptr) {
    return driver;
  }
  static CudaApi api;
  api = *driver.api;
  api.mem_alloc = allocate_plain;
  api.mem_free = release_plain;
  return {&api, ""};
}

}  // namespace

const LoadedCudaApi& load_torch_api() {
  static const LoadedCudaApi loaded = load_with_runtime();
  return loaded;
}

}  // namespace ferro
