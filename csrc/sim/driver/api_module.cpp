// Driver functions: modules, libraries, functions. Of an image, only its architectures and the
// parameters of its kernels are read: every name exists, and every kernel does nothing.
#include "sim/driver/api_call.h"
#include "sim/machine/outside_kernel.h"

#include <cstring>
#include <fstream>
#include <iterator>
#include <string>

using ferro::sim::Function;
using ferro::sim::Machine;
using ferro::sim::Module;

namespace {

constexpr std::size_t kGlobalBytes = 4096;

int capability(const Machine& machine) {
  return machine.config().card->compute_major * 10 + machine.config().card->compute_minor;
}

// A null `image` stands for an unreadable file, which counts as built for the card.
CUresult load(Machine& machine, void** out, const void* image) {
  if (out == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Module* module = machine.modules().load(image, capability(machine));
  if (module == nullptr) {
    return CUDA_ERROR_NO_BINARY_FOR_GPU;
  }
  *out = module;
  return CUDA_SUCCESS;
}

CUresult load_file(Machine& machine, void** out, const char* path) {
  std::ifstream file(path == nullptr ? "" : path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  // Headers are read whole.
  constexpr std::size_t kLeastBytes = 64;
  return load(machine, out, bytes.size() < kLeastBytes ? nullptr : bytes.data());
}

CUresult get_function(Machine& machine, void** out, const void* module_handle, const char* name) {
  Module* module = machine.modules().find(module_handle);
  if (module == nullptr || out == nullptr || name == nullptr) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  *out = machine.modules().function(*module, name);
  return CUDA_SUCCESS;
}

// Unknown functions have attributes too: a runtime library has its own handles of statically linked
// kernels.
CUresult function_attribute(const Machine& machine, int* value, CUfunction_attribute attribute,
                            const Function* function) {
  if (value == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (function != nullptr) {
    const auto set = function->attributes.find(attribute);
    if (set != function->attributes.end()) {
      *value = set->second;
      return CUDA_SUCCESS;
    }
  }
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      *value = 1024;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
      *value = 32;
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
      *value = function != nullptr ? function->module->versions.ptx : capability(machine);
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
      *value = function != nullptr ? function->module->versions.binary : capability(machine);
      return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      *value = 49152;
      return CUDA_SUCCESS;
    default:
      *value = 0;
      return CUDA_SUCCESS;
  }
}

CUresult get_global(ferro::sim::ApiCall& call, CUdeviceptr* out, size_t* bytes,
                    const void* module_handle, const char* name) {
  Module* module = call.machine().modules().find(module_handle);
  if (module == nullptr || name == nullptr) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  auto found = module->globals.find(name);
  if (found == module->globals.end()) {
    const auto at = call.device().allocations.allocate(kGlobalBytes);
    if (!at) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    found = module->globals.emplace(name, *at).first;
    add_variable(call.machine(), *at);
  }
  if (out != nullptr) {
    *out = found->second;
  }
  if (bytes != nullptr) {
    *bytes = kGlobalBytes;
  }
  return CUDA_SUCCESS;
}

int blocks_that_fit(const Machine& machine, int block_size, std::size_t shared_bytes) {
  const auto& card = *machine.config().card;
  int blocks = card.threads_per_multiprocessor / std::max(block_size, 1);
  if (shared_bytes > 0) {
    blocks = std::min(
        blocks, static_cast<int>(static_cast<std::size_t>(card.shared_bytes_per_multiprocessor) /
                                 (shared_bytes + 1024)));
  }
  return std::min(blocks, card.threads_per_multiprocessor / 64);
}

}  // namespace

FERRO_SIM_API cuModuleLoad(CUmodule* module, const char* path) {
  FERRO_SIM_CALL(0);
  return call.finish(load_file(call.machine(), reinterpret_cast<void**>(module), path));
}

FERRO_SIM_API cuModuleLoadData(CUmodule* module, const void* image) {
  FERRO_SIM_CALL(0);
  return call.finish(load(call.machine(), reinterpret_cast<void**>(module), image));
}

FERRO_SIM_API cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned, CUjit_option*,
                                 void**) {
  FERRO_SIM_CALL(0);
  return call.finish(load(call.machine(), reinterpret_cast<void**>(module), image));
}

FERRO_SIM_API cuModuleLoadFatBinary(CUmodule* module, const void* image) {
  FERRO_SIM_CALL(0);
  return call.finish(load(call.machine(), reinterpret_cast<void**>(module), image));
}

FERRO_SIM_API cuModuleUnload(CUmodule module) {
  FERRO_SIM_CALL(0);
  return call.finish(call.machine().modules().unload(reinterpret_cast<Module*>(module))
                         ? CUDA_SUCCESS
                         : CUDA_ERROR_INVALID_HANDLE);
}

FERRO_SIM_API cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  FERRO_SIM_QUERY();
  *mode = CU_MODULE_LAZY_LOADING;
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  FERRO_SIM_CALL(0);
  return call.finish(
      get_function(call.machine(), reinterpret_cast<void**>(function), module, name));
}

FERRO_SIM_API cuModuleGetGlobal_v2(CUdeviceptr* out, size_t* bytes, CUmodule module,
                                   const char* name) {
  FERRO_SIM_CONTEXT_CALL(0);
  return call.finish(get_global(call, out, bytes, module, name));
}

FERRO_SIM_API cuLibraryLoadData(CUlibrary* library, const void* image, CUjit_option*, void**,
                                unsigned, CUlibraryOption*, void**, unsigned) {
  FERRO_SIM_CALL(0);
  return call.finish(load(call.machine(), reinterpret_cast<void**>(library), image));
}

FERRO_SIM_API cuLibraryLoadFromFile(CUlibrary* library, const char* path, CUjit_option*, void**,
                                    unsigned, CUlibraryOption*, void**, unsigned) {
  FERRO_SIM_CALL(0);
  return call.finish(load_file(call.machine(), reinterpret_cast<void**>(library), path));
}

FERRO_SIM_API cuLibraryUnload(CUlibrary library) {
  FERRO_SIM_CALL(0);
  return call.finish(call.machine().modules().unload(reinterpret_cast<Module*>(library))
                         ? CUDA_SUCCESS
                         : CUDA_ERROR_INVALID_HANDLE);
}

FERRO_SIM_API cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  FERRO_SIM_CALL(0);
  return call.finish(get_function(call.machine(), reinterpret_cast<void**>(kernel), library, name));
}

FERRO_SIM_API cuLibraryGetModule(CUmodule* module, CUlibrary library) {
  FERRO_SIM_CALL(0);
  Module* found = call.machine().modules().find(library);
  if (found == nullptr) {
    return call.finish(CUDA_ERROR_INVALID_HANDLE);
  }
  *module = reinterpret_cast<CUmodule>(found);
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuLibraryGetGlobal(CUdeviceptr* out, size_t* bytes, CUlibrary library,
                                 const char* name) {
  FERRO_SIM_CONTEXT_CALL(0);
  return call.finish(get_global(call, out, bytes, library, name));
}

// A kernel and its function are one object.
FERRO_SIM_API cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  FERRO_SIM_CALL(0);
  *function = reinterpret_cast<CUfunction>(kernel);
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel kernel,
                                   CUdevice) {
  FERRO_SIM_CALL(0);
  return call.finish(function_attribute(call.machine(), value, attribute,
                                        call.machine().modules().find_function(kernel)));
}

FERRO_SIM_API cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel,
                                   CUdevice) {
  FERRO_SIM_CALL(0);
  if (Function* function = call.machine().modules().find_function(kernel)) {
    function->attributes[attribute] = value;
  }
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction function) {
  FERRO_SIM_CALL(0);
  return call.finish(function_attribute(call.machine(), value, attribute,
                                        call.machine().modules().find_function(function)));
}

FERRO_SIM_API cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attribute, int value) {
  FERRO_SIM_CALL(0);
  if (Function* function = call.machine().modules().find_function(handle)) {
    function->attributes[attribute] = value;
  }
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuFuncSetCacheConfig(CUfunction, CUfunc_cache) {
  FERRO_SIM_CALL(0);
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuFuncGetModule(CUmodule* module, CUfunction handle) {
  FERRO_SIM_CALL(0);
  const Function* function = call.machine().modules().find_function(handle);
  if (function == nullptr) {
    return call.finish(CUDA_ERROR_INVALID_HANDLE);
  }
  *module = reinterpret_cast<CUmodule>(function->module);
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuFuncGetName(const char** name, CUfunction handle) {
  FERRO_SIM_CALL(0);
  const Function* function = call.machine().modules().find_function(handle);
  if (function == nullptr) {
    return call.finish(CUDA_ERROR_INVALID_HANDLE);
  }
  *name = function->name.c_str();
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuFuncGetParamInfo(CUfunction handle, size_t index, size_t* offset, size_t* bytes) {
  FERRO_SIM_CALL(0);
  const Function* function = call.machine().modules().find_function(handle);
  if (function == nullptr || offset == nullptr) {
    return call.finish(CUDA_ERROR_INVALID_VALUE);
  }
  const ferro::sim::Parameters& known = call.machine().modules().parameters_of(*function);
  if (index >= known.size()) {
    return call.finish(CUDA_ERROR_INVALID_VALUE);
  }
  *offset = known[index].offset;
  if (bytes != nullptr) {
    *bytes = known[index].bytes;
  }
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuFuncIsLoaded(CUfunctionLoadingState* state, CUfunction) {
  FERRO_SIM_CALL(0);
  *state = CU_FUNCTION_LOADING_STATE_LOADED;
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuFuncLoad(CUfunction) {
  FERRO_SIM_CALL(0);
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction, int block_size,
                                                          size_t shared_bytes) {
  FERRO_SIM_CALL(0);
  *blocks = blocks_that_fit(call.machine(), block_size, shared_bytes);
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, CUfunction,
                                                                   int block_size,
                                                                   size_t shared_bytes, unsigned) {
  FERRO_SIM_CALL(0);
  *blocks = blocks_that_fit(call.machine(), block_size, shared_bytes);
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuOccupancyMaxPotentialBlockSize(int* min_grid, int* block_size, CUfunction,
                                               CUoccupancyB2DSize, size_t, int limit) {
  FERRO_SIM_CALL(0);
  *block_size = limit > 0 ? std::min(limit, 1024) : 1024;
  *min_grid = call.machine().config().card->multiprocessors *
              blocks_that_fit(call.machine(), *block_size, 0);
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuOccupancyMaxActiveClusters(int* clusters, CUfunction, const CUlaunchConfig*) {
  FERRO_SIM_CALL(0);
  *clusters = call.machine().config().card->multiprocessors / 2;
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType, cuuint32_t,
                                     void* address, const cuuint64_t*, const cuuint64_t*,
                                     const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                                     CUtensorMapSwizzle, CUtensorMapL2promotion,
                                     CUtensorMapFloatOOBfill) {
  FERRO_SIM_CALL(0);
  // A kernel that gets the map reaches the memory: see machine/outside_kernel.h.
  *map = {};
  std::memcpy(map, &address, sizeof address);
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuProfilerStart() {
  FERRO_SIM_CALL(0);
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuProfilerStop() {
  FERRO_SIM_CALL(0);
  return CUDA_SUCCESS;
}
