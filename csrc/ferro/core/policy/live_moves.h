// Policy: which handles are vacated, so that a request gets the pages on them that carry no live
// byte. Pure.
//
// To vacate a handle is to copy its pages with live bytes to handles of one page each, which are
// then mapped in its place. It takes as many pages as have live bytes, and gives all of the handle.
// So the first needs room that is at hand, and each makes room for the next.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace ferro {

// Units: pages. 0 < used < pages.
struct HandleUse {
  std::size_t pages = 0;  // of the handle
  std::size_t used = 0;   // that carry live or pending bytes
};

// The handles to vacate, in that order, so that `wanted` pages are at hand afterwards; none where no
// order gives so many, or they are at hand already. Of those that there is room for the one comes
// next that costs the least copies for each page that it frees. O(n log n).
std::vector<std::size_t> plan_live_moves(std::span<const HandleUse> handles, std::size_t wanted,
                                         std::size_t at_hand);

}  // namespace ferro
