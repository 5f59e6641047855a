// Stubs, as in cuda/stubs.cpp.
#include "sim/libraries/cuda/unsupported.h"

// CUDA_ERROR_NOT_SUPPORTED and cudaErrorNotSupported have the same value.
#define FERRO_SIM_NAME(name)                                           \
  extern "C" __attribute__((weak, visibility("default"))) int name() { \
    ferro_sim_report_unsupported(#name);                               \
    return 801;                                                        \
  }
#include "sim/libraries/names/cudart.def"
