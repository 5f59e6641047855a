// What a program is told that captures into a sealed pool, or allocates in one.
#pragma once

#include "ferro/core/types/pool_id.h"

namespace ferro {

// Throws c10::Error with one sentence that names the pool when it is sealed.
void refuse_if_sealed(const PoolId& id);

}  // namespace ferro
