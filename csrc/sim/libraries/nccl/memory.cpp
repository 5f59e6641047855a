// NCCL's allocator: whole pages, which all devices of the process may use.
#include "ferro/base/bytes.h"
#include "sim/libraries/nccl/handle.h"

#include <cuda.h>

namespace {

using ferro::sim::nccl::Communicator;
using ferro::sim::nccl::Failure;
using ferro::sim::nccl::status;

Failure failure_of(CUresult result, const char* what) {
  return result == CUDA_SUCCESS ? Failure{} : Failure{ncclUnhandledCudaError, what};
}

CUresult map(void** out, std::size_t size) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, Communicator::current_device().index};
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  std::size_t page = 0;
  if (const CUresult result =
          cuMemGetAllocationGranularity(&page, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)) {
    return result;
  }
  const std::size_t bytes = ferro::round_up(size, page);
  CUmemGenericAllocationHandle handle = 0;
  if (const CUresult result = cuMemCreate(&handle, bytes, &properties, 0)) {
    return result;
  }
  int devices = 0;
  cuDeviceGetCount(&devices);
  std::vector<CUmemAccessDesc> access;
  for (int device = 0; device < devices; ++device) {
    access.push_back({{CU_MEM_LOCATION_TYPE_DEVICE, device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
  }
  CUdeviceptr address = 0;
  CUresult result = cuMemAddressReserve(&address, bytes, page, 0, 0);
  if (result == CUDA_SUCCESS) {
    result = cuMemMap(address, bytes, 0, handle, 0);
    if (result == CUDA_SUCCESS) {
      result = cuMemSetAccess(address, bytes, access.data(), access.size());
      if (result != CUDA_SUCCESS) {
        cuMemUnmap(address, bytes);
      }
    }
    if (result != CUDA_SUCCESS) {
      cuMemAddressFree(address, bytes);
    }
  }
  // The mapping keeps the pages alive.
  cuMemRelease(handle);
  *out = reinterpret_cast<void*>(result == CUDA_SUCCESS ? address : 0);
  return result;
}

CUresult unmap(CUdeviceptr address) {
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  if (const CUresult result = cuMemGetAddressRange(&base, &bytes, address)) {
    return result;
  }
  if (const CUresult result = cuMemUnmap(base, bytes)) {
    return result;
  }
  return cuMemAddressFree(base, bytes);
}

}  // namespace

extern "C" {

ncclResult_t ncclMemAlloc(void** out, size_t size) {
  if (out == nullptr || size == 0) {
    return status({ncclInvalidArgument, "expected a positive size and an address for the result"});
  }
  return status(failure_of(map(out, size), "the device cannot allocate this memory"));
}

ncclResult_t ncclMemFree(void* memory) {
  if (memory == nullptr) {
    return ncclSuccess;
  }
  return status(failure_of(unmap(reinterpret_cast<CUdeviceptr>(memory)),
                           "the memory does not come from ncclMemAlloc"));
}

}  // extern "C"
