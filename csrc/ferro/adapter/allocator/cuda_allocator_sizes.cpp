// The sizes of pools and graphs, by name.
#include "ferro/adapter/allocator/capture_pools.h"
#include "ferro/adapter/allocator/cuda_allocator.h"
#include "ferro/adapter/torch/convert.h"

#include <c10/util/ApproximateClock.h>

#include <cstdint>
#include <utility>

namespace ferro {
std::vector<CudaAllocator::PrivatePool> CudaAllocator::private_pools(c10::DeviceIndex index) const {
  Device& owner = device(index);
  std::vector<PrivatePool> pools;
  const auto add = [&pools](const PoolId& id, std::size_t reserved,
                            const std::vector<BlockView>& live, std::size_t shared,
                            std::size_t asleep) {
    PoolSizes sizes;
    sizes.private_bytes = reserved;
    sizes.shared_bytes = shared;
    sizes.asleep_bytes = asleep;
    for (const BlockView& block : live) {
      sizes.live_bytes += block.is_asleep ? 0 : block.size;
    }
    sizes.scratch_bytes = sizes.private_bytes - sizes.live_bytes;
    pools.push_back({id, pool_registry().name_of(id), sizes});
  };
  const auto asleep = owner.core.asleep_pools();
  for (const auto& [id, reserved] : owner.core.report().reserved_by_pool()) {
    const auto sleeping = asleep.find(id);
    if (reserved[kAll].current != 0 || sleeping != asleep.end()) {
      add(id, static_cast<std::size_t>(reserved[kAll].current), owner.core.report().live_blocks(id),
          owner.graphs.shared_bytes(id), sleeping != asleep.end() ? sleeping->second : 0);
    }
  }
  for (const auto& [id, blocks] : previous_.private_pools(index, {0, 0})) {
    add(id, blocks.reserved, blocks.live, owner.graphs.shared_bytes(id), 0);
  }
  return pools;
}

std::optional<GraphSizes> CudaAllocator::graph_sizes(c10::DeviceIndex index, const PoolId& pool,
                                                     std::uint64_t capture) const {
  Device& owner = device(index);
  if (owner.core.pools().use_count(pool) < 0) {
    if (!previous_.is_in_use() || !previous_.knows_pool(index, to_mempool_id(pool))) {
      return std::nullopt;
    }
    return owner.graphs.sizes_of(pool, capture,
                                 previous_.private_pools(index, to_mempool_id(pool))[pool].live);
  }
  return owner.graphs.sizes_of(pool, capture, owner.core.report().live_blocks(pool));
}

void CudaAllocator::forget_capture(c10::DeviceIndex index, const PoolId& pool,
                                   std::uint64_t capture) const {
  device(index).graphs.forget_capture(pool, capture);
}

AddressRanges CudaAllocator::addresses_of_capture(c10::DeviceIndex index, const PoolId& pool,
                                                  std::uint64_t capture,
                                                  GraphMemory::Places places) const {
  return device(index).graphs.addresses_of_capture(pool, capture, places);
}

void CudaAllocator::visit_live(const VisitBlock& visit) const {
  for (c10::DeviceIndex i = 0; i < device_count(); ++i) {
    device(i).core.report().visit_live(
        [&](const BlockView& block) { visit(block, addresses_.find(block.ptr)->heap()->pool()); });
  }
}

int CudaAllocator::captures() const {
  int captures = 0;
  for (c10::DeviceIndex i = 0; i < device_count(); ++i) {
    captures += device(i).router.captures();
  }
  return captures;
}

std::vector<c10::CachingDeviceAllocator::AnnotationEntry> CudaAllocator::pool_names(
    c10::DeviceIndex index) const {
  std::vector<c10::CachingDeviceAllocator::AnnotationEntry> names;
  for (const PrivatePool& pool : private_pools(index)) {
    if (!pool.name.empty()) {
      names.emplace_back(index, c10::getApproximateTime());
      names.back().recordUserMetadata("graph_pool", pool.name);
      names.back().recordUserMetadata("segment_pool_id", to_text(pool.id));
    }
  }
  return names;
}

}  // namespace ferro
