// Choices that are drawn in place of those of unknown numbers.
//
// A row of numbers gets a random order, from the identity of its contents. All operators that choose
// from the row follow that order: its first number is the largest one, so `argmax`, `topk` and
// `sort` agree. Numbers that are known to be low come last.
#pragma once

#include "values/pieces.h"

#include <ATen/core/DimVector.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace ferro::values {

// From here on, numbers stand for minus infinity. The lowest number of half precision is -65504.
// Masks use -10000 too, which bfloat16 rounds to -9984.
inline constexpr double kLow = -9900;

// Which numbers of a row are chosen.
struct Ranks {
  std::int64_t first = 0;    // of the chosen ones, from the largest number (0) on
  bool ascending = false;    // `first` and what follows count from the smallest number on
  bool independent = false;  // each one is drawn on its own
};

// The numbers from which is chosen, and where they come from.
struct ChosenFrom {
  at::DimVector sizes;
  at::DimVector strides;
  std::size_t element_bytes = 0;
  std::uint64_t identity = 0;  // of all of them
  // From the first number on; none if there were too many.
  std::vector<ferro_sim_origin_piece> origins;
  // Numbers that tell which ones are low, all others being equal; none if none is known to be.
  std::optional<Taken> lows;
  bool zeros_are_low = false;
};

struct DrawnPositions {
  at::DimVector sizes;  // of the result
  // Along it rows lie, and the result has one or more positions for each row. Without one, all
  // numbers are one row.
  std::optional<std::size_t> dimension;
  ChosenFrom from;
  Ranks ranks;
  std::uint64_t seed = 0;  // of random choices

  at::Tensor draw() const;
};

}  // namespace ferro::values
