#include "ferro/core/policy/live_moves.h"

#include <algorithm>
#include <numeric>
#include <queue>

namespace ferro {

std::vector<std::size_t> plan_live_moves(std::span<const HandleUse> handles, std::size_t wanted,
                                         std::size_t at_hand) {
  std::vector<std::size_t> by_use(handles.size());
  std::iota(by_use.begin(), by_use.end(), std::size_t{0});
  std::ranges::stable_sort(by_use, {}, [&](std::size_t i) { return handles[i].used; });
  const auto freed = [&](std::size_t i) { return handles[i].pages - handles[i].used; };
  // Copies for each page: used / freed, without the division.
  const auto is_worse = [&](std::size_t a, std::size_t b) {
    const std::size_t cost_a = handles[a].used * freed(b);
    const std::size_t cost_b = handles[b].used * freed(a);
    return cost_a != cost_b ? cost_a > cost_b : freed(a) < freed(b);
  };
  std::priority_queue<std::size_t, std::vector<std::size_t>, decltype(is_worse)> fitting(is_worse);
  auto next = by_use.begin();
  std::vector<std::size_t> order;
  while (at_hand < wanted) {
    for (; next != by_use.end() && handles[*next].used <= at_hand; ++next) {
      fitting.push(*next);
    }
    if (fitting.empty()) {
      return {};
    }
    order.push_back(fitting.top());
    at_hand += freed(fitting.top());
    fitting.pop();
  }
  return order;
}

}  // namespace ferro
