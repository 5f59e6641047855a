// Policy: chooses the gap of an arena that gets pages so that a request fits. Pure.
//
// The best gap needs the fewest new pages, because a free block beside it covers part of the
// request. Among equal gaps the lowest address wins, which keeps the arena short.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

namespace ferro {

// A gap with the free blocks that touch it. Units: bytes; `bytes` is a multiple of the page size.
struct GapView {
  std::size_t bytes = 0;
  std::size_t free_before = 0;  // size of the free block that ends where the gap begins, or 0
  std::size_t free_after = 0;   // size of the free block that begins where the gap ends, or 0
};

struct GrowthPlan {
  std::size_t gap = 0;         // index into the view
  std::size_t first_page = 0;  // of the gap
  std::size_t pages = 0;       // at least 1

  friend bool operator==(const GrowthPlan&, const GrowthPlan&) = default;
};

// `gaps` are in ascending order of address. The gap has room for `spare` pages more than the
// plan's. None if no gap is long enough; the arena then needs another span.
std::optional<GrowthPlan> plan_growth(std::span<const GapView> gaps, std::size_t request,
                                      std::size_t page_bytes, std::size_t spare);
// Extends a plan to `pages` pages, at least as many as planned, in a gap of `gap_pages`. A plan
// that touches an end of the gap still does. None if the pages do not fit.
std::optional<GrowthPlan> widen(const GrowthPlan& plan, std::size_t pages, std::size_t gap_pages);

}  // namespace ferro
