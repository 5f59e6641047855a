// One call of an operator on the simulated GPU, whose values PyTorch's CPU operator computes.
//
// The GPU's operator runs normally, for its allocations and launches. In the order of its stream,
// what the inputs are is taken before it, or after it if they are the same then, and after it the
// results get values (`value.h`), which are computed when they are read. Only operators whose
// results have sizes that depend on values compute at once. Results without a value are unknown
// zeros or drawn positions; arguments keep their bytes unless they are only overwritten. Results of
// random numbers that are not a card's count as drawn. Used by one thread.
#pragma once

#include "values/device_tensor.h"
#include "values/operator_traits.h"

#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <cstdint>

namespace ferro::values {

// The most elements, of all inputs or of all results, of an operator whose cost grows faster than
// their number.
inline constexpr std::int64_t kMaxCostlyElements = 1 << 18;
// The most elements of an input, or of a result, of an operator with unknown inputs whose results get
// values all the same, so that indices and masks agree with each other, and numbers that follow from
// masks and known data alone. Of operators on lists, of all of them. They are unknown too. What
// follows from drawn and known inputs is computed as from known ones.
inline constexpr std::int64_t kMaxUnknownElements = 1 << 26;
// The same for other floating-point numbers, of all inputs, or of all results.
inline constexpr std::int64_t kMaxUnknownNumbers = 32;
// The most elements, of all inputs or of all results, of an operator whose results are known in part if
// its inputs are. Which elements are known is found at once. The same for floating-point numbers, on
// which sizes seldom depend. Writes that may take all places of a wholly unknown argument have
// `kMaxUnknownElements` instead.
inline constexpr std::int64_t kMaxPartlyKnown = 1 << 14;
inline constexpr std::int64_t kMaxPartlyKnownNumbers = 1 << 12;
// The same for arithmetic with floating-point numbers.
inline constexpr std::int64_t kMaxComputedParts = 128;
// The most parts of an input, or of a result, that are not equally certain.
inline constexpr std::int64_t kMaxParts = 64;

class Evaluation {
 public:
  using Arguments = c10::ArrayRef<c10::IValue>;

  Evaluation(const c10::OperatorHandle& op, const OperatorTraits& traits);
  ~Evaluation();
  Evaluation(const Evaluation&) = delete;
  Evaluation& operator=(const Evaluation&) = delete;

  // How long the arguments are valid: as long as this object, or until the GPU's operator takes them.
  enum class Lifetime : std::uint8_t { kOfCaller, kUntilTaken };
  // Whether an operator's inputs are expected to be wholly unknown, as those of its last call were. Only
  // the time depends on it.
  using Expectation = std::atomic<bool>;
  // Called before the GPU's operator: takes the inputs, unless `end` does. If sizes depend on them,
  // computes now, and the driver returns the size to the operator. `expects_unknown` may be null.
  void begin(Arguments arguments, Lifetime lifetime = Lifetime::kUntilTaken,
             Expectation* expects_unknown = nullptr);
  // Called after it. `stack` ends with its results; one may be replaced by a tensor of the right
  // size.
  void end(torch::jit::Stack& stack);
  // The same, if their sizes do not depend on values.
  void end(Arguments results);
  // Both are called instead: the results, and the parts of sparse ones, may become unknown.
  void begin_opaque(Arguments arguments) { keep(arguments, Lifetime::kUntilTaken); }
  void forget(Arguments results);

  struct Job;

 private:
  // Makes the results unknown if the inputs are wholly unknown numbers and nothing else follows from
  // them. Without a job, because most operators of a large model are so. False, without an effect: the
  // general way gives the results, or the stream has a queue.
  bool ends_unknown(Arguments results);
  bool give_unknown(Arguments results) const;  // with the machine locked
  // Before the GPU's operator, or after it.
  void prepare(Arguments arguments, Lifetime lifetime);
  // Of the call, without its inputs on the GPU.
  std::uint64_t identity_of(Arguments arguments) const;
  // Calls `visit(tensor, place, in_list, overwritten)`.
  template <typename Visit>
  void for_each_argument(Arguments arguments, const Visit& visit) const;
  // Calls `visit(tensor, of_argument, place, in_list, keeps)`.
  template <typename Visit>
  void for_each_result(Arguments results, const Visit& visit) const;
  void make_job();
  // For what follows the GPU's operator.
  void keep(Arguments arguments, Lifetime lifetime);
  static bool is_moved_by_driver(Arguments arguments);
  // By a kernel, given that the driver does not move it.
  bool copies_between_cards(Arguments arguments) const;
  void find_operands(Arguments arguments, bool between_cards);
  // Whether the results get values, given whether the inputs are known.
  void choose();
  // For values of the results.
  void take_arguments();
  // True: in eager time, and the results are given too.
  bool take_late();
  void begin_sized(Arguments arguments);
  void collect_results(Arguments results);
  void fit_results(torch::jit::Stack& stack);
  // False: the stream is being captured.
  bool submit(void (*function)(void*));

  const c10::OperatorHandle& op_;
  const OperatorTraits& traits_;
  Arguments kept_;  // the arguments, if they are needed after it
  c10::SmallVector<c10::IValue, 8> owned_;
  int device_ = -1;
  void* stream_ = nullptr;
  bool nothing_to_do_ = false;
  bool is_postponed_ = false;  // until the GPU's operator has run
  Expectation* expects_unknown_ = nullptr;
  bool answering_ = false;
  bool takes_ = false;       // the job takes inputs in its first turn
  bool takes_late_ = false;  // after the GPU's operator
  bool is_given_ = false;    // and ends with its second one
  c10::intrusive_ptr<Job> job_;
  std::vector<c10::intrusive_ptr<Job>>* spare_jobs_ = nullptr;  // of the thread
};

// Makes what `empty` returned unknown, in the order of the current stream.
void forget_unset(const at::Tensor& tensor);
// The same for memory that a storage got.
void forget_unset(int device, std::uint64_t address, std::size_t bytes);

}  // namespace ferro::values
