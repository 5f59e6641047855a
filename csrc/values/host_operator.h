// Runs PyTorch's CPU kernel of an operator on host copies of its arguments.
//
// Used by one thread at a time, below the program's modes.
#pragma once

#include "values/device_tensor.h"
#include "values/operator_traits.h"

#include <ATen/core/stack.h>

#include <functional>
#include <optional>

namespace ferro::values {

class HostOperator {
 public:
  HostOperator(const c10::OperatorHandle& op, const OperatorTraits& traits)
      : op_(op), traits_(&traits) {}

  // Returns the host tensor for a tensor of the argument at that place; none if there cannot be
  // one.
  using Take = std::function<std::optional<at::Tensor>(const at::Tensor&, std::size_t place)>;
  // False: an argument cannot be on the host. Random numbers come from a host generator that is
  // seeded by the present state of the device's generator, so that equal states give equal numbers.
  // The program's host generator is unchanged.
  bool take_arguments(const torch::jit::Stack& arguments, int device, const Take& take);

  // False, without results, if the kernel refuses the arguments.
  bool run();
  const c10::IValue& result(std::size_t i) const { return results_[i]; }
  // A tensor after the run.
  std::optional<at::Tensor> value(bool of_argument, std::size_t place, std::size_t in_list) const;
  // The value that the device's operator reads back to know the sizes of its results.
  std::int64_t answer() const;

 private:
  void seed(const torch::jit::Stack& arguments, int device);

  c10::OperatorHandle op_;
  const OperatorTraits* traits_;
  torch::jit::Stack arguments_;
  torch::jit::Stack results_;
  std::uint64_t seed_ = 0;
};

// Whether the operator only tests whether numbers are finite. Unknown ones are assumed to be, so the
// results are known.
bool tests_whether_finite(const OperatorTraits& traits, const torch::jit::Stack& arguments);

// What the device's operator reads back if the values that determine its sizes are unknown, as the
// environment variable FERRO_ALLOC_SIM_ROWS assumes: "none" for the fewest rows, "all" for the
// most. None without the variable.
std::optional<std::int64_t> assumed_rows(const OperatorTraits& traits,
                                         const torch::jit::Stack& arguments);

// The extent of the dimension that the positions in the operator's last result refer to.
std::int64_t extent_of_positions(const OperatorTraits& traits, const torch::jit::Stack& arguments);
// Writes positions below `extent`, marked unknown, that are distinct along every dimension shorter
// than it. Called within a function that the GPU calls in order.
void write_positions(const DeviceTensor& at, std::int64_t extent);

}  // namespace ferro::values
