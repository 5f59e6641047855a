// The simulated driver as a table of functions, for programs that link it statically.
#pragma once

#include "ferro/driver/cuda_api.h"

namespace ferro::sim {

// Complete, and valid for the life of the process.
const CudaApi& sim_cuda_api();

}  // namespace ferro::sim
