// Operators on sparse tensors whose CUDA kernels are not made of other operators. The indices and
// values of their arguments and results are dense, and operators of this file compute the ones from
// the others on the host.
#pragma once

#include <ATen/core/stack.h>

#include <functional>
#include <string_view>

namespace ferro::values {

// Gives the results values, around `run`, which calls the GPU's operator on `stack`. False: it has not
// called it, because it does not know these arguments.
using SparseEvaluation = bool (*)(torch::jit::Stack& stack, const std::function<void()>& run);

// Null for an operator that needs none: `name` as in `OperatorTraits`. Of COO tensors, and of those
// with compressed rows or columns.
SparseEvaluation sparse_evaluation(std::string_view name);
SparseEvaluation compressed_evaluation(std::string_view name);

}  // namespace ferro::values
