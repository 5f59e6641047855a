// Policy: which groups give the pages of their idle scratch to a request that would fail. Pure.
//
// What one group gives it takes back before its next launch, and a launch finds out about one group
// alone. So as few groups give as possible, and no more than that takes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <numeric>
#include <span>
#include <vector>

namespace ferro {

// Indices into `pages`, which each group would give: the smallest one that is enough alone, or else
// the largest first until they are enough. None where all are too few, or nothing is wanted.
// O(n log n).
inline std::vector<std::size_t> plan_evictions(std::size_t wanted,
                                               std::span<const std::size_t> pages) {
  std::vector<std::size_t> order(pages.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater{}, [&](std::size_t i) { return pages[i]; });
  if (wanted == 0 || std::accumulate(pages.begin(), pages.end(), std::size_t{0}) < wanted) {
    return {};
  }
  if (pages[order.front()] >= wanted) {
    const auto smaller =
        std::ranges::find_if(order, [&](std::size_t i) { return pages[i] < wanted; });
    return {*std::prev(smaller)};
  }
  std::size_t count = 0;
  for (std::size_t given = 0; given < wanted; ++count) {
    given += pages[order[count]];
  }
  order.resize(count);
  return order;
}

}  // namespace ferro
