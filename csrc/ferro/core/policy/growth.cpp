#include "ferro/core/policy/growth.h"

#include "ferro/base/bytes.h"

#include <algorithm>

namespace ferro {
namespace {

// Pages needed at one end of a gap whose neighbour there already offers `free` bytes; none when the
// gap is too short.
std::optional<std::size_t> pages_beside(std::size_t free, std::size_t gap, std::size_t request,
                                        std::size_t page_bytes, std::size_t spare) {
  const std::size_t missing = request > free ? request - free : 1;
  const std::size_t pages = ceil_div(missing, page_bytes);
  return (pages + spare) * page_bytes <= gap ? std::optional(pages) : std::nullopt;
}

}  // namespace

std::optional<GrowthPlan> plan_growth(std::span<const GapView> gaps, std::size_t request,
                                      std::size_t page_bytes, std::size_t spare) {
  std::optional<GrowthPlan> best;
  const auto offer = [&best](GrowthPlan plan) {
    if (!best || plan.pages < best->pages) {
      best = plan;
    }
  };
  for (std::size_t i = 0; i < gaps.size(); ++i) {
    const GapView& gap = gaps[i];
    const std::size_t gap_pages = gap.bytes / page_bytes;
    if (const auto pages = pages_beside(gap.free_before, gap.bytes, request, page_bytes, spare)) {
      offer({i, 0, *pages});
    }
    if (const auto pages = pages_beside(gap.free_after, gap.bytes, request, page_bytes, spare)) {
      offer({i, gap_pages - *pages, *pages});
    }
    if (spare == 0 && gap.free_before + gap.bytes + gap.free_after >= request) {
      offer({i, 0, gap_pages});
    }
  }
  return best;
}

std::optional<GrowthPlan> widen(const GrowthPlan& plan, std::size_t pages, std::size_t gap_pages) {
  if (pages > gap_pages) {
    return std::nullopt;
  }
  return GrowthPlan{plan.gap, std::min(plan.first_page, gap_pages - pages), pages};
}

}  // namespace ferro
