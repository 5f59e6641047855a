#include "ferro/adapter/allocator/capture_pools.h"

#include "ferro/adapter/allocator/cuda_allocator.h"
#include "ferro/adapter/allocator/installed_allocator.h"
#include "ferro/adapter/torch/convert.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/util/Exception.h>

#include <optional>
#include <string>

namespace ferro {
namespace {

bool is_held(const PoolId& id) {
  if (const CudaAllocator* allocator = installed_allocator()) {
    return allocator->holds_pool(id);
  }
  const PreviousAllocator current(*c10::cuda::CUDACachingAllocator::get());
  for (c10::DeviceIndex i = 0; current.is_in_use() && i < c10::cuda::device_count(); ++i) {
    if (current.pool_use_count(i, to_mempool_id(id)) > 0) {
      return true;
    }
  }
  return false;
}

void on_gone(const PoolId& id) {
  if (CudaAllocator* allocator = installed_allocator()) {
    allocator->on_release(id);
    allocator->empty_idle_pool(id);
  }
}

}  // namespace

PoolRegistry& pool_registry() {
  static auto* registry = new PoolRegistry(is_held, on_gone);
  return *registry;
}

void refuse_if_sealed(const PoolId& id) {
  const std::optional<std::string> name = pool_registry().sealed_name(id);
  TORCH_CHECK(!name, "The graph pool '", name.value_or(""), "' (", id.graph, ", ", id.handle,
              ") is sealed: nothing may be captured into it or allocated in it. Call unseal() "
              "first, or use another pool.");
}

}  // namespace ferro
