// One call of an operator on the simulated GPU, whose values PyTorch's CPU operator computes.
//
// The GPU's operator runs normally, for its allocations and launches. Before it the inputs are
// read, and after it the results are written, in the order of its stream. Values that are not
// computed are unknown afterwards: results are zeros or valid positions; arguments keep their
// bytes. Used by one thread.
#pragma once

#include "values/device_tensor.h"
#include "values/operator_traits.h"

#include <ATen/core/stack.h>

#include <memory>

namespace ferro::values {

// The most elements, of all inputs or of all results, that are computed.
inline constexpr std::int64_t kMaxElements = 1 << 18;
// The same for operators whose results have sizes that depend on values.
inline constexpr std::int64_t kMaxElementsOfSized = 1 << 22;

class Evaluation {
 public:
  // `stack` ends with the arguments.
  Evaluation(const c10::OperatorHandle& op, const OperatorTraits& traits,
             const torch::jit::Stack& stack);
  ~Evaluation();
  Evaluation(const Evaluation&) = delete;
  Evaluation& operator=(const Evaluation&) = delete;

  // Called before the GPU's operator: reads the inputs. If sizes depend on them, computes now, and
  // the driver returns the size to the operator.
  void begin();
  // Called after it. `stack` ends with its results; one may be replaced by a tensor of the right
  // size.
  void end(torch::jit::Stack& stack);

  struct Job;

 private:
  bool is_moved_by_driver() const;
  void begin_sized();
  void collect_results(const torch::jit::Stack& stack);
  void fit_results(torch::jit::Stack& stack);
  // False: the stream is being captured.
  bool submit(void (*function)(void*));

  const c10::OperatorHandle& op_;
  const OperatorTraits& traits_;
  const torch::jit::Stack arguments_;
  int device_ = -1;
  void* stream_ = nullptr;
  bool nothing_to_do_ = false;
  bool answering_ = false;
  std::shared_ptr<Job> job_;
};

}  // namespace ferro::values
