// One call of an operator with a wrapped kernel: `operators.cpp` has the boxed kernel,
// `direct_kernels.cpp` the one for frequent operators.
#pragma once

#include "values/evaluation.h"
#include "values/host_copies.h"
#include "values/in_operator.h"
#include "values/operator_traits.h"
#include "values/places.h"

#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <exception>
#include <optional>

namespace ferro::values {

// Wraps operators that libraries have registered since the last call.
void wrap_new_operators();

// Returns `call(inside)`, during which the thread is in the operator. `arguments`: as `InOperator`
// takes them. An exception is noted as the operator's failure, and thrown again.
template <typename Arguments, typename Call>
decltype(auto) call_operator(const OperatorTraits& traits, const Arguments& arguments,
                             const Call& call) {
  wrap_new_operators();
  InOperator inside(traits, arguments);
  try {
    return call(inside);
  } catch (const std::exception& error) {
    inside.set_failed();
    note_failure(traits.name, error.what(), inside.is_outermost());
    throw;
  }
}

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

// Gives the results of a call values. Made before the GPU's operator and ended after it. The thread is
// in the operator.
class EvaluatedCall {
 public:
  using Arguments = Evaluation::Arguments;

  EvaluatedCall(const c10::OperatorHandle& op, const OperatorTraits& traits,
                const InOperator& inside, Arguments arguments, Evaluation::Lifetime lifetime,
                Evaluation::Expectation* expects_unknown = nullptr)
      : traits_(traits), inside_(inside), transfers_(inside.transfers()), evaluation_(op, traits) {
    if (traits.kind == Kind::kCopy) {
      copy_.emplace(inside, arguments);
    }
    evaluation_.begin(arguments, lifetime, expects_unknown);
  }
  // One of these.
  void end(torch::jit::Stack& stack) {
    end(stack, [&] { return torch::jit::last(stack, traits_.returns); });
  }
  void end(Arguments results) {
    end(results, [&] { return results; });
  }

 private:
  struct Copy {
    Copy(const InOperator& inside, Arguments arguments)
        : reads(inside), with_host(HostCopy::of(arguments)) {}
    const Reads reads;
    const std::optional<HostCopy> with_host;
  };

  // `results`: as `Evaluation` takes them.
  template <typename Results, typename List>
  void end(Results& results, const List& list) {
    if (copy_ && copy_->with_host) {
      copy_->with_host->note();
    }
    // One operator for each tensor did the work: these are evaluated.
    const bool done_by_others = traits_.by_element && !inside_.has_own_kernels();
    const bool done_by_library =
        traits_.kind == Kind::kTransfer && inside_.transfers() != transfers_;
    if (!done_by_others && !done_by_library) {
      evaluation_.end(results);
    }
    if (copy_) {
      copy_->reads.note(inside_, traits_, list());
    }
  }

  const OperatorTraits& traits_;
  const InOperator& inside_;
  const std::uint64_t transfers_;
  std::optional<Copy> copy_;
  Evaluation evaluation_;
};

}  // namespace ferro::values
