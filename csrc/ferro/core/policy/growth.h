// Policy: which gap of an arena to put pages behind so that a request fits. Pure.
//
// Best is what takes the fewest new pages, because a free block beside a gap already covers part of
// the request; among equals the lowest address, which keeps the arena short.
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

// `gaps` in ascending order of address. The gap has room for `spare` pages more than the plan's.
// None: no gap is long enough, the arena needs another span.
std::optional<GrowthPlan> plan_growth(std::span<const GapView> gaps, std::size_t request,
                                      std::size_t page_bytes, std::size_t spare);
// The same place with `pages` pages, at least as many as planned, of a gap of `gap_pages`: what was
// to touch one of its ends still does. None: they do not fit.
std::optional<GrowthPlan> widen(const GrowthPlan& plan, std::size_t pages, std::size_t gap_pages);

}  // namespace ferro
