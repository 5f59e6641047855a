#include "sim/driver/proc_address.h"

#include <cstring>
#include <dlfcn.h>
#include <string>

namespace ferro::sim {
namespace {

// Functions whose newer versions changed the parameters: the suffix, and the first CUDA version
// that has it.
struct Change {
  const char* name;
  int version;
  const char* suffix;
};
constexpr Change kChanges[] = {
    {"cuCtxCreate", 13000, "_v4"},
    {"cuCtxCreate", 3020, "_v2"},
    {"cuCtxGetDevice", 13010, "_v2"},
    {"cuCtxGetDevice", 2000, ""},
    {"cuCtxSynchronize", 13010, "_v2"},
    {"cuCtxSynchronize", 2000, ""},
    {"cuStreamGetCaptureInfo", 12030, "_v3"},
    {"cuStreamGetCaptureInfo", 11030, "_v2"},
    {"cuStreamGetCaptureInfo", 10010, ""},
    {"cuStreamUpdateCaptureDependencies", 13000, "_v2"},
    {"cuStreamUpdateCaptureDependencies", 11030, ""},
    {"cuStreamBeginCapture", 10010, "_v2"},
    {"cuGraphGetEdges", 13000, "_v2"},
    {"cuGraphGetEdges", 10000, ""},
    {"cuGraphNodeGetDependencies", 13000, "_v2"},
    {"cuGraphNodeGetDependencies", 10000, ""},
    {"cuGraphNodeGetDependentNodes", 13000, "_v2"},
    {"cuGraphNodeGetDependentNodes", 10000, ""},
    {"cuGraphAddDependencies", 13000, "_v2"},
    {"cuGraphAddDependencies", 10000, ""},
    {"cuGraphRemoveDependencies", 13000, "_v2"},
    {"cuGraphRemoveDependencies", 10000, ""},
    {"cuGraphAddNode", 13000, "_v2"},
    {"cuGraphAddNode", 12020, ""},
    {"cuGraphInstantiate", 12000, "WithFlags"},
    {"cuGraphExecUpdate", 12000, "_v2"},
    {"cuDeviceGetUuid", 11040, "_v2"},
    {"cuMemAdvise", 13000, "_v2"},
    {"cuMemAdvise", 8000, ""},
    {"cuMemPrefetchAsync", 13000, "_v2"},
    {"cuMemPrefetchAsync", 8000, ""},
    {"cuEventElapsedTime", 12080, "_v2"},
};

// The library that holds this code.
void* own_library() {
  static void* const library = []() -> void* {
    Dl_info info = {};
    if (dladdr(reinterpret_cast<const void*>(&find_proc_address), &info) == 0) {
      return nullptr;
    }
    return dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  }();
  return library;
}

}  // namespace

void* find_proc_address(const char* name, int cuda_version) {
  void* library = own_library();
  if (library == nullptr) {
    return nullptr;
  }
  for (const Change& change : kChanges) {
    if (std::strcmp(change.name, name) == 0 && cuda_version >= change.version) {
      return dlsym(library, (std::string(name) + change.suffix).c_str());
    }
  }
  // Older changes only widened integers, so every caller gets the newest version.
  for (const char* suffix : {"_v4", "_v3", "_v2", ""}) {
    if (void* function = dlsym(library, (std::string(name) + suffix).c_str())) {
      return function;
    }
  }
  return nullptr;
}

}  // namespace ferro::sim
