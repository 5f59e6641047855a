// Stubs of the functions of cuBLAS that no other source defines; weak, as those in cuda/stubs.cpp.
#include "sim/libraries/cublas/handle.h"
#include "sim/libraries/cublas_lt/blas_operation.h"
#include "sim/libraries/cuda/unsupported.h"

// A function that computes becomes an operation on its handle's stream.
#define FERRO_SIM_OPERATION(name)                                                            \
  extern "C" __attribute__((weak, visibility("default"))) int name(                          \
      const ferro::sim::BlasHandle* handle) {                                                \
    constexpr int kSuccess = 0;                                                              \
    constexpr int kExecutionFailed = 13;                                                     \
    return ferro::sim::enqueue_operation(handle->stream) == CUDA_SUCCESS ? kSuccess          \
                                                                         : kExecutionFailed; \
  }
#include "sim/libraries/names/cublas_operations.def"

// CUBLAS_STATUS_NOT_SUPPORTED.
#define FERRO_SIM_SETTING(name)                                        \
  extern "C" __attribute__((weak, visibility("default"))) int name() { \
    ferro_sim_report_unsupported(#name);                               \
    return 15;                                                         \
  }
#include "sim/libraries/names/cublas_settings.def"
