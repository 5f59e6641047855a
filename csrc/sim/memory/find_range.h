// Which of many ranges an address lies in.
#pragma once

#include <iterator>

namespace ferro::sim {

// The entry of `ranges`, a map from the begin of ranges that do not overlap, in whose `bytes_of`
// bytes `at` lies; the end of the map when there is none.
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
