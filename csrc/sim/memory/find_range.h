// Finds the range that contains an address.
#pragma once

#include <iterator>

namespace ferro::sim {

// The entry of `ranges` that contains `at`, or the end of the map. `ranges` maps the begins of
// ranges that do not overlap; `bytes_of` gives the size of one.
template <typename Ranges, typename BytesOf>
auto find_range(const Ranges& ranges, typename Ranges::key_type at, const BytesOf& bytes_of) {
  const auto next = ranges.upper_bound(at);
  if (next == ranges.begin()) {
    return ranges.end();
  }
  const auto found = std::prev(next);
  return at - found->first < bytes_of(found->second) ? found : ranges.end();
}

}  // namespace ferro::sim
