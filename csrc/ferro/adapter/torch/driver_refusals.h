// Throws refusals of the driver as PyTorch's own error.
#pragma once

#include "ferro/driver/error.h"

#include <utility>

namespace ferro {

// Throws the c10::AcceleratorError (torch.AcceleratorError) that PyTorch throws for the same error
// of its own calls, with its code and text, and a last line that names the refused call. Rethrows a
// DriverError that is not the refusal of a call.
[[noreturn]] void throw_as_torch(const DriverError& refusal);

// Wraps each call whose errors reach PyTorch.
template <typename Call>
decltype(auto) with_torch_errors(Call&& call) {
  try {
    return std::forward<Call>(call)();
  } catch (const DriverError& refusal) {
    throw_as_torch(refusal);
  }
}

}  // namespace ferro
