#include "values/device_results.h"

#include <ATen/ATen.h>

namespace ferro::values {
namespace {

using at::Tensor;
using torch::jit::Stack;

// _embedding_bag(Tensor weight, Tensor indices, Tensor offsets, ...) -> (output, bags, sizes, ...).
// The CPU leaves out the bag of each index where its backward pass does not need it, and the size
// that stands for the last offset.
void complete_bags(const Stack& arguments, Stack& results) {
  const Tensor indices = arguments[1].toTensor();
  const Tensor offsets = arguments[2].toTensor();
  const Tensor sizes = results[2].toTensor();
  if (results[1].toTensor().sizes() != indices.sizes()) {
    const Tensor places = at::arange(indices.size(0), offsets.options());
    results[1] = at::searchsorted(offsets, places, false, /*right=*/true)
                     .sub(1)
                     .to(at::promote_types(indices.scalar_type(), offsets.scalar_type()));
  }
  if (sizes.size(0) < offsets.size(0)) {
    results[2] = at::constant_pad_nd(sizes, {0, offsets.size(0) - sizes.size(0)});
  }
}

}  // namespace

void make_results_of_device(const OperatorTraits& traits, const Stack& arguments, Stack& results) {
  if (traits.name == "aten::_embedding_bag" || traits.name == "aten::_embedding_bag_forward_only") {
    complete_bags(arguments, results);
  }
}

}  // namespace ferro::values
