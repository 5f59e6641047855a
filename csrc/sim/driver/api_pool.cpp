// Driver functions: memory pools. A device has its default pool and no other; the pool caches
// nothing, so freed memory returns to the device in stream order.
#include "sim/driver/submission.h"

using ferro::sim::Device;
using ferro::sim::FreeMemory;
using ferro::sim::Machine;

namespace {

// A pool's handle is its device.
CUmemoryPool pool_of(Machine& machine, int device) {
  return reinterpret_cast<CUmemoryPool>(&machine.device(device));
}

int device_of(Machine& machine, CUmemoryPool pool) {
  for (int i = 0; i < machine.device_count(); ++i) {
    if (pool_of(machine, i) == pool) {
      return i;
    }
  }
  return -1;
}

CUresult get_pool(Machine& machine, CUmemoryPool* pool, CUdevice device) {
  if (device < 0 || device >= machine.device_count()) {
    return CUDA_ERROR_INVALID_DEVICE;
  }
  *pool = pool_of(machine, device);
  return CUDA_SUCCESS;
}

CUresult allocate(ferro::sim::ApiCall& call, CUdeviceptr* out, std::size_t bytes, int device,
                  CUstream handle) {
  Machine& machine = call.machine();
  const auto* stream = machine.find_stream(handle);
  if (stream == nullptr) {
    return machine.unknown_stream();
  }
  if (out == nullptr || bytes == 0 || device < 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (stream->capture != nullptr) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  auto& allocations = machine.device(device).allocations;
  auto at = allocations.allocate(bytes);
  if (!at) {
    // Frees in stream order may still be queued.
    machine.scheduler().run_device(device);
    at = allocations.allocate(bytes);
  }
  if (!at) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *out = *at;
  return CUDA_SUCCESS;
}

}  // namespace

FERRO_SIM_API cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device) {
  FERRO_SIM_QUERY();
  return call.finish(get_pool(call.machine(), pool, device));
}

FERRO_SIM_API cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice device) {
  FERRO_SIM_QUERY();
  return call.finish(get_pool(call.machine(), pool, device));
}

FERRO_SIM_API cuMemAllocAsync(CUdeviceptr* out, size_t bytes, CUstream stream) {
  FERRO_SIM_CONTEXT_CALL(bytes);
  return call.finish(allocate(call, out, bytes, call.context().device, stream));
}

FERRO_SIM_API cuMemAllocFromPoolAsync(CUdeviceptr* out, size_t bytes, CUmemoryPool pool,
                                      CUstream stream) {
  FERRO_SIM_CONTEXT_CALL(bytes);
  return call.finish(allocate(call, out, bytes, device_of(call.machine(), pool), stream));
}

FERRO_SIM_API cuMemFreeAsync(CUdeviceptr at, CUstream handle) {
  FERRO_SIM_CONTEXT_CALL(0);
  Machine& machine = call.machine();
  const auto* mapping = machine.space().find_mapping(at);
  const auto range = mapping == nullptr
                         ? std::nullopt
                         : machine.device(mapping->pages->device()).allocations.find(at);
  if (!range || range->base != at) {
    return call.finish(CUDA_ERROR_INVALID_VALUE);
  }
  const auto* stream = machine.find_stream(handle);
  if (stream != nullptr && stream->capture != nullptr) {
    return call.finish(CUDA_ERROR_NOT_SUPPORTED);
  }
  call.set_bytes(range->bytes);
  return call.finish(enqueue(machine, handle, CU_GRAPH_NODE_TYPE_MEM_FREE, FreeMemory{at}));
}

FERRO_SIM_API cuMemPoolTrimTo(CUmemoryPool pool, size_t) {
  FERRO_SIM_CALL(0);
  return call.finish(device_of(call.machine(), pool) < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS);
}

FERRO_SIM_API cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc* descriptors,
                                 size_t count) {
  FERRO_SIM_CALL(0);
  const int owner = device_of(call.machine(), pool);
  if (owner < 0 || descriptors == nullptr) {
    return call.finish(CUDA_ERROR_INVALID_VALUE);
  }
  for (size_t i = 0; i < count; ++i) {
    const int peer = descriptors[i].location.id;
    if (peer < 0 || peer >= call.machine().device_count()) {
      return call.finish(CUDA_ERROR_INVALID_DEVICE);
    }
    if (peer != owner) {
      call.machine().device(owner).allocations.set_peer_access(
          peer, descriptors[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE);
    }
  }
  return CUDA_SUCCESS;
}

// Settings are accepted and have no effect.
FERRO_SIM_API cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute, void*) {
  FERRO_SIM_CALL(0);
  return call.finish(device_of(call.machine(), pool) < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS);
}

FERRO_SIM_API cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
  FERRO_SIM_CALL(0);
  const int device = device_of(call.machine(), pool);
  if (device < 0 || value == nullptr) {
    return call.finish(CUDA_ERROR_INVALID_VALUE);
  }
  const Device& owner = call.machine().device(device);
  switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      *static_cast<int*>(value) = 1;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      *static_cast<cuuint64_t*>(value) = 0;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      *static_cast<cuuint64_t*>(value) = owner.allocations.bytes();
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      *static_cast<cuuint64_t*>(value) = owner.allocations.peak_bytes();
      return CUDA_SUCCESS;
    default:
      return call.finish(CUDA_ERROR_NOT_SUPPORTED);
  }
}
