// Kernels and device variables: registration of the modules inside a program, function attributes,
// launches. A launch becomes an operation of its stream; what the kernel would compute is not done.
#include "sim/faces/cudart_state.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

using ferro::sim::ensure_context;
using ferro::sim::finish;

namespace {

struct Kernel {
  const char* name = nullptr;
  CUfunction function = nullptr;  // made at the first launch
  int max_dynamic_shared = 48 * 1024;
};

struct Variable {
  const char* name = nullptr;
  size_t bytes = 0;
  std::map<int, CUdeviceptr> per_device;  // made at the first use
};

// Everything that the programs' modules registered, by the address of the host's stand-in. Never
// destroyed: modules unregister from static destructors.
struct Registry {
  std::mutex mutex;
  std::unordered_map<const void*, Kernel> kernels;
  std::unordered_map<const void*, Variable> variables;
  CUmodule module = nullptr;
};

Registry& registry() {
  static Registry* const instance = new Registry;
  return *instance;
}

struct CallConfiguration {
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
};
thread_local std::vector<CallConfiguration> call_configurations;

// One driver module stands for all modules that programs bring along: its image is never run.
CUresult find_function(const void* host_function, CUfunction* out) {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  const auto found = r.kernels.find(host_function);
  if (found == r.kernels.end()) return CUDA_ERROR_INVALID_HANDLE;
  Kernel& kernel = found->second;
  if (kernel.function == nullptr) {
    static constexpr char kImage[] = ".version 9.0";
    if (r.module == nullptr) {
      const CUresult loaded = cuModuleLoadData(&r.module, kImage);
      if (loaded != CUDA_SUCCESS) return loaded;
    }
    const CUresult got = cuModuleGetFunction(&kernel.function, r.module, kernel.name);
    if (got != CUDA_SUCCESS) return got;
  }
  *out = kernel.function;
  return CUDA_SUCCESS;
}

cudaError_t launch(const void* host_function, dim3 grid, dim3 block, void** arguments,
                   size_t shared, cudaStream_t stream, bool cooperative = false) {
  const cudaError_t ready = ensure_context();
  if (ready != cudaSuccess) return finish(ready);
  CUfunction function = nullptr;
  if (find_function(host_function, &function) != CUDA_SUCCESS) {
    return finish(cudaErrorInvalidDeviceFunction);
  }
  const auto bytes = static_cast<unsigned>(shared);
  if (cooperative) {
    return finish(cuLaunchCooperativeKernel(function, grid.x, grid.y, grid.z, block.x, block.y,
                                            block.z, bytes, stream, arguments));
  }
  return finish(cuLaunchKernel(function, grid.x, grid.y, grid.z, block.x, block.y, block.z, bytes,
                               stream, arguments, nullptr));
}

CUresult find_variable(const void* symbol, CUdeviceptr* address, size_t* bytes) {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  const auto found = r.variables.find(symbol);
  if (found == r.variables.end()) return CUDA_ERROR_NOT_FOUND;
  Variable& variable = found->second;
  if (bytes != nullptr) *bytes = variable.bytes;
  if (address == nullptr) return CUDA_SUCCESS;
  CUdeviceptr& here = variable.per_device[ferro::sim::current_device()];
  if (here == 0) {
    const CUresult result = cuMemAlloc(&here, std::max<size_t>(variable.bytes, 1));
    if (result != CUDA_SUCCESS) return result;
  }
  *address = here;
  return CUDA_SUCCESS;
}

cudaError_t symbol_address(const void* symbol, size_t offset, CUdeviceptr* out) {
  const cudaError_t ready = ensure_context();
  if (ready != cudaSuccess) return ready;
  CUdeviceptr base = 0;
  const CUresult result = find_variable(symbol, &base, nullptr);
  if (result == CUDA_ERROR_NOT_FOUND) return cudaErrorInvalidSymbol;
  if (result == CUDA_SUCCESS) *out = base + offset;
  return ferro::sim::to_runtime(result);
}

// Blocks of `block` threads that fit on a multiprocessor: by threads, by blocks, by shared memory.
cudaError_t occupancy(int* blocks, int block, size_t dynamic_shared) {
  if (blocks == nullptr || block <= 0) return cudaErrorInvalidValue;
  const int device = ferro::sim::current_device();
  const auto limit = [device](cudaDeviceAttr which) {
    int value = 0;
    (void)cudaDeviceGetAttribute(&value, which, device);
    return value;
  };
  int fit = std::min(limit(cudaDevAttrMaxThreadsPerMultiProcessor) / block,
                     limit(cudaDevAttrMaxBlocksPerMultiprocessor));
  if (dynamic_shared > 0) {
    const int shared = limit(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
    fit = std::min(fit, shared / static_cast<int>(dynamic_shared));
  }
  *blocks = fit;
  return cudaSuccess;
}

}  // namespace

extern "C" {

// What nvcc's output calls from static initialisers and launch sites; no public header declares it.
void** __cudaRegisterFatBinary(void* image);
void __cudaRegisterFatBinaryEnd(void** handle);
void __cudaUnregisterFatBinary(void** handle);
void __cudaRegisterFunction(void** handle, const char* host_function, char* device_function,
                            const char* name, int thread_limit, uint3* tid, uint3* bid, dim3* block,
                            dim3* grid, int* warp);
void __cudaRegisterVar(void** handle, char* host_variable, char* device_address, const char* name,
                       int external, size_t bytes, int constant, int global);
void __cudaRegisterManagedVar(void** handle, void** host_variable, char* device_address,
                              const char* name, int external, size_t bytes, int constant,
                              int global);
char __cudaInitModule(void** handle);
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, CUstream_st* stream);
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream);
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host_function);
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                               size_t shared, cudaStream_t stream);

void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}

void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 1; }

void __cudaRegisterFunction(void**, const char* host_function, char*, const char* name, int, uint3*,
                            uint3*, dim3*, dim3*, int*) {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  r.kernels[host_function].name = name;
}

void __cudaRegisterVar(void**, char* host_variable, char*, const char* name, int, size_t bytes, int,
                       int) {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  Variable& variable = r.variables[host_variable];
  variable.name = name;
  variable.bytes = bytes;
}

void __cudaRegisterManagedVar(void** handle, void** host_variable, char* device_address,
                              const char* name, int external, size_t bytes, int constant,
                              int global) {
  __cudaRegisterVar(handle, reinterpret_cast<char*>(host_variable), device_address, name, external,
                    bytes, constant, global);
}

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

// A kernel handle is the host's stand-in, so each function below takes both.
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

cudaError_t cudaGetFuncBySymbol(cudaFunction_t* function, const void* symbol) {
  const cudaError_t ready = ensure_context();
  if (ready != cudaSuccess) return finish(ready);
  CUfunction found = nullptr;
  if (find_function(symbol, &found) != CUDA_SUCCESS) return finish(cudaErrorInvalidDeviceFunction);
  *function = found;
  return cudaSuccess;
}

cudaError_t cudaFuncGetName(const char** name, const void* host_function) {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  const auto found = r.kernels.find(host_function);
  if (found == r.kernels.end()) return finish(cudaErrorInvalidDeviceFunction);
  *name = found->second.name;
  return cudaSuccess;
}

// What a kernel of moderate size has: no fat binary is opened to learn the truth.
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* host_function) {
  if (attributes == nullptr) return finish(cudaErrorInvalidValue);
  std::memset(attributes, 0, sizeof *attributes);
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  int major = 0;
  int minor = 0;
  const int device = ferro::sim::current_device();
  (void)cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  (void)cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  attributes->binaryVersion = major * 10 + minor;
  attributes->ptxVersion = attributes->binaryVersion;
  attributes->maxDynamicSharedSizeBytes = 48 * 1024;
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  if (const auto found = r.kernels.find(host_function); found != r.kernels.end()) {
    attributes->maxDynamicSharedSizeBytes = found->second.max_dynamic_shared;
  }
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void* host_function, cudaFuncAttribute which, int value) {
  if (which != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  int limit = 0;
  (void)cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                               ferro::sim::current_device());
  if (value > limit) return finish(cudaErrorInvalidValue);
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  if (const auto found = r.kernels.find(host_function); found != r.kernels.end()) {
    found->second.max_dynamic_shared = value;
  }
  return cudaSuccess;
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

cudaError_t cudaGetSymbolAddress(void** out, const void* symbol) {
  CUdeviceptr address = 0;
  const cudaError_t error = symbol_address(symbol, 0, &address);
  if (error == cudaSuccess) *out = reinterpret_cast<void*>(address);
  return finish(error);
}

cudaError_t cudaGetSymbolSize(size_t* bytes, const void* symbol) {
  const CUresult result = find_variable(symbol, nullptr, bytes);
  return finish(result == CUDA_ERROR_NOT_FOUND ? cudaErrorInvalidSymbol
                                               : ferro::sim::to_runtime(result));
}

cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* from, size_t bytes, size_t offset,
                               cudaMemcpyKind kind) {
  CUdeviceptr to = 0;
  const cudaError_t error = symbol_address(symbol, offset, &to);
  if (error != cudaSuccess) return finish(error);
  return cudaMemcpy(reinterpret_cast<void*>(to), from, bytes, kind);
}

cudaError_t cudaMemcpyToSymbolAsync(const void* symbol, const void* from, size_t bytes,
                                    size_t offset, cudaMemcpyKind kind, cudaStream_t stream) {
  CUdeviceptr to = 0;
  const cudaError_t error = symbol_address(symbol, offset, &to);
  if (error != cudaSuccess) return finish(error);
  return cudaMemcpyAsync(reinterpret_cast<void*>(to), from, bytes, kind, stream);
}

cudaError_t cudaMemcpyFromSymbol(void* to, const void* symbol, size_t bytes, size_t offset,
                                 cudaMemcpyKind kind) {
  CUdeviceptr from = 0;
  const cudaError_t error = symbol_address(symbol, offset, &from);
  if (error != cudaSuccess) return finish(error);
  return cudaMemcpy(to, reinterpret_cast<void*>(from), bytes, kind);
}

cudaError_t cudaMemcpyFromSymbolAsync(void* to, const void* symbol, size_t bytes, size_t offset,
                                      cudaMemcpyKind kind, cudaStream_t stream) {
  CUdeviceptr from = 0;
  const cudaError_t error = symbol_address(symbol, offset, &from);
  if (error != cudaSuccess) return finish(error);
  return cudaMemcpyAsync(to, reinterpret_cast<void*>(from), bytes, kind, stream);
}

}  // extern "C"
