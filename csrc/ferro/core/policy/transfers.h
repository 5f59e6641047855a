// Policy: whether a request that could grow may take free pages of other streams. Pure.
//
// Such pages cost only driver time if their epoch has passed, else a stream wait. But alternating
// streams would pass the same pages back and forth without end. So a program may transfer a fixed
// number of handles, which lets a phase reuse the memory of the previous one, and from then on only
// few relative to its allocations. Beyond that, requests grow, and each stream gets its own pages.
#pragma once

#include <cstdint>

namespace ferro {

struct TransferRules {
  std::uint64_t handles_at_start = 1024;        // 64 GiB in the largest ones; 45 ms of driver time
  std::uint64_t allocations_per_handle = 1000;  // keeps the 45 us of a transfer below 1 %
};

// Units: handles transferred and allocations made, both since the program began.
constexpr bool prefers_transfer(std::uint64_t handles_transferred, std::uint64_t allocations,
                                const TransferRules& rules) {
  return handles_transferred < rules.handles_at_start + allocations / rules.allocations_per_handle;
}

}  // namespace ferro
