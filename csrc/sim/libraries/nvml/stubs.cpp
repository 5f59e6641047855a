// NVML_ERROR_NOT_SUPPORTED, which real cards answer too: it is no news, and is not printed.
#define FERRO_SIM_NAME(name) \
  extern "C" __attribute__((weak, visibility("default"))) int name() { return 3; }
#include "sim/libraries/names/nvml.def"
