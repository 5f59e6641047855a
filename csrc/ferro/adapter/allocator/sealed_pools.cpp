#include "ferro/adapter/allocator/sealed_pools.h"

#include "ferro/graph/pool_registry.h"

#include <c10/util/Exception.h>

#include <memory>

namespace ferro {

void refuse_if_sealed(const PoolId& id) {
  const std::shared_ptr<CapturePool> pool = pool_registry().find_sealed(id);
  TORCH_CHECK(pool == nullptr, "The graph pool '", pool->name(), "' (", id.graph, ", ", id.handle,
              ") is sealed: nothing may be captured into it or allocated in it. Call unseal() "
              "first, or use another pool.");
}

}  // namespace ferro
