// Policy: from which holes of an arena whole free handles are taken for another place in it. Pure.
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

// So many pages, which are whole handles at its end, are taken from one hole.
struct HoleShare {
  std::size_t hole = 0;   // index into the view
  std::size_t pages = 0;  // at least 1

  friend bool operator==(const HoleShare&, const HoleShare&) = default;
};

// The least number of pages, at least `wanted`, or all there are, that the last handles of a hole
// have.
std::size_t pages_at_end(const HoleView& hole, std::size_t wanted);

// `holes` in order of address. The shares sum to `wanted`, to more where handles are larger than
// what is still missing, or to all there is when that is less. Large holes first: fewer pieces to
// unmap, and on recorded traces the least memory (docs/adr/0006). The last share, which leaves
// something of its hole, comes from where it takes the least beyond what is wanted.
std::vector<HoleShare> plan_moves(std::span<const HoleView> holes, std::size_t wanted);

}  // namespace ferro
