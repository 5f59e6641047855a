#include "sim/libraries/cuda/unsupported.h"

// CUBLAS_STATUS_NOT_SUPPORTED.
#define FERRO_SIM_NAME(name)                                           \
  extern "C" __attribute__((weak, visibility("default"))) int name() { \
    ferro_sim_report_unsupported(#name);                               \
    return 15;                                                         \
  }
#include "sim/libraries/names/cublas_lt.def"
