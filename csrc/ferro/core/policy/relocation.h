// Policy: chooses the holes of an arena whose whole free handles move elsewhere in it. Pure.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace ferro {

// A range of whole free handles.
struct HoleView {
  std::size_t pages = 0;             // the sum of `handles`
  std::vector<std::size_t> handles;  // the pages of each, in order of address
};

// The pages to take from one hole: whole handles at its end.
struct HoleShare {
  std::size_t hole = 0;   // index into the view
  std::size_t pages = 0;  // at least 1

  friend bool operator==(const HoleShare&, const HoleShare&) = default;
};

// The pages of the fewest last handles of a hole that have at least `wanted` pages together; all of
// the hole's pages if it has fewer.
std::size_t pages_at_end(const HoleView& hole, std::size_t wanted);

// `holes` are in order of address. The shares sum to `wanted`, to more if a handle is larger than
// the rest, or to all pages of the holes if these have fewer. Large holes come first, which leaves
// fewer ranges to unmap and uses the least memory on recorded traces (docs/adr/0006). The last
// share, only a part of its hole, comes from the hole where it exceeds `wanted` by the least.
std::vector<HoleShare> plan_moves(std::span<const HoleView> holes, std::size_t wanted);

}  // namespace ferro
