#include "sim/libraries/cuda/unsupported.h"

// CUDNN_STATUS_NOT_SUPPORTED.
#define FERRO_SIM_NAME(name)                                           \
  extern "C" __attribute__((weak, visibility("default"))) int name() { \
    ferro_sim_report_unsupported(#name);                               \
    return 3000;                                                       \
  }
#include "sim/libraries/names/cudnn.def"
