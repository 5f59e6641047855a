// NVML_ERROR_NOT_SUPPORTED. Real cards return it too, so it is not reported.
#define FERRO_SIM_NAME(name) \
  extern "C" __attribute__((weak, visibility("default"))) int name() { return 3; }
#include "sim/libraries/names/nvml.def"
