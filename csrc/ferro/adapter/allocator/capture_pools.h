// The capture pools of the process, and the allocators that hold their memory.
#pragma once

#include "ferro/core/types/pool_id.h"
#include "ferro/graph/pool_registry.h"

namespace ferro {

// Never destroyed. It asks ferro_alloc who holds a pool; before the first install, PyTorch's current
// allocator, which does not report releases: call `PoolRegistry::drop_unused` from time to time.
PoolRegistry& pool_registry();

// Throws c10::Error with one sentence that names the pool if it is sealed.
void refuse_if_sealed(const PoolId& id);

}  // namespace ferro
