// Memory: allocation, host memory, copies, memsets, pools, sharing between processes.
#include "ferro/base/bytes.h"
#include "sim/libraries/cudart/state.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstring>

using ferro::sim::device_ptr;
using ferro::sim::ensure_context;
using ferro::sim::finish;

namespace {

CUresult allocate(void** out, size_t bytes) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = nullptr;
  // The runtime, unlike the driver, accepts a size of zero.
  if (bytes == 0) return CUDA_SUCCESS;
  CUdeviceptr address = 0;
  const CUresult result = cuMemAlloc(&address, bytes);
  if (result == CUDA_SUCCESS) *out = reinterpret_cast<void*>(address);
  return result;
}

CUresult copy(void* to, const void* from, size_t bytes) {
  return bytes == 0 ? CUDA_SUCCESS : cuMemcpy(device_ptr(to), device_ptr(from), bytes);
}

CUresult copy_async(void* to, const void* from, size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return CUDA_SUCCESS;
  return cuMemcpyAsync(device_ptr(to), device_ptr(from), bytes, stream);
}

CUDA_MEMCPY2D rectangle(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                        size_t width, size_t height) {
  CUDA_MEMCPY2D c{};
  c.srcMemoryType = CU_MEMORYTYPE_UNIFIED;
  c.srcDevice = device_ptr(from);
  c.srcPitch = from_pitch;
  c.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  c.dstDevice = device_ptr(to);
  c.dstPitch = to_pitch;
  c.WidthInBytes = width;
  c.Height = height;
  return c;
}

// The primary contexts of a copy between two devices.
struct Contexts {
  Contexts(int to_device, int from_device) : error(ferro::sim::primary_context(to_device, &to)) {
    if (error == cudaSuccess) error = ferro::sim::primary_context(from_device, &from);
  }
  CUcontext to = nullptr;
  CUcontext from = nullptr;
  cudaError_t error;
};

}  // namespace

extern "C" {

cudaError_t cudaMalloc(void** out, size_t bytes) { FERRO_SIM_FORWARD(allocate(out, bytes)); }

cudaError_t cudaFree(void* ptr) {
  // cudaFree(nullptr) is how programs create the context.
  FERRO_SIM_FORWARD(ptr == nullptr ? CUDA_SUCCESS : cuMemFree(device_ptr(ptr)));
}

cudaError_t cudaMallocPitch(void** out, size_t* pitch, size_t width, size_t height) {
  if (pitch == nullptr) return finish(cudaErrorInvalidValue);
  *pitch = ferro::align_up(width, 512);
  FERRO_SIM_FORWARD(allocate(out, *pitch * height));
}

cudaError_t cudaMallocManaged(void** out, size_t bytes, unsigned flags) {
  CUdeviceptr address = 0;
  const cudaError_t ready = ensure_context();
  if (ready != cudaSuccess) return finish(ready);
  const CUresult result = cuMemAllocManaged(&address, bytes, flags);
  if (result == CUDA_SUCCESS) *out = reinterpret_cast<void*>(address);
  return finish(result);
}

cudaError_t cudaHostAlloc(void** out, size_t bytes, unsigned flags) {
  FERRO_SIM_FORWARD(cuMemHostAlloc(out, bytes, flags));
}

cudaError_t cudaMallocHost(void** out, size_t bytes) {
  FERRO_SIM_FORWARD(cuMemHostAlloc(out, bytes, 0));
}

cudaError_t cudaFreeHost(void* ptr) {
  FERRO_SIM_FORWARD(ptr == nullptr ? CUDA_SUCCESS : cuMemFreeHost(ptr));
}

cudaError_t cudaHostRegister(void* ptr, size_t bytes, unsigned flags) {
  FERRO_SIM_FORWARD(cuMemHostRegister(ptr, bytes, flags));
}

cudaError_t cudaHostUnregister(void* ptr) { FERRO_SIM_FORWARD(cuMemHostUnregister(ptr)); }

cudaError_t cudaHostGetFlags(unsigned* flags, void* ptr) {
  FERRO_SIM_FORWARD(cuMemHostGetFlags(flags, ptr));
}

cudaError_t cudaHostGetDevicePointer(void** out, void* host, unsigned flags) {
  const cudaError_t ready = ensure_context();
  if (ready != cudaSuccess) return finish(ready);
  CUdeviceptr address = 0;
  const CUresult result = cuMemHostGetDevicePointer(&address, host, flags);
  if (result == CUDA_SUCCESS) *out = reinterpret_cast<void*>(address);
  return finish(result);
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  FERRO_SIM_FORWARD(cuMemGetInfo(free_bytes, total_bytes));
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* out, const void* ptr) {
  if (out == nullptr) return finish(cudaErrorInvalidValue);
  const cudaError_t ready = ensure_context();
  if (ready != cudaSuccess) return finish(ready);
  std::memset(out, 0, sizeof *out);
  out->type = cudaMemoryTypeUnregistered;
  out->device = cudaInvalidDeviceId;
  out->hostPointer = const_cast<void*>(ptr);
  unsigned type = 0;
  const CUdeviceptr address = device_ptr(ptr);
  if (cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) != CUDA_SUCCESS) {
    return cudaSuccess;  // pageable host memory
  }
  int device = 0;
  (void)cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address);
  out->device = device;
  out->devicePointer = const_cast<void*>(ptr);
  out->type = type == CU_MEMORYTYPE_HOST ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
  if (out->type == cudaMemoryTypeDevice) out->hostPointer = nullptr;
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  FERRO_SIM_FORWARD(copy(to, from, bytes));
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  FERRO_SIM_FORWARD(copy_async(to, from, bytes, stream));
}

cudaError_t cudaMemcpyPeer(void* to, int to_device, const void* from, int from_device,
                           size_t bytes) {
  const Contexts contexts(to_device, from_device);
  if (contexts.error != cudaSuccess) return finish(contexts.error);
  FERRO_SIM_FORWARD(
      cuMemcpyPeer(device_ptr(to), contexts.to, device_ptr(from), contexts.from, bytes));
}

cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device,
                                size_t bytes, cudaStream_t stream) {
  const Contexts contexts(to_device, from_device);
  if (contexts.error != cudaSuccess) return finish(contexts.error);
  FERRO_SIM_FORWARD(cuMemcpyPeerAsync(device_ptr(to), contexts.to, device_ptr(from), contexts.from,
                                      bytes, stream));
}

cudaError_t cudaMemcpyBatchAsync(void* const* to, const void* const* from, const size_t* bytes,
                                 size_t count, cudaMemcpyAttributes*, size_t*, size_t,
                                 cudaStream_t stream) {
  for (size_t i = 0; i < count; ++i) {
    const cudaError_t error = cudaMemcpyAsync(to[i], from[i], bytes[i], cudaMemcpyDefault, stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                         size_t width, size_t height, cudaMemcpyKind) {
  const CUDA_MEMCPY2D c = rectangle(to, to_pitch, from, from_pitch, width, height);
  FERRO_SIM_FORWARD(cuMemcpy2D(&c));
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind, cudaStream_t stream) {
  const CUDA_MEMCPY2D c = rectangle(to, to_pitch, from, from_pitch, width, height);
  FERRO_SIM_FORWARD(cuMemcpy2DAsync(&c, stream));
}

cudaError_t cudaMemset(void* ptr, int value, size_t bytes) {
  FERRO_SIM_FORWARD(bytes == 0
                        ? CUDA_SUCCESS
                        : cuMemsetD8(device_ptr(ptr), static_cast<unsigned char>(value), bytes));
}

cudaError_t cudaMemsetAsync(void* ptr, int value, size_t bytes, cudaStream_t stream) {
  FERRO_SIM_FORWARD(bytes == 0 ? CUDA_SUCCESS
                               : cuMemsetD8Async(device_ptr(ptr), static_cast<unsigned char>(value),
                                                 bytes, stream));
}

cudaError_t cudaMemset2DAsync(void* ptr, size_t pitch, int value, size_t width, size_t height,
                              cudaStream_t stream) {
  FERRO_SIM_FORWARD(cuMemsetD2D8Async(device_ptr(ptr), pitch, static_cast<unsigned char>(value),
                                      width, height, stream));
}

cudaError_t cudaMallocAsync(void** out, size_t bytes, cudaStream_t stream) {
  const cudaError_t ready = ensure_context();
  if (ready != cudaSuccess) return finish(ready);
  CUdeviceptr address = 0;
  const CUresult result = cuMemAllocAsync(&address, bytes, stream);
  if (result == CUDA_SUCCESS) *out = reinterpret_cast<void*>(address);
  return finish(result);
}

cudaError_t cudaMallocFromPoolAsync(void** out, size_t bytes, cudaMemPool_t pool,
                                    cudaStream_t stream) {
  const cudaError_t ready = ensure_context();
  if (ready != cudaSuccess) return finish(ready);
  CUdeviceptr address = 0;
  const CUresult result = cuMemAllocFromPoolAsync(&address, bytes, pool, stream);
  if (result == CUDA_SUCCESS) *out = reinterpret_cast<void*>(address);
  return finish(result);
}

cudaError_t cudaFreeAsync(void* ptr, cudaStream_t stream) {
  FERRO_SIM_FORWARD(ptr == nullptr ? CUDA_SUCCESS : cuMemFreeAsync(device_ptr(ptr), stream));
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep) {
  FERRO_SIM_FORWARD(cuMemPoolTrimTo(pool, keep));
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr which, void* value) {
  FERRO_SIM_FORWARD(cuMemPoolGetAttribute(pool, static_cast<CUmemPool_attribute>(which), value));
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr which, void* value) {
  FERRO_SIM_FORWARD(cuMemPoolSetAttribute(pool, static_cast<CUmemPool_attribute>(which), value));
}

cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const cudaMemAccessDesc* access,
                                 size_t count) {
  static_assert(sizeof(cudaMemAccessDesc) == sizeof(CUmemAccessDesc));
  FERRO_SIM_FORWARD(
      cuMemPoolSetAccess(pool, reinterpret_cast<const CUmemAccessDesc*>(access), count));
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* ptr) {
  static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(CUipcMemHandle));
  FERRO_SIM_FORWARD(cuIpcGetMemHandle(reinterpret_cast<CUipcMemHandle*>(handle), device_ptr(ptr)));
}

cudaError_t cudaIpcOpenMemHandle(void** out, cudaIpcMemHandle_t handle, unsigned flags) {
  const cudaError_t ready = ensure_context();
  if (ready != cudaSuccess) return finish(ready);
  CUipcMemHandle driver_handle{};
  std::memcpy(&driver_handle, &handle, sizeof handle);
  CUdeviceptr address = 0;
  const CUresult result = cuIpcOpenMemHandle(&address, driver_handle, flags);
  if (result == CUDA_SUCCESS) *out = reinterpret_cast<void*>(address);
  return finish(result);
}

cudaError_t cudaIpcCloseMemHandle(void* ptr) {
  FERRO_SIM_FORWARD(cuIpcCloseMemHandle(device_ptr(ptr)));
}

}  // extern "C"
