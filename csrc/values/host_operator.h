// Runs PyTorch's CPU kernel of an operator on host copies of its arguments.
//
// Used with the machine locked and below the program's modes, except where a function says
// otherwise.
#pragma once

#include "values/card_operators.h"
#include "values/card_random.h"
#include "values/choices.h"
#include "values/device_tensor.h"
#include "values/operator_traits.h"

#include <ATen/core/stack.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

namespace ferro::values {

class Value;

// A tensor on the device among the arguments.
struct Operand {
  std::size_t place = 0;
  std::size_t in_list = 0;
  DeviceTensor at;
  // Its contents matter: it is not only overwritten.
  bool is_input = true;
  std::optional<Taken> taken = std::nullopt;
  // Of its least certain element, and of the most certain one, or of bytes between the elements.
  ferro_sim_certainties certainties = {FERRO_SIM_UNKNOWN, FERRO_SIM_UNKNOWN};
  at::Tensor doubts = {};    // of its elements, if some are unknown and others are not
  at::Tensor zeroed = {};    // a mask of elements that are replaced by zeros
  bool is_ones = false;      // in place of what it is
  bool is_left_out = false;  // a number is in its place, because its results are not wanted
};

class HostOperator {
 public:
  HostOperator(const c10::OperatorHandle& op, const OperatorTraits& traits)
      : op_(op), traits_(&traits) {}

  // For a call of another operator, after `clear(true)`.
  void use_again(const c10::OperatorHandle& op, const OperatorTraits& traits) {
    op_ = op;
    traits_ = &traits;
    seed_ = 0;
    repeatable_seed_ = 0;
    generator_ = {};
    numbers_ = Numbers::kNone;
    has_known_operands_ = false;
    assumes_finite_ = false;
  }

  // In the order of the arguments. Complete before `take_arguments`.
  std::vector<Operand>& operands() { return operands_; }
  const std::vector<Operand>& operands() const { return operands_; }

  // These are called in the program's name. The first two, before the device's operator: random
  // numbers follow from the present state of the device's generator. They are those of the card where
  // it is known how its kernel draws them, else those of a host generator with a seed from that state.
  // The program's host generator is unchanged.
  void find_numbers(c10::ArrayRef<c10::IValue> arguments, int device);
  void seed(c10::ArrayRef<c10::IValue> arguments, int device);
  // False: an argument that is no operand cannot be on the host.
  bool take_arguments(c10::ArrayRef<c10::IValue> arguments);

  Numbers numbers() const { return numbers_; }
  // If the operands are known and an assertion of a card's kernel fails, the card does.
  void set_known_operands() { has_known_operands_ = true; }
  // Results of finite inputs are: others are replaced by zeros, which stand for unknown numbers. Not where
  // an input is so large, as in masks, that the program made the result infinite.
  void assume_finite(bool assumes) { assumes_finite_ = assumes; }
  // 0 for operators that draw no random numbers.
  std::uint64_t seed() const { return repeatable_seed_; }
  bool has_inputs() const;
  void for_each_input(const std::function<void(Value&)>& visit) const;
  // Bytes of inputs that are copied when it runs.
  std::size_t bytes_to_copy() const;

  // False, without results, if the kernel refuses the arguments, or an input cannot be computed.
  bool run();
  // For operators that move elements or work on each of them: finds the doubts of the results from
  // those of the operands. Doubts are a byte for each element: 0 for known, 2 for unknown. False if they
  // cannot be found. Throws what the kernel throws.
  bool find_doubts();
  // Those of a tensor, which may have to be expanded to its sizes. Valid until `clear`.
  std::optional<at::Tensor> doubts(bool of_argument, std::size_t place, std::size_t in_list) const;
  const c10::IValue& result(std::size_t i) const { return results_[i]; }
  // A tensor after the run.
  std::optional<at::Tensor> value(bool of_argument, std::size_t place, std::size_t in_list) const;
  // The value that the device's operator reads back to know the sizes of its results.
  std::int64_t answer() const;
  // Frees the results; `inputs`: and the inputs, so that it cannot run again.
  void clear(bool inputs);

 private:
  // Sets the operands' places to what `make` returns. False: it returned none.
  template <typename Make>
  bool put_operands(torch::jit::Stack& stack, const Make& make) const;
  std::optional<at::Tensor> make_host(const Operand& operand) const;
  void put_generator(torch::jit::Stack& stack) const;
  void draw(torch::jit::Stack& stack) const;
  bool move_doubts();
  void call(torch::jit::Stack& stack) const;
  // Finite ones whose sums and conversions are finite too.
  bool has_moderate_inputs(const torch::jit::Stack& stack) const;
  bool has_finite_results() const;
  void zero_infinite_results() const;
  template <typename Visit>
  void for_each_result(const Visit& visit) const;

  c10::OperatorHandle op_;
  const OperatorTraits* traits_;
  torch::jit::Stack arguments_;  // without the operands
  std::vector<Operand> operands_;
  torch::jit::Stack called_with_;
  torch::jit::Stack results_;
  at::Tensor doubts_;  // of what each element of each result depends on
  std::uint64_t seed_ = 0;
  std::uint64_t repeatable_seed_ = 0;
  CardGenerator generator_;
  Numbers numbers_ = Numbers::kNone;
  int device_ = -1;  // that draws
  bool has_known_operands_ = false;
  bool assumes_finite_ = false;
  caffe2::TypeMeta default_type_;  // of the program at the call
};

// Whether the operator only tests whether numbers are finite. Unknown ones are assumed to be, so the
// results are known.
bool tests_whether_finite(const OperatorTraits& traits, c10::ArrayRef<c10::IValue> arguments);

// What the positions in the operator's last result refer to.
struct PositionsRange {
  std::int64_t extent = 0;
  // The dimension of the input along which numbers are compared; none: all of them are.
  std::optional<std::size_t> dimension;
  Ranks ranks;
};
PositionsRange range_of_positions(const OperatorTraits& traits, const c10::FunctionSchema& schema,
                                  c10::ArrayRef<c10::IValue> arguments);

// Which extreme numbers there are among the host's arguments.
struct Extremes {
  bool infinity = false;
  bool low = false;  // minus infinity, or what stands for it
  bool zero = false;
};
Extremes extremes_of(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> arguments);

}  // namespace ferro::values
