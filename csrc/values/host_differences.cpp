#include "values/host_differences.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <optional>

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

// _softmax(Tensor self, int dim, bool half_to_float). The CPU does not convert.
void convert_first(Stack& arguments) {
  if (arguments[2].toBool()) {
    arguments[0] = arguments[0].toTensor().to(at::kFloat);
    arguments[2] = false;
  }
}

// _softmax_backward_data(Tensor grad_output, Tensor output, int dim, ScalarType input_dtype).
void keep_type(Stack& arguments) { arguments[3] = arguments[0].toTensor().scalar_type(); }
void convert_result(const Stack& arguments, Stack& results) {
  results[0] = results[0].toTensor().to(arguments[3].toScalarType());
}

// Where the quotient of two integers has one bit more than their type, a processor traps. A card gives
// the lowest number.
std::optional<std::int64_t> lowest_of(at::ScalarType type) {
  return type == at::kInt    ? std::optional<std::int64_t>(std::numeric_limits<std::int32_t>::min())
         : type == at::kLong ? std::optional(std::numeric_limits<std::int64_t>::min())
                             : std::nullopt;
}

// The lowest number divided by -1 is itself, as divided by 1.
void divide_by_one(Stack& arguments) {
  const Tensor dividend = arguments[0].toTensor();
  const Tensor divisor = arguments[1].toTensor();
  const at::ScalarType type = at::result_type(dividend, divisor);
  const auto lowest = lowest_of(type);
  const Tensor overflows = lowest ? dividend.eq(*lowest).logical_and(divisor.eq(-1)) : Tensor();
  if (lowest && overflows.any().item<bool>()) {
    arguments[1] = divisor.to(type).masked_fill(overflows, 1);
  }
}

// lcm(a, b) divides `a` by the greatest common divisor, which is -1 for some pairs with the lowest
// number.
void keep_lowest_second(Stack& arguments) {
  const Tensor one = arguments[0].toTensor();
  const Tensor other = arguments[1].toTensor();
  const at::ScalarType type = at::result_type(one, other);
  const auto lowest = lowest_of(type);
  const Tensor is_lowest = lowest ? one.eq(*lowest) : Tensor();
  if (lowest && is_lowest.any().item<bool>()) {
    arguments[0] = at::where(is_lowest, other.to(type), one.to(type));
    arguments[1] = at::where(is_lowest, one.to(type), other.to(type));
  }
}

struct Differing {
  std::string_view name;
  HostDifference difference;
};

constexpr HostDifference kOfBags = {nullptr, &complete_bags};
constexpr HostDifference kOfSoftmax = {&convert_first};
constexpr HostDifference kOfGradient = {&keep_type, &convert_result};
constexpr HostDifference kOfQuotient = {&divide_by_one};
constexpr HostDifference kOfMultiple = {&keep_lowest_second};

constexpr Differing kDiffering[] = {
    {"aten::_embedding_bag", kOfBags},
    {"aten::_embedding_bag_forward_only", kOfBags},
    {"aten::_softmax", kOfSoftmax},
    {"aten::_softmax.out", kOfSoftmax},
    {"aten::_log_softmax", kOfSoftmax},
    {"aten::_log_softmax.out", kOfSoftmax},
    {"aten::_softmax_backward_data", kOfGradient},
    {"aten::_log_softmax_backward_data", kOfGradient},
    {"aten::div.Tensor_mode", kOfQuotient},
    {"aten::div_.Tensor_mode", kOfQuotient},
    {"aten::div.out_mode", kOfQuotient},
    {"aten::floor_divide", kOfQuotient},
    {"aten::floor_divide_.Tensor", kOfQuotient},
    {"aten::floor_divide.out", kOfQuotient},
    {"aten::remainder.Tensor", kOfQuotient},
    {"aten::remainder_.Tensor", kOfQuotient},
    {"aten::remainder.Tensor_out", kOfQuotient},
    {"aten::fmod.Tensor", kOfQuotient},
    {"aten::fmod_.Tensor", kOfQuotient},
    {"aten::fmod.Tensor_out", kOfQuotient},
    {"aten::lcm", kOfMultiple},
    {"aten::lcm_", kOfMultiple},
    {"aten::lcm.out", kOfMultiple},
};

}  // namespace

HostDifference host_difference(std::string_view name) {
  const auto* const found =
      std::find_if(std::begin(kDiffering), std::end(kDiffering),
                   [&](const Differing& candidate) { return candidate.name == name; });
  return found == std::end(kDiffering) ? HostDifference() : found->difference;
}

}  // namespace ferro::values
