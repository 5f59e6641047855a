#include "ferro/core/policy/segment_policy.h"

#include <algorithm>
#include <numeric>

namespace ferro {

std::vector<std::size_t> plan_collection(std::span<const std::size_t> sizes,
                                         std::span<const std::uint32_t> ages, std::size_t wanted) {
  std::vector<std::size_t> left(sizes.size());
  std::iota(left.begin(), left.end(), std::size_t{0});
  std::vector<std::size_t> chosen;
  double total_age = std::accumulate(ages.begin(), ages.end(), 0.0);
  std::size_t bytes = 0;
  while (bytes < wanted && !left.empty()) {
    const double average = total_age / static_cast<double>(left.size());
    const auto old = std::stable_partition(left.begin(), left.end(), [&](std::size_t i) {
      return static_cast<double>(ages[i]) < average;
    });
    if (old == left.end()) {
      break;
    }
    for (auto it = old; it != left.end(); ++it) {
      chosen.push_back(*it);
      bytes += sizes[*it];
      total_age -= ages[*it];
    }
    left.erase(old, left.end());
  }
  return chosen;
}

OversizeRelease plan_oversize_release(std::span<const std::size_t> sizes, std::size_t size,
                                      const SegmentRules& rules) {
  const std::size_t wanted = std::max(size, rules.max_split);
  const auto enough = std::ranges::lower_bound(sizes, wanted);
  if (enough != sizes.end()) {
    return {{static_cast<std::size_t>(enough - sizes.begin())}, true};
  }
  OversizeRelease plan;
  std::size_t bytes = 0;
  for (std::size_t i = sizes.size(); i > 0 && sizes[i - 1] >= rules.max_split && bytes < wanted;
       --i) {
    plan.segments.push_back(i - 1);
    bytes += sizes[i - 1];
  }
  plan.enough = bytes >= wanted;
  return plan;
}

}  // namespace ferro
