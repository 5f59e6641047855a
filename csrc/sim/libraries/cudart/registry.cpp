#include "sim/libraries/cudart/registry.h"

#include "sim/libraries/cuda/variables.h"
#include "sim/libraries/cudart/state.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <unordered_map>

namespace ferro::sim {
namespace {

// The device code of one translation unit. Loaded at the first use of one of its kernels, as the
// driver does.
struct Image {
  const void* binary = nullptr;
  CUmodule module = nullptr;
};

struct Kernel {
  const char* name = nullptr;
  CUfunction function = nullptr;
  Image* image = nullptr;
  int max_dynamic_shared = kDefaultDynamicShared;
};

struct Variable {
  std::size_t bytes = 0;
  std::map<int, CUdeviceptr> per_device;
};

struct Registry {
  std::mutex mutex;
  std::unordered_map<const void*, Kernel> kernels;
  std::unordered_map<const void*, Variable> variables;
};

Registry& registry() {
  static Registry* const instance = new Registry;
  return *instance;
}

}  // namespace

void** register_image(const void* binary) {
  // Never freed: kernels are never removed.
  return reinterpret_cast<void**>(new Image{binary});
}

void register_kernel(const void* stand_in, const char* name, void** image) {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  r.kernels[stand_in] = {name, nullptr, reinterpret_cast<Image*>(image)};
}

void register_kernel(const void* stand_in, const char* name, CUfunction function) {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  r.kernels[stand_in] = {name, function};
}

CUresult find_function(const void* stand_in, CUfunction* out) {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  const auto found = r.kernels.find(stand_in);
  if (found == r.kernels.end()) return CUDA_ERROR_INVALID_HANDLE;
  Kernel& kernel = found->second;
  if (kernel.function == nullptr) {
    Image& image = *kernel.image;
    if (image.module == nullptr) {
      const CUresult loaded = cuModuleLoadData(&image.module, image.binary);
      if (loaded != CUDA_SUCCESS) return loaded;
    }
    const CUresult made = cuModuleGetFunction(&kernel.function, image.module, kernel.name);
    if (made != CUDA_SUCCESS) return made;
  }
  *out = kernel.function;
  return CUDA_SUCCESS;
}

const char* kernel_name(const void* stand_in) {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  const auto found = r.kernels.find(stand_in);
  return found == r.kernels.end() ? nullptr : found->second.name;
}

int max_dynamic_shared(const void* stand_in) {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  const auto found = r.kernels.find(stand_in);
  return found == r.kernels.end() ? kDefaultDynamicShared : found->second.max_dynamic_shared;
}

void set_max_dynamic_shared(const void* stand_in, int bytes) {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  const auto found = r.kernels.find(stand_in);
  if (found != r.kernels.end()) found->second.max_dynamic_shared = bytes;
}

void register_variable(const void* stand_in, std::size_t bytes) {
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  r.variables[stand_in].bytes = bytes;
}

CUresult find_variable(const void* stand_in, CUdeviceptr* address, std::size_t* bytes) {
  const int device = current_device();
  Registry& r = registry();
  const std::lock_guard lock(r.mutex);
  const auto found = r.variables.find(stand_in);
  if (found == r.variables.end()) return CUDA_ERROR_NOT_FOUND;
  Variable& variable = found->second;
  if (bytes != nullptr) *bytes = variable.bytes;
  if (address == nullptr) return CUDA_SUCCESS;
  CUdeviceptr& here = variable.per_device[device];
  if (here == 0) {
    const CUresult result = cuMemAlloc(&here, std::max<std::size_t>(variable.bytes, 1));
    if (result != CUDA_SUCCESS) return result;
    ferro_sim_add_variable(here);
  }
  *address = here;
  return CUDA_SUCCESS;
}

}  // namespace ferro::sim

// nvcc's output calls these from static initialisers; no public header declares them.
extern "C" {

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

void** __cudaRegisterFatBinary(void* image) { return ferro::sim::register_image(image); }

void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 1; }

void __cudaRegisterFunction(void** handle, const char* host_function, char*, const char* name, int,
                            uint3*, uint3*, dim3*, dim3*, int*) {
  ferro::sim::register_kernel(host_function, name, handle);
}

void __cudaRegisterVar(void**, char* host_variable, char*, const char*, int, size_t bytes, int,
                       int) {
  ferro::sim::register_variable(host_variable, bytes);
}

void __cudaRegisterManagedVar(void**, void** host_variable, char*, const char*, int, size_t bytes,
                              int, int) {
  ferro::sim::register_variable(host_variable, bytes);
}

}  // extern "C"
