// Stubs: every name of the library's list that no other source of the library defines.
//
// The definitions are weak, so a function is simulated by defining it and the list needs no upkeep.
// This source includes no CUDA header: a stub has no parameters, which the calling convention
// allows, and would clash with the declaration.
#include "sim/libraries/cuda/unsupported.h"

// CUDA_ERROR_NOT_SUPPORTED and cudaErrorNotSupported have the same value.
#define FERRO_SIM_NAME(name)                                           \
  extern "C" __attribute__((weak, visibility("default"))) int name() { \
    ferro_sim_report_unsupported(#name);                               \
    return 801;                                                        \
  }
#include "sim/libraries/names/cudart.def"
