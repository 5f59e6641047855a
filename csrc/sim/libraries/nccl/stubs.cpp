#include "sim/libraries/cuda/unsupported.h"

// ncclInvalidUsage.
#define FERRO_SIM_NAME(name)                                           \
  extern "C" __attribute__((weak, visibility("default"))) int name() { \
    ferro_sim_report_unsupported(#name);                               \
    return 5;                                                          \
  }
#include "sim/libraries/names/nccl.def"
