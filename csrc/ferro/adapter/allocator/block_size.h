// Policy: the size of the block that serves a request. Pure.
//
// PyTorch's rule: the next multiple of 512, or, where `roundup_power2_divisions` is set for the
// size, the next of `divisions` equal steps between two powers of two.
#pragma once

#include "ferro/base/bytes.h"
#include "ferro/core/types/block.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <vector>

namespace ferro {

// `bytes` > 0. `divisions` is 0, 1 (both: off) or a power of two.
constexpr std::size_t block_size(std::size_t bytes, std::size_t divisions) {
  if (divisions > 1 && bytes > kBlockAlignment * divisions && !std::has_single_bit(bytes)) {
    return align_up(bytes, std::bit_floor(bytes) / divisions);
  }
  return align_up(bytes, kBlockAlignment);
}

// PyTorch has a number of divisions for each power of two from 1 MiB to 32 GiB. The first also
// applies to smaller sizes, the last to larger ones. Returns the index for `bytes` > 0.
constexpr std::size_t divisions_index(std::size_t bytes, std::size_t count) {
  const auto power = static_cast<std::size_t>(std::bit_width(bytes / kMiB));
  return std::min(power > 0 ? power - 1 : 0, count - 1);
}

// `bytes` > 0. `divisions`: those of each power of two.
constexpr std::size_t block_size(std::size_t bytes, const std::vector<std::size_t>& divisions) {
  return block_size(bytes, divisions[divisions_index(bytes, divisions.size())]);
}

}  // namespace ferro
