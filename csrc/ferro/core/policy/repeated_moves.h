// Policy: whether a request that could move pages of its arena takes new memory instead. Pure.
//
// A move leaves a gap where the pages were. A program that repeats its requests may therefore have
// to move pages in each round: the driver is called in each, and addresses change. With a little new
// memory the later rounds only hit. Requests that vary would gain nothing, so memory grows only for
// a size that moved pages several times, and only by a share of the live peak
// (docs/adr/0042-repeated-moves.md).
#pragma once

#include "ferro/base/bytes.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace ferro {

// Units: bytes of one device.
struct RepeatedMove {
  std::uint32_t moves = 0;    // how often a request of this size and arena was served by a move
  std::size_t missing = 0;    // that the request would create if no page moved
  std::size_t held = 0;       // by the allocator
  std::size_t peak_live = 0;  // the most that was live at one time
};

struct RepeatedMoveRules {
  std::uint32_t moves = 8;        // before memory grows instead
  std::size_t share = 100;        // held memory may exceed the live peak by 1/100 of it,
  std::size_t least = 16 * kMiB;  // or by this
};

constexpr bool prefers_growth(const RepeatedMove& move, const RepeatedMoveRules& rules = {}) {
  const std::size_t beyond_peak = std::max(move.peak_live / rules.share, rules.least);
  return move.moves >= rules.moves && move.held + move.missing <= move.peak_live + beyond_peak;
}

}  // namespace ferro
