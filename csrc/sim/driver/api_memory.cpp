// Driver functions: device memory of cuMemAlloc, host memory, attributes of pointers.
#include "sim/driver/api_call.h"
#include "sim/driver/submission.h"

#include <algorithm>

using ferro::sim::Allocations;
using ferro::sim::HostMemory;
using ferro::sim::Machine;

namespace {

struct Found {
  int device = -1;
  Allocations::Range range;
};

std::optional<Found> find_allocation(Machine& machine, CUdeviceptr at) {
  for (int i = 0; i < machine.device_count(); ++i) {
    if (const auto range = machine.device(i).allocations.find(at)) {
      return Found{i, *range};
    }
  }
  return std::nullopt;
}

const void* host_pointer(CUdeviceptr at) { return reinterpret_cast<const void*>(at); }

CUresult allocate(ferro::sim::ApiCall& call, CUdeviceptr* out, std::size_t bytes) {
  if (out == nullptr || bytes == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  auto at = call.device().allocations.allocate(bytes);
  if (!at) {
    // Frees in stream order may still be queued.
    call.machine().scheduler().run_device(call.context().device);
    at = call.device().allocations.allocate(bytes);
  }
  if (!at) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *out = *at;
  return CUDA_SUCCESS;
}

CUresult allocate_host(ferro::sim::ApiCall& call, void** out, std::size_t bytes, unsigned flags,
                       HostMemory::Kind kind) {
  if (out == nullptr || bytes == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *out = call.machine().host().allocate(bytes, kind, flags, call.context().device);
  return *out == nullptr ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult pointer_attribute(Machine& machine, void* data, CUpointer_attribute attribute,
                           CUdeviceptr at) {
  CUdeviceptr mapping_base = 0;
  const auto* mapping = machine.space().find_mapping(at, &mapping_base);
  const auto allocation = mapping != nullptr ? find_allocation(machine, at) : std::nullopt;
  const auto host = machine.host().find(host_pointer(at));
  if (mapping == nullptr && !host) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const int device = mapping != nullptr ? mapping->pages->device() : host->device;
  const bool managed = host && host->kind == HostMemory::Kind::kManaged;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      *static_cast<CUcontext*>(data) = machine.device(device).context.handle();
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<unsigned*>(data) = host && !managed ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      *static_cast<CUdeviceptr*>(data) = at;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (!host) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      *static_cast<CUdeviceptr*>(data) = at;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      *static_cast<unsigned*>(data) = managed ? 1 : 0;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *static_cast<int*>(data) = device;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED:
      *static_cast<unsigned*>(data) = 1;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      *static_cast<unsigned long long*>(data) =
          mapping != nullptr ? mapping->pages->id + mapping->pages->offset() : host->base;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      *static_cast<CUdeviceptr*>(data) = allocation           ? allocation->range.base
                                         : mapping != nullptr ? mapping_base
                                                              : host->base;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      *static_cast<std::size_t*>(data) = allocation           ? allocation->range.bytes
                                         : mapping != nullptr ? mapping->bytes()
                                                              : host->bytes;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      *static_cast<unsigned*>(data) = 0;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      *static_cast<unsigned long long*>(data) =
          mapping != nullptr ? mapping->pages->properties.requestedHandleTypes : 0;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      *static_cast<CUmemoryPool*>(data) = nullptr;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

}  // namespace

FERRO_SIM_API cuMemGetInfo_v2(size_t* free, size_t* total) {
  FERRO_SIM_CONTEXT_CALL(0);
  const auto& memory = call.device().memory;
  *free = memory.capacity() - std::min(memory.allocated(), memory.capacity());
  *total = memory.capacity();
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuMemAlloc_v2(CUdeviceptr* out, size_t bytes) {
  FERRO_SIM_CONTEXT_CALL(bytes);
  if (const CUresult result = call.machine().refuse_during_capture()) {
    return call.finish(result);
  }
  return call.finish(allocate(call, out, bytes));
}

FERRO_SIM_API cuMemAllocPitch_v2(CUdeviceptr* out, size_t* pitch, size_t width, size_t height,
                                 unsigned) {
  FERRO_SIM_CONTEXT_CALL(width * height);
  if (const CUresult result = call.machine().refuse_during_capture()) {
    return call.finish(result);
  }
  *pitch = ferro::align_up(width, 512);
  return call.finish(allocate(call, out, *pitch * height));
}

// Waits for all work of the device, as the driver does.
FERRO_SIM_API cuMemFree_v2(CUdeviceptr at) {
  FERRO_SIM_CONTEXT_CALL(0);
  if (at == 0) {
    return CUDA_SUCCESS;
  }
  if (const CUresult result = call.machine().refuse_during_capture()) {
    return call.finish(result);
  }
  if (call.machine().host().free(host_pointer(at), HostMemory::Kind::kManaged)) {
    return CUDA_SUCCESS;
  }
  const auto found = find_allocation(call.machine(), at);
  if (!found || found->range.base != at) {
    return call.finish(CUDA_ERROR_INVALID_VALUE);
  }
  call.set_bytes(found->range.bytes);
  call.machine().scheduler().run_device(found->device);
  call.machine().device(found->device).allocations.free(at);
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuMemAllocManaged(CUdeviceptr* out, size_t bytes, unsigned flags) {
  FERRO_SIM_CONTEXT_CALL(bytes);
  void* memory = nullptr;
  const CUresult result = allocate_host(call, &memory, bytes, flags, HostMemory::Kind::kManaged);
  *out = reinterpret_cast<CUdeviceptr>(memory);
  return call.finish(result);
}

FERRO_SIM_API cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr at) {
  FERRO_SIM_CALL(0);
  Allocations::Range range;
  if (const auto found = find_allocation(call.machine(), at)) {
    range = found->range;
  } else if (const auto* mapping = call.machine().space().find_mapping(at, &range.base)) {
    range.bytes = mapping->bytes();
  } else {
    return call.finish(CUDA_ERROR_NOT_FOUND);
  }
  if (base != nullptr) {
    *base = range.base;
  }
  if (bytes != nullptr) {
    *bytes = range.bytes;
  }
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuMemHostAlloc(void** out, size_t bytes, unsigned flags) {
  FERRO_SIM_CONTEXT_CALL(bytes);
  if (const CUresult result = call.machine().refuse_during_capture()) {
    return call.finish(result);
  }
  return call.finish(allocate_host(call, out, bytes, flags, HostMemory::Kind::kAllocated));
}

FERRO_SIM_API cuMemAllocHost_v2(void** out, size_t bytes) {
  FERRO_SIM_CONTEXT_CALL(bytes);
  if (const CUresult result = call.machine().refuse_during_capture()) {
    return call.finish(result);
  }
  return call.finish(allocate_host(call, out, bytes, 0, HostMemory::Kind::kAllocated));
}

FERRO_SIM_API cuMemFreeHost(void* at) {
  FERRO_SIM_CALL(0);
  if (const CUresult result = call.machine().refuse_during_capture()) {
    return call.finish(result);
  }
  const auto found = call.machine().host().find(at);
  if (!found) {
    return call.finish(CUDA_ERROR_INVALID_VALUE);
  }
  // Of other devices only copies that use it are waited for.
  call.machine().scheduler().run_device(found->device, {found->base, found->bytes});
  return call.finish(call.machine().host().free(at, HostMemory::Kind::kAllocated)
                         ? CUDA_SUCCESS
                         : CUDA_ERROR_INVALID_VALUE);
}

FERRO_SIM_API cuMemHostRegister_v2(void* at, size_t bytes, unsigned flags) {
  FERRO_SIM_CONTEXT_CALL(bytes);
  if (at == nullptr || bytes == 0) {
    return call.finish(CUDA_ERROR_INVALID_VALUE);
  }
  if (const CUresult result = call.machine().refuse_during_capture()) {
    return call.finish(result);
  }
  return call.finish(call.machine().host().register_range(at, bytes, flags, call.context().device)
                         ? CUDA_SUCCESS
                         : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
}

FERRO_SIM_API cuMemHostUnregister(void* at) {
  FERRO_SIM_CALL(0);
  if (const CUresult result = call.machine().refuse_during_capture()) {
    return call.finish(result);
  }
  call.machine().scheduler().run_all();
  return call.finish(call.machine().host().unregister_range(at)
                         ? CUDA_SUCCESS
                         : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

FERRO_SIM_API cuMemHostGetDevicePointer_v2(CUdeviceptr* out, void* at, unsigned flags) {
  FERRO_SIM_CALL(0);
  if (flags != 0 || !call.machine().host().find(at)) {
    return call.finish(CUDA_ERROR_INVALID_VALUE);
  }
  *out = reinterpret_cast<CUdeviceptr>(at);
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuMemHostGetFlags(unsigned* flags, void* at) {
  FERRO_SIM_CALL(0);
  const auto range = call.machine().host().find(at);
  if (!range) {
    return call.finish(CUDA_ERROR_INVALID_VALUE);
  }
  *flags = range->flags;
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr at) {
  FERRO_SIM_CALL(0);
  return call.finish(pointer_attribute(call.machine(), data, attribute, at));
}

// Attributes that do not apply become zero instead of failing the call.
FERRO_SIM_API cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** data,
                                     CUdeviceptr at) {
  FERRO_SIM_CALL(0);
  for (unsigned i = 0; i < count; ++i) {
    if (pointer_attribute(call.machine(), data[i], attributes[i], at) == CUDA_SUCCESS) {
      continue;
    }
    const bool is_pointer = attributes[i] == CU_POINTER_ATTRIBUTE_CONTEXT ||
                            attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_POINTER ||
                            attributes[i] == CU_POINTER_ATTRIBUTE_HOST_POINTER;
    if (is_pointer) {
      *static_cast<void**>(data[i]) = nullptr;
    } else {
      *static_cast<int*>(data[i]) = attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL ? -2 : 0;
    }
  }
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuPointerSetAttribute(const void*, CUpointer_attribute, CUdeviceptr) {
  FERRO_SIM_CALL(0);
  return CUDA_SUCCESS;
}
