// The error for captures into sealed pools, and for allocations in them.
#pragma once

#include "ferro/core/types/pool_id.h"

namespace ferro {

// Throws c10::Error with one sentence that names the pool if it is sealed.
void refuse_if_sealed(const PoolId& id);

}  // namespace ferro
