#include "ferro/core/policy/passing.h"

namespace ferro {

bool prefers_passing(std::uint64_t handles_passed, std::uint64_t allocations,
                     const PassingRules& rules) {
  return handles_passed < rules.handles_at_start + allocations / rules.allocations_per_handle;
}

}  // namespace ferro
