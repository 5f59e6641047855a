#include "ferro/core/policy/transfers.h"

namespace ferro {

bool prefers_transfer(std::uint64_t handles_transferred, std::uint64_t allocations,
                      const TransferRules& rules) {
  return handles_transferred < rules.handles_at_start + allocations / rules.allocations_per_handle;
}

}  // namespace ferro
