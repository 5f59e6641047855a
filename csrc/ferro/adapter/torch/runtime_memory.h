// Plain allocations through the runtime's cudaMalloc and cudaFree, as PyTorch's native allocator has.
//
// Libraries that programs preload (LD_PRELOAD) put functions of their own in the place of those two,
// to pause memory or to count it. What comes from cuMemAlloc they never see (ADR 28).
#pragma once

#include "ferro/driver/cuda_api.h"

namespace ferro {

// `load_cuda_api()`, its table with the runtime's functions as `mem_alloc` and `mem_free`. They work
// in the context that is current, leave no last error of the runtime behind, and may be called where
// the driver's may. Thread-safe; made once.
const LoadedCudaApi& load_torch_api();

}  // namespace ferro
