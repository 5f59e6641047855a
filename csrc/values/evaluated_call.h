// What the two forms of a wrapped kernel share: `operators.cpp` has the boxed one, `direct_kernels.cpp`
// the one for frequent operators.
#pragma once

#include "values/in_operator.h"
#include "values/operator_traits.h"

#include <ATen/core/ivalue.h>

#include <cstdint>

namespace ferro::values {

// Wraps operators that libraries have registered since the last call.
void wrap_new_operators();

// The reads of a thread by an operator that copies to the host.
class Reads {
 public:
  explicit Reads(const InOperator& inside);
  // Tells what the program learned from those since then. `results`: of the operator, which are a
  // number or the tensor that was copied to.
  void note(const InOperator& inside, const OperatorTraits& traits,
            c10::ArrayRef<c10::IValue> results) const;

 private:
  const std::uint64_t unknown_;
  const std::uint64_t drawn_;
};

}  // namespace ferro::values
