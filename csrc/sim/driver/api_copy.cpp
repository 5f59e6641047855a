// Driver functions: copies and fills.
#include "sim/driver/outside_launch.h"
#include "sim/driver/submission.h"

using ferro::sim::Copy;
using ferro::sim::Fill;
using ferro::sim::Machine;
using ferro::sim::OutsideRead;

namespace {

Copy linear(std::uintptr_t to, std::uintptr_t from, std::size_t bytes) {
  Copy copy;
  copy.to = to;
  copy.from = from;
  copy.width = bytes;
  return copy;
}

Copy between_devices(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
  Copy copy = linear(to, from, bytes);
  copy.peers = true;
  return copy;
}

std::uintptr_t address(const void* at) { return reinterpret_cast<std::uintptr_t>(at); }
std::uintptr_t address(CUdeviceptr at) { return at; }

// A synchronous copy, on the legacy default stream. The host waits unless both sides are device
// memory.
CUresult copy_now(ferro::sim::ApiCall& call, const Copy& copy) {
  Machine& machine = call.machine();
  if (const CUresult result = enqueue_copy(machine, nullptr, copy)) {
    return result;
  }
  if (!machine.space().is_reserved(copy.to) || !machine.space().is_reserved(copy.from)) {
    run_stream(machine, call.context().legacy);
  }
  return call.context().sticky_error;
}

CUresult fill_now(ferro::sim::ApiCall& call, const Fill& fill) {
  return enqueue(call.machine(), nullptr, CU_GRAPH_NODE_TYPE_MEMSET, fill);
}

CUresult fill_later(ferro::sim::ApiCall& call, const Fill& fill, CUstream stream) {
  return enqueue(call.machine(), stream, CU_GRAPH_NODE_TYPE_MEMSET, fill);
}

// False for arrays, which are not simulated.
bool read_2d(const CUDA_MEMCPY2D& given, Copy& copy) {
  const auto side = [](CUmemorytype type, const void* host, CUdeviceptr device, std::size_t x,
                       std::size_t y, std::size_t pitch) -> std::uintptr_t {
    const std::uintptr_t base = type == CU_MEMORYTYPE_HOST ? address(host) : device;
    return base + y * pitch + x;
  };
  if (given.srcMemoryType == CU_MEMORYTYPE_ARRAY || given.dstMemoryType == CU_MEMORYTYPE_ARRAY) {
    return false;
  }
  copy.width = given.WidthInBytes;
  copy.height = given.Height;
  copy.to_pitch = given.dstPitch != 0 ? given.dstPitch : given.WidthInBytes;
  copy.from_pitch = given.srcPitch != 0 ? given.srcPitch : given.WidthInBytes;
  copy.to = side(given.dstMemoryType, given.dstHost, given.dstDevice, given.dstXInBytes, given.dstY,
                 copy.to_pitch);
  copy.from = side(given.srcMemoryType, given.srcHost, given.srcDevice, given.srcXInBytes,
                   given.srcY, copy.from_pitch);
  return true;
}

}  // namespace

// Copies of contiguous bytes, for each pair of host and device: synchronous, and in stream order.
#define FERRO_SIM_COPY(now, later, To, From)                                              \
  FERRO_SIM_API now(To to, From from, size_t bytes) {                                     \
    const OutsideRead read(bytes);                                                        \
    FERRO_SIM_CONTEXT_CALL(bytes);                                                        \
    return call.finish(copy_now(call, linear(address(to), address(from), bytes)));        \
  }                                                                                       \
  FERRO_SIM_API later(To to, From from, size_t bytes, CUstream stream) {                  \
    const OutsideRead read(bytes);                                                        \
    FERRO_SIM_CONTEXT_CALL(bytes);                                                        \
    return call.finish(                                                                   \
        enqueue_copy(call.machine(), stream, linear(address(to), address(from), bytes))); \
  }
FERRO_SIM_COPY(cuMemcpy, cuMemcpyAsync, CUdeviceptr, CUdeviceptr)
FERRO_SIM_COPY(cuMemcpyHtoD_v2, cuMemcpyHtoDAsync_v2, CUdeviceptr, const void*)
FERRO_SIM_COPY(cuMemcpyDtoH_v2, cuMemcpyDtoHAsync_v2, void*, CUdeviceptr)
FERRO_SIM_COPY(cuMemcpyDtoD_v2, cuMemcpyDtoDAsync_v2, CUdeviceptr, CUdeviceptr)

FERRO_SIM_API cuMemcpyPeer(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t bytes) {
  FERRO_SIM_CONTEXT_CALL(bytes);
  return call.finish(copy_now(call, between_devices(to, from, bytes)));
}

FERRO_SIM_API cuMemcpyPeerAsync(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext,
                                size_t bytes, CUstream stream) {
  FERRO_SIM_CONTEXT_CALL(bytes);
  return call.finish(enqueue_copy(call.machine(), stream, between_devices(to, from, bytes)));
}

#define FERRO_SIM_COPY_2D(now)                                                                   \
  FERRO_SIM_API now(const CUDA_MEMCPY2D* given) {                                                \
    const OutsideRead read(given->WidthInBytes * given->Height);                                 \
    FERRO_SIM_CONTEXT_CALL(given->WidthInBytes * given->Height);                                 \
    Copy copy;                                                                                   \
    return call.finish(read_2d(*given, copy) ? copy_now(call, copy) : CUDA_ERROR_NOT_SUPPORTED); \
  }
FERRO_SIM_COPY_2D(cuMemcpy2D_v2)
FERRO_SIM_COPY_2D(cuMemcpy2DUnaligned_v2)

FERRO_SIM_API cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* given, CUstream stream) {
  const OutsideRead read(given->WidthInBytes * given->Height);
  FERRO_SIM_CONTEXT_CALL(given->WidthInBytes * given->Height);
  Copy copy;
  return call.finish(read_2d(*given, copy) ? enqueue_copy(call.machine(), stream, copy)
                                           : CUDA_ERROR_NOT_SUPPORTED);
}

// Fills of one row and of several, synchronous and in stream order.
#define FERRO_SIM_FILL(row_now, row_later, rows_now, rows_later, Element)                       \
  FERRO_SIM_API row_now(CUdeviceptr to, Element value, size_t count) {                          \
    FERRO_SIM_CONTEXT_CALL(count * sizeof(Element));                                            \
    return call.finish(fill_now(call, Fill{to, value, sizeof(Element), count}));                \
  }                                                                                             \
  FERRO_SIM_API row_later(CUdeviceptr to, Element value, size_t count, CUstream stream) {       \
    FERRO_SIM_CONTEXT_CALL(count * sizeof(Element));                                            \
    return call.finish(fill_later(call, Fill{to, value, sizeof(Element), count}, stream));      \
  }                                                                                             \
  FERRO_SIM_API rows_now(CUdeviceptr to, size_t pitch, Element value, size_t width,             \
                         size_t height) {                                                       \
    FERRO_SIM_CONTEXT_CALL(sizeof(Element) * width * height);                                   \
    return call.finish(fill_now(call, Fill{to, value, sizeof(Element), width, height, pitch})); \
  }                                                                                             \
  FERRO_SIM_API rows_later(CUdeviceptr to, size_t pitch, Element value, size_t width,           \
                           size_t height, CUstream stream) {                                    \
    FERRO_SIM_CONTEXT_CALL(sizeof(Element) * width * height);                                   \
    return call.finish(                                                                         \
        fill_later(call, Fill{to, value, sizeof(Element), width, height, pitch}, stream));      \
  }
FERRO_SIM_FILL(cuMemsetD8_v2, cuMemsetD8Async, cuMemsetD2D8_v2, cuMemsetD2D8Async, unsigned char)
FERRO_SIM_FILL(cuMemsetD16_v2, cuMemsetD16Async, cuMemsetD2D16_v2, cuMemsetD2D16Async,
               unsigned short)
FERRO_SIM_FILL(cuMemsetD32_v2, cuMemsetD32Async, cuMemsetD2D32_v2, cuMemsetD2D32Async, unsigned)

FERRO_SIM_API cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr to, cuuint64_t value,
                                      unsigned flags) {
  FERRO_SIM_CONTEXT_CALL(sizeof(value));
  if (to % sizeof(value) != 0 || flags > CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER) {
    return call.finish(CUDA_ERROR_INVALID_VALUE);
  }
  return call.finish(enqueue(call.machine(), stream, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
                             Fill{to, value, sizeof(value), 1}));
}
