// What a CPU operator does in another way than the device's.
//
// The functions are called as `HostOperator` calls operators: with the machine locked and below the
// program's modes.
#pragma once

#include <ATen/core/stack.h>

#include <string_view>

namespace ferro::values {

// Null functions do nothing.
struct HostDifference {
  // Replaces arguments that the CPU operator refuses, or that would end the process.
  void (*adapt_arguments)(torch::jit::Stack& arguments) = nullptr;
  // Gives the results the device's form. `arguments`: before they were adapted.
  void (*adapt_results)(const torch::jit::Stack& arguments, torch::jit::Stack& results) = nullptr;
};

// Of an operator, by its name as in `OperatorTraits`.
HostDifference host_difference(std::string_view name);

}  // namespace ferro::values
