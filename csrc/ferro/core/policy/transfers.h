// Policy: may a request take free pages of other streams, where it could grow? Pure.
//
// Such pages cost the driver's time alone, where their epoch has passed, or a stream wait.
// But streams that take turns would pass the same pages back and forth without end. So a program may
// pass some for nothing, which lets one phase have the memory of the one before, and from then on
// few beside what it allocates; beyond that requests grow, and streams that take turns end up with
// pages of their own.
#pragma once

#include <cstdint>

namespace ferro {

struct TransferRules {
  std::uint64_t handles_at_start = 1024;        // 64 GiB in the largest ones; 45 ms of the driver's
  std::uint64_t allocations_per_handle = 1000;  // so that 45 us of the driver's are less than 1 %
};

// Units: handles that were passed and allocations that were made, both since the program began.
bool prefers_transfer(std::uint64_t handles_transferred, std::uint64_t allocations,
                      const TransferRules& rules);

}  // namespace ferro
