// Policy: how long the ranges of addresses are that an arena reserves, and when it keeps one that
// nothing is behind. Pure.
//
// A process has 128 TiB of addresses for the host and all its devices together. So an arena reserves
// in proportion to what it has mapped: as much again with each span, which makes the number of its
// spans logarithmic, and never more than kAddressFactor times what is mapped and one least span,
// but where a request by itself needs more, or live blocks keep spans that are otherwise empty.
#pragma once

#include "ferro/base/bytes.h"

#include <algorithm>
#include <cstddef>

namespace ferro {

inline constexpr std::size_t kAddressFactor = 4;

// Units: bytes of one arena.
struct ArenaAddresses {
  std::size_t reserved = 0;
  std::size_t mapped = 0;
};

constexpr std::size_t address_budget(std::size_t mapped, std::size_t least_span) {
  return kAddressFactor * mapped + least_span;
}

// Would a new span for `needed` bytes be shorter than all that is mapped, to keep to the budget?
constexpr bool is_short_of_addresses(const ArenaAddresses& arena, std::size_t needed,
                                     std::size_t least_span) {
  return arena.reserved + align_up(arena.mapped + needed, least_span) >
         address_budget(arena.mapped + needed, least_span);
}

// Of a new span, a multiple of `least_span`, for `needed` bytes that no gap has room for.
constexpr std::size_t plan_span(const ArenaAddresses& arena, std::size_t needed,
                                std::size_t least_span) {
  const std::size_t shortest = align_up(needed, least_span);
  const std::size_t proportional = align_up(arena.mapped + needed, least_span);
  return is_short_of_addresses(arena, needed, least_span) ? shortest
                                                          : std::max(proportional, shortest);
}

// Does an arena keep a span that nothing is behind?
constexpr bool keeps_empty_span(const ArenaAddresses& arena, std::size_t least_span) {
  return arena.reserved <= address_budget(arena.mapped, least_span);
}

}  // namespace ferro
