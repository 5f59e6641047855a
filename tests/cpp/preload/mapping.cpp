// An allocator for MemPools like those of inference engines with a sleep mode. It maps driver
// memory for each request, and unmaps and remaps it without telling the owner of the pool.
#include <cuda.h>

#include <cstddef>
#include <dlfcn.h>
#include <map>

namespace {

struct Mapped {
  std::size_t bytes;
  CUmemGenericAllocationHandle handle;
  bool is_mapped;
};

std::map<CUdeviceptr, Mapped> mapped;

template <typename Function>
Function driver(Function*, const char* name) {
  static void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  return reinterpret_cast<Function>(dlsym(library, name));
}

#define DRIVER(name) driver(static_cast<decltype(&name)*>(nullptr), #name)

CUmemAllocationProp properties(int device) {
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
  return wanted;
}

bool map(CUdeviceptr base, Mapped& memory, int device) {
  const CUmemAllocationProp wanted = properties(device);
  const CUmemAccessDesc access{wanted.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  memory.is_mapped =
      DRIVER(cuMemCreate)(&memory.handle, memory.bytes, &wanted, 0) == CUDA_SUCCESS &&
      DRIVER(cuMemMap)(base, memory.bytes, 0, memory.handle, 0) == CUDA_SUCCESS &&
      DRIVER(cuMemSetAccess)(base, memory.bytes, &access, 1) == CUDA_SUCCESS;
  return memory.is_mapped;
}

void unmap(CUdeviceptr base, Mapped& memory) {
  if (memory.is_mapped) {
    DRIVER(cuMemUnmap)(base, memory.bytes);
    DRIVER(cuMemRelease)(memory.handle);
    memory.is_mapped = false;
  }
}

}  // namespace

extern "C" void* mapping_malloc(std::ptrdiff_t bytes, int device, void*) {
  const CUmemAllocationProp wanted = properties(device);
  std::size_t unit = 0;
  DRIVER(cuMemGetAllocationGranularity)(&unit, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  Mapped memory{(static_cast<std::size_t>(bytes) + unit - 1) / unit * unit, 0, false};
  CUdeviceptr base = 0;
  if (DRIVER(cuMemAddressReserve)(&base, memory.bytes, 0, 0, 0) != CUDA_SUCCESS) {
    return nullptr;
  }
  if (!map(base, memory, device)) {
    DRIVER(cuMemAddressFree)(base, memory.bytes);
    return nullptr;
  }
  mapped[base] = memory;
  return reinterpret_cast<void*>(base);
}

extern "C" void mapping_free(void* address, std::ptrdiff_t, int, void*) {
  DRIVER(cuCtxSynchronize)();
  const auto found = mapped.find(reinterpret_cast<CUdeviceptr>(address));
  unmap(found->first, found->second);
  DRIVER(cuMemAddressFree)(found->first, found->second.bytes);
  mapped.erase(found);
}

// The bytes that fell asleep or woke.
extern "C" std::size_t mapping_sleep() {
  std::size_t bytes = 0;
  for (auto& [base, memory] : mapped) {
    bytes += memory.is_mapped ? memory.bytes : 0;
    unmap(base, memory);
  }
  return bytes;
}

extern "C" std::size_t mapping_wake(int device) {
  std::size_t bytes = 0;
  for (auto& [base, memory] : mapped) {
    bytes += !memory.is_mapped && map(base, memory, device) ? memory.bytes : 0;
  }
  return bytes;
}
