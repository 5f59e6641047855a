// Stubs, as in cuda/stubs.cpp.
#include "sim/libraries/cuda/unsupported.h"

// CUFFT_NOT_SUPPORTED.
#define FERRO_SIM_NAME(name)                                           \
  extern "C" __attribute__((weak, visibility("default"))) int name() { \
    ferro_sim_report_unsupported(#name);                               \
    return 16;                                                         \
  }
#include "sim/libraries/names/cufft.def"
