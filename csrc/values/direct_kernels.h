// Wrapped kernels of frequent operators, without boxed arguments.
//
// A boxed kernel gets its arguments in a list, which counts a reference to each tensor. If that is the
// second one of a tensor that has a Python object, PyTorch takes Python's lock to add it, and again to
// drop it.
#pragma once

#include "values/operator_traits.h"

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/CppSignature.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>

namespace ferro::values {

struct WrappedKernel {
  c10::KernelFunction function;
  // The dispatcher refuses another one than the operator's. None: it is not checked.
  std::optional<c10::impl::CppSignature> signature = std::nullopt;
};

// For the device's key. None if the operator is not one of those, or its kernel is not in the file of
// PyTorch where these functions are.
std::optional<WrappedKernel> direct_kernel(const c10::OperatorHandle& op,
                                           const OperatorTraits& traits);

}  // namespace ferro::values
