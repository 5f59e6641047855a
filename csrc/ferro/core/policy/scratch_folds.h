// Policy: which handles come behind the scratch of a graph, and how large those are that a capture
// is given. Pure.
//
// The driver takes 20 us to map a handle and 14 to unmap one, whatever its size, and maps it whole.
// Large handles fold fast, but one on which a single result stays is lost to the others; so what a
// capture asks for at one time comes in at most kHandlesOfRequest handles, and in single pages
// where that is possible.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace ferro {

inline constexpr std::size_t kHandlesOfRequest = 64;

// Pages of the largest handle that a capture is given for a request of `pages`.
constexpr std::size_t largest_borrowed_handle(std::size_t pages) {
  return std::max(pages / kHandlesOfRequest, std::size_t{1});
}

// The handles `taken`, by their index, come in that order behind the addresses of the first
// `replaced` handles of a run. Both have as many pages.
struct FoldPlan {
  std::size_t replaced = 0;
  std::vector<std::size_t> taken;
};

// `own`: the pages of the handles of a run, in order of address; `available`: of handles that may
// come there instead. As many pages of the run as the largest first fill, each taken once, up to
// the end of a handle of both. O(own + n log n) for n available ones.
FoldPlan plan_fold(std::span<const std::size_t> own, std::span<const std::size_t> available);

// The handles of each run, by their pages.
using HandleRuns = std::vector<std::vector<std::size_t>>;

// Pages of the handles that are left when users with these runs are folded as ScratchSet does: the
// largest user keeps its own, and each of the others gets those before it where `plan_fold` fits
// them. `doubled`: the pages of other handles of each user, which one of as many pages replaces, or
// none (graph/moved_pages.h). O(n^2 log n) for n handles.
std::size_t pages_when_folded(const std::vector<HandleRuns>& users,
                              std::vector<std::vector<std::size_t>> doubled = {});

// Which of the available handles serve a request for `wanted` pages, largest first; where no other
// is left a larger one ends it, if that is allowed. Together they may have fewer.
enum class LastHandle { kMayBeLarger, kFits };
std::vector<std::size_t> plan_lending(std::size_t wanted, std::span<const std::size_t> available,
                                      LastHandle last);

}  // namespace ferro
