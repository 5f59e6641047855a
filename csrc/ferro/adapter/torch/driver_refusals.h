// What the driver refuses, as PyTorch's own error.
#pragma once

#include "ferro/driver/error.h"

#include <utility>

namespace ferro {

// Throws the c10::AcceleratorError (torch.AcceleratorError) that PyTorch throws for the same error
// of a call of its own: its code, its text, and in a last line which call was refused. One that is
// no refusal of a call is thrown on as it is.
[[noreturn]] void throw_as_torch(const DriverError& refusal);

// What leaves to PyTorch goes through here.
template <typename Call>
decltype(auto) with_torch_errors(Call&& call) {
  try {
    return std::forward<Call>(call)();
  } catch (const DriverError& refusal) {
    throw_as_torch(refusal);
  }
}

}  // namespace ferro
