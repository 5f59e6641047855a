// Every difference between the versions of torch that ferro_alloc is built for. One binary serves
// one minor version: the layout of CUDAAllocator's virtual table changes between them.
#pragma once

#include <torch/headeronly/version.h>

#if TORCH_VERSION_MAJOR != 2 || TORCH_VERSION_MINOR != 11
#error "ferro_alloc is written for torch 2.11; the torch that it is compiled against is another one"
#endif

#define FERRO_STRINGIFY_(x) #x
#define FERRO_STRINGIFY(x) FERRO_STRINGIFY_(x)

namespace ferro {

// The minor version this binary is for, as "2.11".
inline constexpr const char* kBuiltForTorch =
    FERRO_STRINGIFY(TORCH_VERSION_MAJOR) "." FERRO_STRINGIFY(TORCH_VERSION_MINOR);

}  // namespace ferro
