// Devices: selection, attributes, properties, limits, peers.
#include "sim/libraries/cudart/state.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

using ferro::sim::finish;

namespace {

CUresult attribute(int device, CUdevice_attribute which, int* value) {
  CUdevice handle = 0;
  const CUresult result = cuDeviceGet(&handle, device);
  return result == CUDA_SUCCESS ? cuDeviceGetAttribute(value, which, handle) : result;
}

// 0 where the simulated card does not know the attribute.
int attribute_or_zero(int device, CUdevice_attribute which) {
  int value = 0;
  return attribute(device, which, &value) == CUDA_SUCCESS ? value : 0;
}

struct IntProperty {
  int cudaDeviceProp::*member;
  CUdevice_attribute attribute;
};

constexpr IntProperty kIntProperties[] = {
    {&cudaDeviceProp::regsPerBlock, CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK},
    {&cudaDeviceProp::warpSize, CU_DEVICE_ATTRIBUTE_WARP_SIZE},
    {&cudaDeviceProp::maxThreadsPerBlock, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK},
    {&cudaDeviceProp::major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR},
    {&cudaDeviceProp::minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR},
    {&cudaDeviceProp::multiProcessorCount, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT},
    {&cudaDeviceProp::integrated, CU_DEVICE_ATTRIBUTE_INTEGRATED},
    {&cudaDeviceProp::canMapHostMemory, CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY},
    {&cudaDeviceProp::concurrentKernels, CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS},
    {&cudaDeviceProp::ECCEnabled, CU_DEVICE_ATTRIBUTE_ECC_ENABLED},
    {&cudaDeviceProp::pciBusID, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID},
    {&cudaDeviceProp::pciDeviceID, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID},
    {&cudaDeviceProp::pciDomainID, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID},
    {&cudaDeviceProp::asyncEngineCount, CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT},
    {&cudaDeviceProp::unifiedAddressing, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING},
    {&cudaDeviceProp::memoryBusWidth, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH},
    {&cudaDeviceProp::l2CacheSize, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE},
    {&cudaDeviceProp::persistingL2CacheMaxSize, CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE},
    {&cudaDeviceProp::maxThreadsPerMultiProcessor,
     CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR},
    {&cudaDeviceProp::streamPrioritiesSupported, CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED},
    {&cudaDeviceProp::regsPerMultiprocessor, CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR},
    {&cudaDeviceProp::managedMemory, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY},
    {&cudaDeviceProp::pageableMemoryAccess, CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS},
    {&cudaDeviceProp::cooperativeLaunch, CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH},
    {&cudaDeviceProp::maxBlocksPerMultiProcessor,
     CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR},
    {&cudaDeviceProp::hostRegisterSupported, CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED},
    {&cudaDeviceProp::memoryPoolsSupported, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED},
    {&cudaDeviceProp::ipcEventSupported, CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED},
    {&cudaDeviceProp::clusterLaunch, CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH},
};

struct SizeProperty {
  size_t cudaDeviceProp::*member;
  CUdevice_attribute attribute;
};

constexpr SizeProperty kSizeProperties[] = {
    {&cudaDeviceProp::sharedMemPerBlock, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK},
    {&cudaDeviceProp::sharedMemPerBlockOptin,
     CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN},
    {&cudaDeviceProp::sharedMemPerMultiprocessor,
     CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR},
    {&cudaDeviceProp::reservedSharedMemPerBlock,
     CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK},
    {&cudaDeviceProp::totalConstMem, CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY},
    {&cudaDeviceProp::memPitch, CU_DEVICE_ATTRIBUTE_MAX_PITCH},
    {&cudaDeviceProp::textureAlignment, CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT},
};

CUresult fill_properties(int device, cudaDeviceProp* p) {
  CUdevice handle = 0;
  if (const CUresult result = cuDeviceGet(&handle, device); result != CUDA_SUCCESS) return result;
  if (const CUresult result = cuDeviceGetName(p->name, sizeof p->name, handle);
      result != CUDA_SUCCESS) {
    return result;
  }
  CUuuid uuid{};
  if (cuDeviceGetUuid(&uuid, handle) == CUDA_SUCCESS) {
    static_assert(sizeof uuid == sizeof p->uuid);
    std::memcpy(&p->uuid, &uuid, sizeof uuid);
  }
  for (const IntProperty& row : kIntProperties) {
    p->*row.member = attribute_or_zero(device, row.attribute);
  }
  for (const SizeProperty& row : kSizeProperties) {
    p->*row.member = static_cast<size_t>(attribute_or_zero(device, row.attribute));
  }
  constexpr CUdevice_attribute kBlock[] = {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X,
                                           CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y,
                                           CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z};
  constexpr CUdevice_attribute kGrid[] = {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X,
                                          CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y,
                                          CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z};
  for (int i = 0; i < 3; ++i) {
    p->maxThreadsDim[i] = attribute_or_zero(device, kBlock[i]);
    p->maxGridSize[i] = attribute_or_zero(device, kGrid[i]);
  }
  p->globalL1CacheSupported = 1;
  p->localL1CacheSupported = 1;
  p->computePreemptionSupported = 1;
  return cuDeviceTotalMem(&p->totalGlobalMem, handle);
}

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  static const CUresult ready = cuInit(0);
  if (ready != CUDA_SUCCESS) return finish(ready);
  return finish(cuDeviceGetCount(count));
}

cudaError_t cudaSetDevice(int device) { return finish(ferro::sim::set_device(device)); }

cudaError_t cudaInitDevice(int device, unsigned, unsigned) {
  CUcontext context = nullptr;
  return finish(ferro::sim::primary_context(device, &context));
}

cudaError_t cudaGetDevice(int* device) {
  if (device == nullptr) return finish(cudaErrorInvalidValue);
  return finish(ferro::sim::find_device(device));
}

cudaError_t cudaSetDeviceFlags(unsigned) { return cudaSuccess; }

cudaError_t cudaGetDeviceFlags(unsigned* flags) {
  if (flags == nullptr) return finish(cudaErrorInvalidValue);
  *flags = cudaDeviceScheduleAuto;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (properties == nullptr) return finish(cudaErrorInvalidValue);
  std::memset(properties, 0, sizeof *properties);
  return finish(fill_properties(device, properties));
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int device) {
  // The runtime numbers the attributes as the driver does.
  return finish(attribute(device, static_cast<CUdevice_attribute>(which), value));
}

cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device) {
  if (id == nullptr || length <= 0) return finish(cudaErrorInvalidValue);
  std::snprintf(id, static_cast<size_t>(length), "%04x:%02x:%02x.0",
                attribute_or_zero(device, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID),
                attribute_or_zero(device, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID),
                attribute_or_zero(device, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID));
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() { FERRO_SIM_FORWARD(cuCtxSynchronize()); }

cudaError_t cudaDeviceReset() {
  CUdevice device = 0;
  const CUresult result = cuDeviceGet(&device, ferro::sim::current_device());
  return finish(result == CUDA_SUCCESS ? cuDevicePrimaryCtxReset(device) : result);
}

cudaError_t cudaDeviceGetLimit(size_t* value, cudaLimit limit) {
  FERRO_SIM_FORWARD(cuCtxGetLimit(value, static_cast<CUlimit>(limit)));
}

cudaError_t cudaDeviceSetLimit(cudaLimit limit, size_t value) {
  FERRO_SIM_FORWARD(cuCtxSetLimit(static_cast<CUlimit>(limit), value));
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  FERRO_SIM_FORWARD(cuCtxGetStreamPriorityRange(least, greatest));
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  return finish(cuDeviceCanAccessPeer(can, device, peer));
}

cudaError_t cudaDeviceGetP2PAttribute(int* value, cudaDeviceP2PAttr which, int source,
                                      int destination) {
  return finish(cuDeviceGetP2PAttribute(value, static_cast<CUdevice_P2PAttribute>(which), source,
                                        destination));
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  CUcontext context = nullptr;
  const cudaError_t error = ferro::sim::primary_context(peer, &context);
  if (error != cudaSuccess) return finish(error);
  FERRO_SIM_FORWARD(cuCtxEnablePeerAccess(context, flags));
}

cudaError_t cudaDeviceDisablePeerAccess(int peer) {
  CUcontext context = nullptr;
  const cudaError_t error = ferro::sim::primary_context(peer, &context);
  if (error != cudaSuccess) return finish(error);
  FERRO_SIM_FORWARD(cuCtxDisablePeerAccess(context));
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  return finish(cuDeviceGetDefaultMemPool(pool, device));
}

cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* pool, int device) {
  return finish(cuDeviceGetMemPool(pool, device));
}

cudaError_t cudaDeviceSetMemPool(int device, cudaMemPool_t pool) {
  return finish(cuDeviceSetMemPool(device, pool));
}

cudaError_t cudaDeviceGraphMemTrim(int device) { return finish(cuDeviceGraphMemTrim(device)); }

cudaError_t cudaDeviceGetGraphMemAttribute(int device, cudaGraphMemAttributeType which,
                                           void* value) {
  return finish(
      cuDeviceGetGraphMemAttribute(device, static_cast<CUgraphMem_attribute>(which), value));
}

cudaError_t cudaDeviceSetGraphMemAttribute(int device, cudaGraphMemAttributeType which,
                                           void* value) {
  return finish(
      cuDeviceSetGraphMemAttribute(device, static_cast<CUgraphMem_attribute>(which), value));
}

}  // extern "C"
