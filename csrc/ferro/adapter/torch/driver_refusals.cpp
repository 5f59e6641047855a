#include "ferro/adapter/torch/driver_refusals.h"

#include <c10/cuda/CUDAException.h>

#include <string>

namespace ferro {

// The runtime's errors have the driver's numbers.
void throw_as_torch(const DriverError& refusal) {
  try {
    C10_CUDA_CHECK(static_cast<cudaError_t>(refusal.code()));
  } catch (const c10::AcceleratorError& error) {
    std::string text = error.msg();
    if (!text.ends_with('\n')) {
      text += '\n';
    }
    throw c10::AcceleratorError({__func__, __FILE__, static_cast<std::uint32_t>(__LINE__)},
                                error.get_error_code(), text + refusal.what());
  }
  throw DriverError(refusal);
}

}  // namespace ferro
