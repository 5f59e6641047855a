// Kernels: attributes, occupancy, launches. A launch becomes an operation of its stream; the kernel
// computes nothing.
#include "sim/libraries/cudart/registry.h"
#include "sim/libraries/cudart/state.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <vector>

using ferro::sim::ensure_context;
using ferro::sim::finish;

namespace {

struct CallConfiguration {
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
};
// Set between <<<...>>> and the launch. Nested, because an argument of a kernel may launch another.
thread_local std::vector<CallConfiguration> call_configurations;

int attribute(cudaDeviceAttr which) {
  int value = 0;
  (void)cudaDeviceGetAttribute(&value, which, ferro::sim::current_device());
  return value;
}

cudaError_t find(const void* stand_in, CUfunction* function) {
  const CUresult found = ferro::sim::find_function(stand_in, function);
  return found == CUDA_ERROR_INVALID_HANDLE ? cudaErrorInvalidDeviceFunction
                                            : ferro::sim::to_runtime(found);
}

cudaError_t launch(const void* stand_in, dim3 grid, dim3 block, void** arguments, size_t shared,
                   cudaStream_t stream, bool cooperative = false) {
  const cudaError_t ready = ensure_context();
  if (ready != cudaSuccess) return finish(ready);
  CUfunction function = nullptr;
  const cudaError_t found = find(stand_in, &function);
  if (found != cudaSuccess) return finish(found);
  const auto bytes = static_cast<unsigned>(shared);
  if (cooperative) {
    return finish(cuLaunchCooperativeKernel(function, grid.x, grid.y, grid.z, block.x, block.y,
                                            block.z, bytes, stream, arguments));
  }
  return finish(cuLaunchKernel(function, grid.x, grid.y, grid.z, block.x, block.y, block.z, bytes,
                               stream, arguments, nullptr));
}

// Blocks that fit on a multiprocessor: by threads, by blocks, by shared memory.
cudaError_t occupancy(int* blocks, int block, size_t dynamic_shared) {
  if (blocks == nullptr || block <= 0) return cudaErrorInvalidValue;
  int fit = std::min(attribute(cudaDevAttrMaxThreadsPerMultiProcessor) / block,
                     attribute(cudaDevAttrMaxBlocksPerMultiprocessor));
  if (dynamic_shared > 0) {
    const int shared = attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
    fit = std::min(fit, shared / static_cast<int>(dynamic_shared));
  }
  *blocks = fit;
  return cudaSuccess;
}

}  // namespace

extern "C" {

// nvcc's output calls these at launch sites; no public header declares them.
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, CUstream_st* stream);
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream);
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host_function);
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                               size_t shared, cudaStream_t stream);

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, CUstream_st* stream) {
  call_configurations.push_back({grid, block, shared, stream});
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  if (call_configurations.empty()) return finish(cudaErrorMissingConfiguration);
  const CallConfiguration top = call_configurations.back();
  call_configurations.pop_back();
  *grid = top.grid;
  *block = top.block;
  *shared = top.shared;
  *static_cast<cudaStream_t*>(stream) = top.stream;
  return cudaSuccess;
}

// A kernel's handle is the address of its stand-in on the host, so the functions below accept both.
cudaError_t cudaGetKernel(cudaKernel_t* kernel, const void* host_function) {
  if (kernel == nullptr) return finish(cudaErrorInvalidValue);
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(host_function));
  return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host_function) {
  return cudaGetKernel(kernel, host_function);
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                               size_t shared, cudaStream_t stream) {
  return launch(kernel, grid, block, arguments, shared, stream);
}

cudaError_t cudaLaunchKernel(const void* host_function, dim3 grid, dim3 block, void** arguments,
                             size_t shared, cudaStream_t stream) {
  return launch(host_function, grid, block, arguments, shared, stream);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* host_function,
                                void** arguments) {
  if (config == nullptr) return finish(cudaErrorInvalidValue);
  return launch(host_function, config->gridDim, config->blockDim, arguments,
                config->dynamicSmemBytes, config->stream);
}

cudaError_t cudaLaunchCooperativeKernel(const void* host_function, dim3 grid, dim3 block,
                                        void** arguments, size_t shared, cudaStream_t stream) {
  return launch(host_function, grid, block, arguments, shared, stream, true);
}

cudaError_t cudaGetFuncBySymbol(cudaFunction_t* function, const void* host_function) {
  const cudaError_t ready = ensure_context();
  if (ready != cudaSuccess) return finish(ready);
  CUfunction found = nullptr;
  const cudaError_t result = find(host_function, &found);
  if (result != cudaSuccess) return finish(result);
  *function = found;
  return cudaSuccess;
}

cudaError_t cudaFuncGetName(const char** name, const void* host_function) {
  *name = ferro::sim::kernel_name(host_function);
  return *name != nullptr ? cudaSuccess : finish(cudaErrorInvalidDeviceFunction);
}

// Reports the figures of a kernel of moderate size, but the true architecture of its code: programs
// such as CUB choose by it what they launch, and know only those that they were compiled for.
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* host_function) {
  if (attributes == nullptr) return finish(cudaErrorInvalidValue);
  const cudaError_t ready = ensure_context();
  if (ready != cudaSuccess) return finish(ready);
  CUfunction function = nullptr;
  const cudaError_t found = find(host_function, &function);
  if (found != cudaSuccess) return finish(found);
  std::memset(attributes, 0, sizeof *attributes);
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  cuFuncGetAttribute(&attributes->binaryVersion, CU_FUNC_ATTRIBUTE_BINARY_VERSION, function);
  cuFuncGetAttribute(&attributes->ptxVersion, CU_FUNC_ATTRIBUTE_PTX_VERSION, function);
  attributes->maxDynamicSharedSizeBytes = ferro::sim::max_dynamic_shared(host_function);
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void* host_function, cudaFuncAttribute which, int value) {
  if (which != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  if (value > attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin)) {
    return finish(cudaErrorInvalidValue);
  }
  ferro::sim::set_max_dynamic_shared(host_function, value);
  return cudaSuccess;
}

cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t kernel, cudaFuncAttribute which, int value,
                                            int) {
  return cudaFuncSetAttribute(kernel, which, value);
}

cudaError_t cudaFuncSetCacheConfig(const void*, cudaFuncCache) { return cudaSuccess; }

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*,
                                                                   int block, size_t dynamic_shared,
                                                                   unsigned) {
  return finish(occupancy(blocks, block, dynamic_shared));
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int block,
                                                          size_t dynamic_shared) {
  return finish(occupancy(blocks, block, dynamic_shared));
}

cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void*, const cudaLaunchConfig_t*) {
  if (clusters == nullptr) return finish(cudaErrorInvalidValue);
  *clusters = 1;
  return cudaSuccess;
}

}  // extern "C"
