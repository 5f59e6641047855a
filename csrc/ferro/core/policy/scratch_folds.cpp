#include "ferro/core/policy/scratch_folds.h"

#include <functional>
#include <numeric>

namespace ferro {
namespace {

std::vector<std::size_t> largest_first(std::span<const std::size_t> sizes) {
  std::vector<std::size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater{}, [&](std::size_t i) { return sizes[i]; });
  return order;
}

}  // namespace

FoldPlan plan_fold(std::span<const std::size_t> own, std::span<const std::size_t> available) {
  const std::size_t pages = std::accumulate(own.begin(), own.end(), std::size_t{0});
  FoldPlan plan;
  std::size_t filled = 0;
  for (const std::size_t i : largest_first(available)) {
    if (available[i] <= pages - filled) {
      plan.taken.push_back(i);
      filled += available[i];
    }
  }
  // Back to where handles of both end.
  plan.replaced = own.size();
  std::size_t end = pages;
  while (end != filled) {
    if (end > filled) {
      end -= own[--plan.replaced];
    } else {
      filled -= available[plan.taken.back()];
      plan.taken.pop_back();
    }
  }
  return plan;
}

std::size_t pages_when_folded(const std::vector<HandleRuns>& users,
                              std::vector<std::vector<std::size_t>> doubled) {
  doubled.resize(users.size());
  const auto pages_of = [&](std::size_t user) {
    std::size_t pages = std::accumulate(doubled[user].begin(), doubled[user].end(), std::size_t{0});
    for (const std::vector<std::size_t>& run : users[user]) {
      pages = std::accumulate(run.begin(), run.end(), pages);
    }
    return pages;
  };
  std::vector<std::size_t> order(users.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater{}, pages_of);
  std::vector<std::size_t> kept;
  for (const std::size_t user : order) {
    // Each at most once behind the addresses of one user.
    std::vector<std::size_t> available = kept;
    for (const std::size_t pages : doubled[user]) {
      if (const auto same = std::ranges::find(available, pages); same != available.end()) {
        available.erase(same);
      } else {
        kept.push_back(pages);
      }
    }
    for (const std::vector<std::size_t>& run : users[user]) {
      const FoldPlan plan = plan_fold(run, available);
      for (const std::size_t i : plan.taken) {
        available[i] = 0;
      }
      std::erase(available, std::size_t{0});
      kept.insert(kept.end(), run.begin() + static_cast<std::ptrdiff_t>(plan.replaced), run.end());
    }
  }
  return std::accumulate(kept.begin(), kept.end(), std::size_t{0});
}

std::vector<std::size_t> plan_lending(std::size_t wanted, std::span<const std::size_t> available,
                                      LastHandle last) {
  std::vector<std::size_t> chosen;
  std::size_t smallest_larger = available.size();
  for (const std::size_t i : largest_first(available)) {
    if (available[i] <= wanted) {
      chosen.push_back(i);
      wanted -= available[i];
    } else {
      smallest_larger = i;
    }
    if (wanted == 0) {
      return chosen;
    }
  }
  // A handle that was larger than what was missing then is larger than what is missing now.
  if (last == LastHandle::kMayBeLarger && smallest_larger != available.size()) {
    chosen.push_back(smallest_larger);
  }
  return chosen;
}

}  // namespace ferro
