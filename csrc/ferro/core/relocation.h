// Policy: from which holes of a line whole free pages are taken for another place on it. Pure.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace ferro {

// So many pages are taken from one hole.
struct HoleShare {
  std::size_t hole = 0;   // index into the view
  std::size_t pages = 0;  // at least 1

  friend bool operator==(const HoleShare&, const HoleShare&) = default;
};

// `holes`: whole pages in each hole, in order of address. The shares sum to `wanted`, or to all
// there is when that is less. Large holes first: fewer pieces to unmap, and on recorded traces the
// least memory (docs/adr/0006).
std::vector<HoleShare> plan_moves(std::span<const std::size_t> holes, std::size_t wanted);

}  // namespace ferro
