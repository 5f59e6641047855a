// The cache: emptying it, its limits and statistics, and the devices of pools.
#include "ferro/adapter/allocator/cuda_allocator.h"
#include "ferro/adapter/torch/convert.h"
#include "ferro/adapter/torch/driver_refusals.h"
#include "ferro/driver/error.h"

#include <algorithm>

namespace ferro {

void CudaAllocator::emptyCache(c10::MempoolId_t id) {
  if (id == c10::MempoolId_t{0, 0}) {
    release_failed_captures();
  }
  bool is_of_previous = false;
  bool is_diverting = false;
  for (int i = 0; i < device_count(); ++i) {
    const auto index = static_cast<c10::DeviceIndex>(i);
    Device& owner = device(index);
    const CallContext context =
        owner.history.gather(c10::cuda::CUDACachingAllocator::RecordContext::ALL);
    if (id == c10::MempoolId_t{0, 0}) {
      // Natively this counts as a wait for all streams, even if nothing is released.
      if (owner.has_pages || owner.core.report().held_bytes() != 0) {
        with_torch_errors([&] { owner.core.empty_cache(context); });
      }
    } else {
      try {
        owner.core.empty_pool(to_pool_id(id), context);
      } catch (const DriverError& refusal) {
        // The caller may be the destructor of a MemPool, which must not throw. The next emptying of
        // the whole cache releases the rest of the pool.
        TORCH_WARN(refusal.what());
      }
      is_of_previous |= is_previous_pool(owner, index, id);
      is_diverting |= owner.router.any();
    }
  }
  if (id == c10::MempoolId_t{0, 0}) {
    empty_previous_cache();
  } else if (is_of_previous && !is_diverting) {  // it refuses while it diverts to a pool
    try {
      previous_.allocator().emptyCache(id);
    } catch (const c10::Error& refusal) {
      TORCH_WARN(refusal.what_without_backtrace());
    }
  }
}

void CudaAllocator::empty_cache_of(c10::DeviceIndex index) {
  with_torch_errors([&] { device(index).core.empty_cache(); });
  empty_previous_cache();
}

c10::CachingDeviceAllocator::DeviceStats CudaAllocator::getDeviceStats(c10::DeviceIndex index) {
  if (is_in_forked_child()) {
    return {};
  }
  with_torch_errors([&] { device(index).core.collect_pending(); });
  return statistics(index);
}

c10::CachingDeviceAllocator::DeviceStats CudaAllocator::statistics(c10::DeviceIndex index) {
  const c10::CachingDeviceAllocator::DeviceStats ours = to_device_stats(device(index).core);
  return previous_.is_in_use() ? previous_.add_statistics(index, ours, device(index).grows.load())
                               : ours;
}

void CudaAllocator::resetAccumulatedStats(c10::DeviceIndex index) {
  if (is_in_forked_child()) {
    return;
  }
  DeviceMemory& core = device(index).core;
  core.stats().reset_accumulated();
  core.report().reset_accumulated();
  if (previous_.is_in_use()) {
    previous_.reset_accumulated(index);
  }
}

void CudaAllocator::resetPeakStats(c10::DeviceIndex index) {
  if (is_in_forked_child()) {
    return;
  }
  DeviceMemory& core = device(index).core;
  core.report().reset_peaks();
  if (TagSums* sums = device(index).history.tags()) {
    sums->reset_peaks();
  }
  if (previous_.is_in_use()) {
    previous_.allocator().resetPeakStats(index);
    previous_.forget_peaks(index);
  }
}

double CudaAllocator::getMemoryFraction(c10::DeviceIndex index) {
  const Device& owner = device(index);
  const std::size_t limit = owner.fraction_limit.load(std::memory_order_relaxed);
  return limit == PageStore::kNoLimit
             ? 1.0
             : static_cast<double>(limit) / static_cast<double>(owner.core.total_memory());
}

void CudaAllocator::setMemoryFraction(double fraction, c10::DeviceIndex index) {
  TORCH_CHECK(0 <= fraction && fraction <= 1, "invalid fraction:", fraction,
              ". Please set within [0, 1].");
  Device& owner = device(index);
  const std::size_t limit =
      fraction < 1 ? to_bytes(fraction, owner.core.total_memory()) : PageStore::kNoLimit;
  owner.fraction_limit.store(limit, std::memory_order_relaxed);
  apply_limit(index);
}

void CudaAllocator::cacheInfo(c10::DeviceIndex index, std::size_t* largest_block) {
  DeviceMemory& core = device(index).core;
  if (*largest_block == 0) {
    *largest_block = with_torch_errors([&] { return core.driver().memory_info().free_bytes; });
  }
  *largest_block = std::max(*largest_block, core.report().largest_free_block());
  if (previous_.is_in_use()) {
    previous_.allocator().cacheInfo(index, largest_block);
  }
}

std::optional<c10::DeviceIndex> CudaAllocator::device_of(const PoolId& pool) const {
  std::optional<c10::DeviceIndex> found;
  for (c10::DeviceIndex i = 0; i < device_count(); ++i) {
    if (device(i).core.pools().use_count(pool) > 0) {
      if (found) {
        return std::nullopt;
      }
      found = i;
    }
  }
  return found;
}

}  // namespace ferro
