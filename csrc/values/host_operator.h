// An operator with arguments on the host, and what PyTorch's own kernel for the CPU makes of them.
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

  // The tensor on the host that stands for one of the program, of the argument at that place; none
  // when there cannot be one.
  using Take = std::function<std::optional<at::Tensor>(const at::Tensor&, std::size_t place)>;
  // False: an argument cannot be on the host. Random numbers are drawn from a generator of the
  // host's, seeded by the state that the device's has now: the same states give the same numbers,
  // and the host's own generator stays as it is.
  bool take_arguments(const torch::jit::Stack& arguments, int device, const Take& take);

  // False, with no results, when the kernel refuses the arguments.
  bool run();
  const c10::IValue& result(std::size_t i) const { return results_[i]; }
  // A tensor after the run.
  std::optional<at::Tensor> value(bool of_argument, std::size_t place, std::size_t in_list) const;
  // What the device's operator asks the driver for to know the sizes of its results.
  std::int64_t answer() const;

 private:
  void seed(const torch::jit::Stack& arguments, int device);

  c10::OperatorHandle op_;
  const OperatorTraits* traits_;
  torch::jit::Stack arguments_;
  torch::jit::Stack results_;
  std::uint64_t seed_ = 0;
};

// How many positions there are along the dimension that the operator's last result is about.
std::int64_t extent_of_positions(const OperatorTraits& traits, const torch::jit::Stack& arguments);
// Writes positions below `extent` that do not repeat along any dimension shorter than it, unknown
// ones. Within a function that the GPU calls in order.
void write_positions(const DeviceTensor& at, std::int64_t extent);

}  // namespace ferro::values
