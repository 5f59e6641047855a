// Counters of a device that are not sums over its heaps. Plain data; the climb lock guards it.
#pragma once

#include "ferro/core/types/ladder_steps.h"

#include <cstdint>

namespace ferro {

// Since the last reset; late hits and those of the ladder and of stale mappings since construction.
struct DeviceCounters {
  std::uint64_t retries = 0;           // requests that reached the host-side waits of step 8
  std::uint64_t out_of_memory = 0;     // requests that failed, except rejected ones
  std::uint64_t rejected = 0;          // requests beyond the rejection limit
  std::uint64_t synchronisations = 0;  // empty_cache and step 8
  std::uint64_t pages_created = 0;
  std::uint64_t pages_released = 0;
  std::uint64_t pages_transferred = 0;  // from heap to heap, without a host wait
  // Old mappings that requests removed, and how often the driver refused to remove one.
  std::uint64_t unmapped_by_requests = 0;
  std::uint64_t unmaps_refused = 0;
  // Host time of the slowest climb, after it has the lock; reset separately.
  std::uint64_t slowest_nanoseconds = 0;
  std::uint64_t late_hits = 0;  // requests that climbed, and needed no new page
  LadderCounts ladder{};
  LadderCosts ladder_costs{};

  std::uint64_t& ended_by(LadderStep step) { return ladder[static_cast<std::size_t>(step)]; }
};

}  // namespace ferro
