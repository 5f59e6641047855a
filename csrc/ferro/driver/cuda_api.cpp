#include "ferro/driver/cuda_api.h"

#include <dlfcn.h>

namespace ferro {
namespace {

LoadedCudaApi load() {
  // RTLD_LOCAL: only this table needs the symbols. The library is never closed, because allocations
  // live until the process ends.
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return {nullptr, "no CUDA driver: libcuda.so.1 could not be loaded"};
  }
  static CudaApi api;
#define FERRO_CUDA_API_LOAD(member, symbol)                                     \
  api.member = reinterpret_cast<decltype(api.member)>(dlsym(library, #symbol)); \
  if (api.member == nullptr) {                                                  \
    return {nullptr, "the CUDA driver has no function " #symbol                 \
                     "; ferro_alloc needs CUDA 12.3 "                           \
                     "or newer"};                                               \
  }
  FERRO_CUDA_API(FERRO_CUDA_API_LOAD)
#undef FERRO_CUDA_API_LOAD
#define FERRO_CUDA_API_LOAD(member, symbol) \
  api.member = reinterpret_cast<decltype(api.member)>(dlsym(library, #symbol));
  FERRO_CUDA_API_OPTIONAL(FERRO_CUDA_API_LOAD)
#undef FERRO_CUDA_API_LOAD
  return {&api, ""};
}

}  // namespace

const LoadedCudaApi& load_cuda_api() {
  static const LoadedCudaApi loaded = load();
  return loaded;
}

}  // namespace ferro
