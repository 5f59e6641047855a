// Policy: the length of the spans that an arena reserves, and whether it keeps an empty one. Pure.
//
// A process has 128 TiB of addresses for the host and all its devices together. So an arena
// reserves addresses in proportion to its mapped memory. Each new span is as long as all mapped
// memory, so the number of spans is logarithmic. The arena reserves at most kAddressFactor times
// its mapped memory plus one smallest span, unless a single request needs more, or live blocks keep
// spans that are otherwise empty.
//
// While addresses abound, the large blocks of a stream have one span from the beginning, as long as
// the device's memory, and its small blocks a shorter one, except in pools of graphs. Then requests
// that are freed and made again get their former addresses, as under the native allocator; a block
// never crosses a span.
#pragma once

#include "ferro/base/bytes.h"

#include <algorithm>
#include <cstddef>

namespace ferro {

inline constexpr std::size_t kAddressFactor = 4;
// Of the 128 TiB of a process, those that spans as long as a device may use.
inline constexpr std::size_t kPlentifulAddresses = 32 * kTiB;

// Units: bytes of one arena.
struct ArenaAddresses {
  std::size_t reserved = 0;
  std::size_t mapped = 0;
};

constexpr std::size_t address_budget(std::size_t mapped, std::size_t least_span) {
  return kAddressFactor * mapped + least_span;
}

// Whether the budget makes a new span for `needed` bytes shorter than all mapped memory.
constexpr bool is_short_of_addresses(const ArenaAddresses& arena, std::size_t needed,
                                     std::size_t least_span) {
  return arena.reserved + align_up(arena.mapped + needed, least_span) >
         address_budget(arena.mapped + needed, least_span);
}

// The longest first span of a stream's small blocks, of which few programs have more.
constexpr std::size_t longest_of_small_blocks(std::size_t device_bytes) {
  return std::min(device_bytes, std::max(device_bytes / 8, kGiB));
}

// The length of a new span, a multiple of `least_span`, for `needed` bytes that fit into no gap.
constexpr std::size_t plan_span(const ArenaAddresses& arena, std::size_t needed,
                                std::size_t least_span) {
  const std::size_t shortest = align_up(needed, least_span);
  const std::size_t proportional = align_up(arena.mapped + needed, least_span);
  return is_short_of_addresses(arena, needed, least_span) ? shortest
                                                          : std::max(proportional, shortest);
}

// The same for the first span of an arena, at most `longest` unless `needed` is. `reserved`:
// by all arenas of the process.
constexpr std::size_t plan_first_span(std::size_t reserved, std::size_t longest, std::size_t needed,
                                      std::size_t least_span) {
  const std::size_t whole = align_up(std::max(longest, needed), least_span);
  return reserved + whole <= kPlentifulAddresses ? whole : plan_span({}, needed, least_span);
}

// Whether an arena keeps a span that has no pages.
constexpr bool keeps_empty_span(const ArenaAddresses& arena, std::size_t least_span) {
  return arena.reserved <= address_budget(arena.mapped, least_span);
}

}  // namespace ferro
