// Results of a CPU operator in the form of the device's, where the two differ.
//
// Called as `HostOperator` calls operators: with the machine locked and below the program's modes.
#pragma once

#include "values/operator_traits.h"

#include <ATen/core/stack.h>

namespace ferro::values {

// `results` of `arguments`. Other operators keep theirs.
void make_results_of_device(const OperatorTraits& traits, const torch::jit::Stack& arguments,
                            torch::jit::Stack& results);

}  // namespace ferro::values
