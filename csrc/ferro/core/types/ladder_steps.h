// The steps that a request climbs when no free block fits, in order. Each has a name, a counter and
// a function of Ladder (ladder.cpp). Step 4 tries, within bounds, to avoid growing. A request that
// cannot grow tries the same again in step 5, without bounds.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace ferro {

enum class LadderStep : std::uint8_t {
  kCollectPending,  // 1  frees that waited for other streams and are complete now
  kMovePages,       // 2  whole free pages of this heap's own holes
  kIdlePages,       // 3  idle pages of the store
  kPassedPages,     // 3  free pages of other heaps that are no longer used by any work
  kStreamWait,      // 4, 5  the stream, not the host, waits for memory that other streams use
  kGrow,            // 2, 5  new pages, while the limit allows; in step 2 only if moves repeat
  kTransfer,        // 4, 5  free pages of other heaps, with a stream wait
  kReclaim,         // 6  callbacks; free pages of pools that allow it
  kWait,            // 7  the host waits for memory that covers the deficit
  kOutOfMemory,     // 8  nothing helped
};
inline constexpr std::size_t kLadderSteps = 10;

constexpr const char* name_of(LadderStep step) {
  constexpr std::array<const char*, kLadderSteps> kNames = {
      "collect_pending", "move_pages", "idle_pages", "passed_pages", "stream_wait", "grow",
      "transfer",        "reclaim",    "wait",       "out_of_memory"};
  return kNames[static_cast<std::size_t>(step)];
}

// How often each step ended the climb.
using LadderCounts = std::array<std::uint64_t, kLadderSteps>;

// The cost of a step, whether or not it ended a climb.
struct StepCost {
  std::uint64_t nanoseconds = 0;  // of the host
  std::uint64_t pages = 0;        // moved within the heap's arena or taken from other heaps
};
using LadderCosts = std::array<StepCost, kLadderSteps>;

}  // namespace ferro
