#include "ferro/core/relocation.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace ferro {

std::vector<HoleShare> plan_moves(std::span<const std::size_t> holes, std::size_t wanted) {
  std::vector<std::size_t> order(holes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater<>{}, [&](std::size_t hole) { return holes[hole]; });
  std::vector<HoleShare> shares;
  for (const std::size_t hole : order) {
    const std::size_t pages = std::min(holes[hole], wanted);
    if (pages != 0) {
      shares.push_back({hole, pages});
      wanted -= pages;
    }
  }
  return shares;
}

}  // namespace ferro
