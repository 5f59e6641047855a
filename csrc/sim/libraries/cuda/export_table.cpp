// The driver's private tables, which NVIDIA's own libcudart asks for. There are none.
//
// With stand-ins for all of them it asks one for proof that the driver is NVIDIA's, and does not
// start without. So the refusal comes first, and says what it is about (ADR 27).
#include "sim/libraries/cuda/unsupported.h"

#include <cuda.h>

extern "C" __attribute__((visibility("default"))) CUresult cuGetExportTable(const void** table,
                                                                            const CUuuid*) {
  ferro_sim_report_unsupported(
      "cuGetExportTable, so a library that brings NVIDIA's libcudart along cannot use it");
  *table = nullptr;
  return CUDA_ERROR_NOT_SUPPORTED;
}
