// Device variables, and code that programs load at run time.
#include "sim/libraries/cudart/registry.h"
#include "sim/libraries/cudart/state.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <mutex>
#include <set>
#include <string>

using ferro::sim::ensure_context;
using ferro::sim::finish;

namespace {

cudaError_t symbol_address(const void* symbol, size_t offset, CUdeviceptr* out) {
  const cudaError_t ready = ensure_context();
  if (ready != cudaSuccess) return ready;
  CUdeviceptr base = 0;
  const CUresult result = ferro::sim::find_variable(symbol, &base, nullptr);
  if (result == CUDA_ERROR_NOT_FOUND) return cudaErrorInvalidSymbol;
  if (result == CUDA_SUCCESS) *out = base + offset;
  return ferro::sim::to_runtime(result);
}

// Returns a copy that is never freed.
const char* keep(const char* text) {
  static std::mutex* const mutex = new std::mutex;
  static std::set<std::string>* const texts = new std::set<std::string>;
  const std::lock_guard lock(*mutex);
  return texts->insert(text).first->c_str();
}

}  // namespace

extern "C" {

cudaError_t cudaGetSymbolAddress(void** out, const void* symbol) {
  CUdeviceptr address = 0;
  const cudaError_t error = symbol_address(symbol, 0, &address);
  if (error == cudaSuccess) *out = reinterpret_cast<void*>(address);
  return finish(error);
}

cudaError_t cudaGetSymbolSize(size_t* bytes, const void* symbol) {
  const CUresult result = ferro::sim::find_variable(symbol, nullptr, bytes);
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

// The options are for a compiler. No code is compiled here, so they are ignored.
cudaError_t cudaLibraryLoadData(cudaLibrary_t* library, const void* code, cudaJitOption*, void**,
                                unsigned, cudaLibraryOption*, void**, unsigned) {
  FERRO_SIM_FORWARD(cuLibraryLoadData(reinterpret_cast<CUlibrary*>(library), code, nullptr, nullptr,
                                      0, nullptr, nullptr, 0));
}

cudaError_t cudaLibraryUnload(cudaLibrary_t library) {
  FERRO_SIM_FORWARD(cuLibraryUnload(reinterpret_cast<CUlibrary>(library)));
}

cudaError_t cudaLibraryGetKernel(cudaKernel_t* kernel, cudaLibrary_t library, const char* name) {
  const cudaError_t ready = ensure_context();
  if (ready != cudaSuccess) return finish(ready);
  CUkernel found = nullptr;
  CUresult result = cuLibraryGetKernel(&found, reinterpret_cast<CUlibrary>(library), name);
  CUfunction function = nullptr;
  if (result == CUDA_SUCCESS) result = cuKernelGetFunction(&function, found);
  if (result != CUDA_SUCCESS) return finish(result);
  *kernel = reinterpret_cast<cudaKernel_t>(found);
  // `name` may disappear with the library, but names of registered kernels must stay valid.
  ferro::sim::register_kernel(*kernel, keep(name), function);
  return cudaSuccess;
}

cudaError_t cudaLibraryGetGlobal(void** out, size_t* bytes, cudaLibrary_t library,
                                 const char* name) {
  const cudaError_t ready = ensure_context();
  if (ready != cudaSuccess) return finish(ready);
  CUdeviceptr address = 0;
  const CUresult result =
      cuLibraryGetGlobal(&address, bytes, reinterpret_cast<CUlibrary>(library), name);
  if (result == CUDA_SUCCESS) *out = reinterpret_cast<void*>(address);
  return finish(result);
}

}  // extern "C"
