// The driver's private tables, which NVIDIA's own libcudart requests. There are none here.
//
// Given stand-ins for all of them, libcudart calls one for proof that the driver is NVIDIA's, and
// fails without it. So the request is refused, with a report that names the library that contains
// this libcudart (ADR 27). NVRTC requests a table too, before it compiles its first kernel, and
// works without it. PyTorch caches the kernel on disk, so a report would appear only in the first
// of several equal runs.
#include "sim/libraries/cuda/unsupported.h"

#include <cuda.h>

#include <dlfcn.h>
#include <string>

namespace {

std::string library_of(const void* code) {
  Dl_info found{};
  if (dladdr(code, &found) == 0 || found.dli_fname == nullptr) return "an unknown library";
  const std::string path = found.dli_fname;
  return path.substr(path.rfind('/') + 1);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) CUresult cuGetExportTable(const void** table,
                                                                            const CUuuid*) {
  *table = nullptr;
  const std::string library = library_of(__builtin_return_address(0));
  if (library.starts_with("libnvrtc")) return CUDA_ERROR_NOT_SUPPORTED;
  ferro_sim_report_unsupported(
      ("cuGetExportTable, without which NVIDIA's libcudart in " + library + " does not start")
          .c_str());
  return CUDA_ERROR_NOT_SUPPORTED;
}
