#include "sim/driver_api.h"

namespace ferro::sim {

const CudaApi& sim_cuda_api() {
  static const CudaApi api = [] {
    CudaApi filled;
#define FERRO_SIM_FILL(member, symbol) filled.member = &::symbol;
    FERRO_CUDA_API(FERRO_SIM_FILL)
    FERRO_CUDA_API_OPTIONAL(FERRO_SIM_FILL)
#undef FERRO_SIM_FILL
    return filled;
  }();
  return api;
}

}  // namespace ferro::sim
