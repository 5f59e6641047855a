// Driver functions: virtual memory. They need no context, disturb no capture, do not wait for
// running work, and still work after the device has failed.
#include "sim/driver/api_call.h"

#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

using ferro::is_aligned;
using ferro::sim::Access;
using ferro::sim::AddressSpace;
using ferro::sim::kGranularity;
using ferro::sim::Machine;
using ferro::sim::Pages;
using ferro::sim::SharedFile;

namespace {

CUresult check_properties(Machine& machine, const CUmemAllocationProp* properties) {
  if (properties == nullptr || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  constexpr auto kExportable = static_cast<unsigned>(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
      (static_cast<unsigned>(properties->requestedHandleTypes) & ~kExportable) != 0) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  return properties->location.id >= 0 && properties->location.id < machine.device_count()
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_DEVICE;
}

bool is_alike(const Pages& left, const Pages& right) {
  return left.device() == right.device() &&
         std::memcmp(&left.properties, &right.properties, sizeof(left.properties)) == 0;
}

// Whether every byte is mapped, on one device, with equal properties; memory of cuMemAlloc must be
// of one allocation.
bool has_one_kind(const AddressSpace& space, CUdeviceptr at, std::size_t bytes) {
  const auto* const first = space.find_mapping(at);
  for (std::size_t seen = 0; seen < bytes;) {
    CUdeviceptr base = 0;
    const auto* const mapping = space.find_mapping(at + seen, &base);
    if (mapping == nullptr || mapping->plain != first->plain ||
        (mapping->plain && mapping != first) || !is_alike(*mapping->pages, *first->pages)) {
      return false;
    }
    seen = base + mapping->bytes() - at;
  }
  return true;
}

bool is_whole(std::size_t bytes) { return bytes != 0 && is_aligned(bytes, kGranularity); }

}  // namespace

FERRO_SIM_API cuMemGetAllocationGranularity(size_t* granularity,
                                            const CUmemAllocationProp* properties,
                                            CUmemAllocationGranularity_flags) {
  FERRO_SIM_FRAME(0, kNothing);
  if (const CUresult result = check_properties(call.machine(), properties)) {
    return call.finish(result);
  }
  *granularity = kGranularity;
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuMemAddressReserve(CUdeviceptr* out, size_t bytes, size_t alignment,
                                  CUdeviceptr hint, unsigned long long flags) {
  FERRO_SIM_FRAME(bytes, kNothing);
  if (out == nullptr || !is_whole(bytes) || (alignment & (alignment - 1)) != 0 || flags != 0) {
    return call.finish(CUDA_ERROR_INVALID_VALUE);
  }
  const auto base = call.machine().space().reserve(bytes, alignment, hint);
  if (!base) {
    return call.finish(CUDA_ERROR_OUT_OF_MEMORY);
  }
  *out = *base;
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuMemAddressFree(CUdeviceptr base, size_t bytes) {
  FERRO_SIM_FRAME(bytes, kNothing);
  return call.finish(call.machine().space().unreserve(base, bytes));
}

FERRO_SIM_API cuMemCreate(CUmemGenericAllocationHandle* out, size_t bytes,
                          const CUmemAllocationProp* properties, unsigned long long flags) {
  FERRO_SIM_FRAME(bytes, kNothing);
  if (out == nullptr || !is_whole(bytes) || flags != 0) {
    return call.finish(CUDA_ERROR_INVALID_VALUE);
  }
  if (const CUresult result = check_properties(call.machine(), properties)) {
    return call.finish(result);
  }
  const int device = properties->location.id;
  const auto pages =
      call.machine().space().create(call.machine().device(device).memory, device, bytes);
  if (pages == nullptr) {
    return call.finish(CUDA_ERROR_OUT_OF_MEMORY);
  }
  pages->properties = *properties;
  *out = pages->id;
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuMemRelease(CUmemGenericAllocationHandle handle) {
  FERRO_SIM_FRAME(0, kNothing);
  if (const auto pages = call.machine().space().find_pages(handle)) {
    call.set_bytes(pages->bytes());
  }
  return call.finish(call.machine().space().release(handle));
}

FERRO_SIM_API cuMemMap(CUdeviceptr at, size_t bytes, size_t offset,
                       CUmemGenericAllocationHandle handle, unsigned long long flags) {
  FERRO_SIM_FRAME(bytes, kNothing);
  if (flags != 0) {
    return call.finish(CUDA_ERROR_INVALID_VALUE);
  }
  return call.finish(call.machine().space().map(at, bytes, offset, handle));
}

FERRO_SIM_API cuMemUnmap(CUdeviceptr at, size_t bytes) {
  FERRO_SIM_FRAME(bytes, kNothing);
  std::size_t handles = 0;
  const CUresult result = call.machine().space().unmap(at, bytes, &handles);
  call.set_handles(handles);
  return call.finish(result);
}

FERRO_SIM_API cuMemSetAccess(CUdeviceptr at, size_t bytes, const CUmemAccessDesc* descriptors,
                             size_t count) {
  FERRO_SIM_FRAME(bytes, kNothing);
  if (descriptors == nullptr || count == 0) {
    return call.finish(CUDA_ERROR_INVALID_VALUE);
  }
  for (size_t i = 0; i < count; ++i) {
    const CUmemLocation& location = descriptors[i].location;
    if (location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
      return call.finish(CUDA_ERROR_NOT_SUPPORTED);
    }
    if (location.id < 0 || location.id >= call.machine().device_count()) {
      return call.finish(CUDA_ERROR_INVALID_DEVICE);
    }
  }
  std::size_t handles = 0;
  for (size_t i = 0; i < count; ++i) {
    std::size_t changed = 0;
    const CUresult result = call.machine().space().set_access(
        at, bytes, descriptors[i].location.id, static_cast<Access>(descriptors[i].flags), &changed);
    if (result != CUDA_SUCCESS) {
      return call.finish(result);
    }
    handles += changed;
  }
  call.set_handles(handles);
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location,
                             CUdeviceptr at) {
  FERRO_SIM_FRAME(0, kNothing);
  if (flags == nullptr || location == nullptr || location->type != CU_MEM_LOCATION_TYPE_DEVICE ||
      location->id < 0 || location->id >= call.machine().device_count()) {
    return call.finish(CUDA_ERROR_INVALID_VALUE);
  }
  const auto* mapping = call.machine().space().find_mapping(at);
  if (mapping == nullptr) {
    return call.finish(CUDA_ERROR_INVALID_VALUE);
  }
  *flags = static_cast<unsigned long long>(mapping->access[static_cast<std::size_t>(location->id)]);
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* out, void* at) {
  FERRO_SIM_FRAME(0, kNothing);
  const auto pages = call.machine().space().retain(reinterpret_cast<CUdeviceptr>(at));
  if (pages == nullptr) {
    return call.finish(CUDA_ERROR_INVALID_VALUE);
  }
  *out = pages->id;
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties,
                                                     CUmemGenericAllocationHandle handle) {
  FERRO_SIM_FRAME(0, kNothing);
  const auto pages = call.machine().space().find_pages(handle);
  if (pages == nullptr) {
    return call.finish(CUDA_ERROR_INVALID_VALUE);
  }
  *properties = pages->properties;
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuMemExportToShareableHandle(void* out, CUmemGenericAllocationHandle handle,
                                           CUmemAllocationHandleType type,
                                           unsigned long long flags) {
  FERRO_SIM_FRAME(0, kNothing);
  const auto pages = call.machine().space().find_pages(handle);
  if (out == nullptr || pages == nullptr || flags != 0 ||
      (pages->properties.requestedHandleTypes & type) == 0) {
    return call.finish(CUDA_ERROR_INVALID_VALUE);
  }
  const SharedFile* file =
      pages->share(call.machine().device(pages->device()).card, call.machine().config().backing);
  const int descriptor = file == nullptr ? -1 : file->duplicate();
  if (descriptor < 0) {
    return call.finish(CUDA_ERROR_OPERATING_SYSTEM);
  }
  *static_cast<int*>(out) = descriptor;
  return CUDA_SUCCESS;
}

// The caller keeps its descriptor.
FERRO_SIM_API cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* out, void* shared,
                                             CUmemAllocationHandleType type) {
  FERRO_SIM_FRAME(0, kNothing);
  if (out == nullptr || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    return call.finish(CUDA_ERROR_NOT_SUPPORTED);
  }
  std::optional<SharedFile> file =
      SharedFile::adopt(static_cast<int>(reinterpret_cast<std::intptr_t>(shared)));
  if (!file) {
    return call.finish(CUDA_ERROR_INVALID_VALUE);
  }
  const std::optional<int> found = call.machine().device_of(file->card());
  if (!found) {
    return call.finish(CUDA_ERROR_INVALID_DEVICE);
  }
  call.set_bytes(file->bytes());
  const int device = *found;
  const auto pages =
      std::make_shared<Pages>(std::move(*file), device, call.machine().config().backing);
  pages->properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  pages->properties.requestedHandleTypes = type;
  pages->properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  pages->properties.location.id = device;
  call.machine().space().adopt(pages);
  *out = pages->id;
  return CUDA_SUCCESS;
}

// The descriptor has the range's length, but none of its bytes, and keeps no memory alive.
FERRO_SIM_API cuMemGetHandleForAddressRange(void* out, CUdeviceptr at, size_t bytes,
                                            CUmemRangeHandleType type, unsigned long long flags) {
  FERRO_SIM_FRAME(bytes, kNothing);
  const auto host_page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  if (out == nullptr || type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || bytes == 0 ||
      !is_aligned(at, host_page) || !is_aligned(bytes, host_page) ||
      !has_one_kind(call.machine().space(), at, bytes)) {
    return call.finish(CUDA_ERROR_INVALID_VALUE);
  }
  // There is no BAR1 to map it through.
  if (flags != 0) {
    return call.finish(CUDA_ERROR_NOT_SUPPORTED);
  }
  const int descriptor = memfd_create("ferro_sim_range", MFD_CLOEXEC);
  if (descriptor < 0 || ftruncate(descriptor, static_cast<off_t>(bytes)) != 0) {
    close(descriptor);
    return call.finish(CUDA_ERROR_OPERATING_SYSTEM);
  }
  *static_cast<int*>(out) = descriptor;
  return CUDA_SUCCESS;
}
