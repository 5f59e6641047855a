// Policy: whether a request takes the smallest free block that is large enough, or the one with the
// lowest address. Pure.
//
// A close fit leaves a rest that few requests could use. Any other block is cut, and a cut at the
// lowest address leaves long free ranges at high addresses, whose whole handles move for later
// requests: fewer live blocks lie alone between holes (docs/adr/0039 has the alternatives).
#pragma once

#include <cstddef>

namespace ferro {

inline constexpr std::size_t kCloseFitShare = 8;

// Whether at most 1 / kCloseFitShare of the request would be left of the block. block >= request.
constexpr bool is_close_fit(std::size_t block, std::size_t request) {
  return block - request <= request / kCloseFitShare;
}

}  // namespace ferro
