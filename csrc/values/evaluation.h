// One call of an operator on the simulated GPU, and its values by PyTorch's own operator for the CPU.
//
// The GPU's operator runs as always, for its allocations and launches. Around it the inputs are read
// and the results written, in the order of the stream that the operator runs on. What is not
// computed is unknown from then on: results are zeros, or positions that are valid; arguments keep
// what they had. Used by one thread.
#pragma once

#include "values/device_tensor.h"
#include "values/operator_traits.h"

#include <ATen/core/stack.h>

#include <memory>

namespace ferro::values {

// More elements than this, of all inputs or of all results, are not computed.
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

  // Before the GPU's operator: reads the inputs, and where sizes depend on them computes and lets
  // the driver answer with the size.
  void begin();
  // After it: `stack` ends with its results, of which one may be replaced by another of the right
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
