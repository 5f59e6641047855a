// The thread's innermost operator on the simulated GPU.
#pragma once

#include "values/gpu.h"
#include "values/operator_traits.h"

#include <ATen/core/stack.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

namespace ferro::values {

// Whether operators get values. Read at each call: a process that forks wraps the operators once, and
// each child decides.
inline std::atomic<bool> computes_values = true;

// While it exists, the thread's kernels count as an operator's, and so do the results of kernels that
// it reads back. Used by one thread.
class InOperator {
 public:
  // `stack`: ends with the arguments, until a kernel takes them from it.
  InOperator(const OperatorTraits& traits, const torch::jit::Stack& stack)
      : InOperator(traits, &stack, {}) {}
  // `arguments` outlive it.
  InOperator(const OperatorTraits& traits, c10::ArrayRef<c10::IValue> arguments)
      : InOperator(traits, nullptr, arguments) {}
  ~InOperator();
  InOperator(const InOperator&) = delete;
  InOperator& operator=(const InOperator&) = delete;

  // A request for memory failed in this thread. If the operator ends without an exception all the
  // same, it did without that memory.
  static void add_failed_request(std::uint64_t number);

  // What its own kernels compute is unknown: the sizes that it reads after them are too.
  void set_opaque() { is_opaque_ = true; }
  // Whether it is part of one that only checks what it reads.
  bool is_check() const { return outer_ != nullptr && outer_->traits_.reads_to_check; }
  // The least size of the result, if so many numbers of the input were drawn that one of them would
  // probably exceed it if any could. What it reads of them then decides no size, unless one does.
  std::optional<std::int64_t> least_size() const;
  // Whether it is part of such an operator.
  bool has_outer_size() const { return outer_ != nullptr && outer_->least_size().has_value(); }
  // For the operator around: what it read of them.
  void note_for_outer(std::int64_t number) const {
    outer_->largest_read_ = std::max(outer_->largest_read_, number);
  }
  std::int64_t largest_read() const { return largest_read_; }
  // Whether the thread's innermost operator is part of another one of PyTorch's.
  static bool is_part() {
    return innermost_->outer_ != nullptr && innermost_->outer_->traits_.kind != Kind::kElsewhere;
  }
  // Whether no operator of PyTorch's is around it: one of another library may catch its exceptions.
  bool is_outermost() const {
    return outer_ == nullptr || outer_->traits_.kind == Kind::kElsewhere;
  }
  // It ends with an exception.
  void set_failed() { has_failed_ = true; }
  // Whether it launched kernels itself so far, and not only by other operators.
  bool has_own_kernels() const { return own_launches(counts_.launches) > 0; }
  // Copies of the thread to the host that ended, by their least certain byte.
  std::uint64_t reads(ferro_sim_certainty least) const {
    return std::atomic_ref(counts_.reads[least]).load(std::memory_order_relaxed);
  }
  std::uint64_t transfers() const { return counts_.transfers; }

  // Whether the thread's innermost operator reads back the result of a kernel, and not an argument.
  static int reads_result(std::uint64_t address);

 private:
  InOperator(const OperatorTraits& traits, const torch::jit::Stack* stack,
             c10::ArrayRef<c10::IValue> arguments);
  // Before a kernel takes them.
  c10::ArrayRef<c10::IValue> arguments() const {
    return stack_ != nullptr ? torch::jit::last(*stack_, traits_.arguments) : arguments_;
  }
  bool has_size() const { return traits_.kind == Kind::kReads || traits_.kind == Kind::kDataSized; }
  std::uint64_t own_launches(std::uint64_t launched) const {
    return launched - launched_before_ - launched_within_;
  }
  bool reads_result_at(std::uint64_t address);

  static thread_local InOperator* innermost_;
  const OperatorTraits& traits_;
  const torch::jit::Stack* const stack_;  // null: `arguments_` are valid
  const c10::ArrayRef<c10::IValue> arguments_;
  InOperator* const outer_;
  std::int64_t largest_read_ = -1;
  ferro_sim_thread_counts& counts_;
  const std::uint64_t launched_before_;
  std::uint64_t launched_within_ = 0;  // by operators within it
  std::vector<std::uint64_t> failed_requests_;
  bool is_opaque_ = false;
  bool has_failed_ = false;
  bool read_result_ = false;
};

}  // namespace ferro::values
