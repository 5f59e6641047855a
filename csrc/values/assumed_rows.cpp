#include "values/assumed_rows.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <string_view>

namespace ferro::values {

using Arguments = c10::ArrayRef<c10::IValue>;

namespace {

// `nms` compares each box with each other one.
constexpr std::int64_t kMaxBoxes = 8192;
// The most elements that `unique` and the like sort, though all of them are zeros.
constexpr std::int64_t kMaxSorted = 1 << 22;

Assumption find_assumption() {
  const char* const variable = std::getenv("FERRO_ALLOC_SIM_ROWS");
  const std::string_view rows = variable == nullptr ? "" : variable;
  return rows == "none"         ? Assumption::kNone
         : rows == "all"        ? Assumption::kAll
         : rows == "none-alone" ? Assumption::kNoneAlone
         : rows == "all-alone"  ? Assumption::kAllAlone
                                : Assumption::kZeros;
}

// How many different slices of so many elements there can be.
std::int64_t most_distinct(const at::Tensor& tensor, std::int64_t elements) {
  constexpr std::int64_t kMaxBits = 62;
  const std::int64_t bits =
      tensor.scalar_type() == at::kBool ? 1 : static_cast<std::int64_t>(tensor.element_size()) * 8;
  const bool is_few = at::isIntegralType(tensor.scalar_type(), /*includeBool=*/true) &&
                      elements <= kMaxBits && bits * elements <= kMaxBits;
  return is_few ? std::int64_t{1} << (bits * elements) : std::numeric_limits<std::int64_t>::max();
}

// Of two sparse matrices, as in `sparse_operators.cpp`.
RowRange range_of_pair(Arguments arguments, bool sums) {
  const std::int64_t one = arguments[1].toTensor().size(-1);
  const std::int64_t other = arguments[5].toTensor().size(-1);
  const std::vector<std::int64_t> left = arguments[2].toIntVector();
  const std::vector<std::int64_t> right = arguments[6].toIntVector();
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();  // of cuSPARSE
  const auto at_most = [&](std::int64_t count, std::int64_t limit) {
    return std::min(count, std::min(limit, kMost));
  };
  if (sums) {
    return {std::max(one, other), at_most(left[0] * left[1], one + other), std::max(one, other)};
  }
  // Each element meets no more than the other matrix has in a line.
  const std::int64_t products =
      std::min(one * std::min(other, right[1]), other * std::min(one, left[0]));
  return {0, at_most(left[0] * right[1], products), 0};
}

}  // namespace

Assumption assumption() {
  static const Assumption of_process = find_assumption();
  return of_process;
}

std::optional<bool> assumed_mask() {
  const Assumption rows = assumption();
  return rows == Assumption::kNone  ? std::optional(false)
         : rows == Assumption::kAll ? std::optional(true)
                                    : std::nullopt;
}

bool sizes_agree_with_masks() {
  return assumption() != Assumption::kNoneAlone && assumption() != Assumption::kAllAlone;
}

std::int64_t RowRange::assumed() const {
  switch (assumption()) {
    case Assumption::kNone:
    case Assumption::kNoneAlone:
      return fewest;
    case Assumption::kAll:
    case Assumption::kAllAlone:
      return most;
    case Assumption::kZeros:
      break;
  }
  return of_zeros;
}

std::optional<std::int64_t> unique_dimension(const OperatorTraits& traits, Arguments arguments) {
  const bool along = traits.unique_along && arguments[0].toTensor().dim() > 0;
  return along ? arguments[*traits.unique_along].toOptional<std::int64_t>() : std::nullopt;
}

RowRange range_of_rows(const OperatorTraits& traits, Arguments arguments) {
  const at::Tensor& input = arguments[0].toTensor();
  const std::optional<std::int64_t> along = unique_dimension(traits, arguments);
  const std::int64_t slices = along ? input.size(*along) : input.numel();
  const auto differing = [](std::int64_t most) {
    const std::int64_t one = std::min<std::int64_t>(most, 1);
    return RowRange{one, most, one};
  };
  switch (traits.rows) {
    case Rows::kNotZero:
      return {0, slices, 0};
    case Rows::kDistinctOrTrue:
      // With one true boolean there are two values, with none one.
      if (input.scalar_type() == at::kBool) {
        return {0, std::min<std::int64_t>(slices, 1), 0};
      }
      [[fallthrough]];
    case Rows::kDistinct: {
      const std::int64_t elements = along ? input.numel() / std::max<std::int64_t>(slices, 1) : 1;
      return differing(std::min(slices, most_distinct(input, elements)));
    }
    case Rows::kRuns:
      return differing(slices);
    case Rows::kBoxes: {
      // Of some boxes the best one stays. Boxes without an area do not overlap.
      const std::int64_t boxes = input.size(0);
      return {std::min<std::int64_t>(boxes, 1), boxes, boxes};
    }
    case Rows::kColumns:
      return {0, input.size(1), 0};
    case Rows::kDistinctColumns:
      return differing(input.size(1));
    case Rows::kProduct:
    case Rows::kSum:
      return range_of_pair(arguments, traits.rows == Rows::kSum);
  }
  return {};
}

bool is_costly_with_zeros(const OperatorTraits& traits, Arguments arguments) {
  const at::Tensor& input = arguments[0].toTensor();
  return traits.rows == Rows::kBoxes ? input.size(0) > kMaxBoxes
                                     : traits.name != "aten::nonzero" && input.numel() > kMaxSorted;
}

}  // namespace ferro::values
