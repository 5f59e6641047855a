#include "ferro/core/policy/relocation.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace ferro {

std::size_t pages_at_end(const HoleView& hole, std::size_t wanted) {
  std::size_t pages = 0;
  for (auto handle = hole.handles.rbegin(); handle != hole.handles.rend() && pages < wanted;
       ++handle) {
    pages += *handle;
  }
  return pages;
}

std::vector<HoleShare> plan_moves(std::span<const HoleView> holes, std::size_t wanted) {
  const auto pages_of = [&](std::size_t hole) { return holes[hole].pages; };
  std::vector<std::size_t> order(holes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater<>{}, pages_of);
  std::vector<HoleShare> shares;
  auto next = order.begin();
  // Takes whole holes while at least the largest remaining one is wanted.
  for (; next != order.end() && wanted >= pages_of(*next) && wanted != 0; ++next) {
    shares.push_back({*next, pages_of(*next)});
    wanted -= pages_of(*next);
  }
  const auto too_small =
      std::find_if(next, order.end(), [&](std::size_t hole) { return pages_of(hole) < wanted; });
  if (wanted != 0 && next != too_small) {
    const std::size_t last = *std::min_element(next, too_small, [&](std::size_t a, std::size_t b) {
      return pages_at_end(holes[a], wanted) < pages_at_end(holes[b], wanted);
    });
    shares.push_back({last, pages_at_end(holes[last], wanted)});
  }
  return shares;
}

}  // namespace ferro
