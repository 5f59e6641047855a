#include "ferro/graph/footprints.h"

#include <utility>

namespace ferro {

void Footprints::note(const PoolId& pool, std::uint64_t capture, DevicePtr ptr, std::size_t bytes) {
  const MutexLock lock(mutex_);
  pools_[pool][capture].add(ptr, bytes);
}

GraphSizes Footprints::sizes_of(const PoolId& pool, std::uint64_t capture,
                                const std::vector<BlockView>& live, const Follow& follow) const {
  const ByCapture captures = of_pool(pool);
  if (!captures.contains(capture)) {
    return {};
  }
  const AddressRanges mine = follow(captures.at(capture));
  AddressRanges others;
  for (const auto& [other, ranges] : captures) {
    if (other != capture) {
      others.unite(ranges);
    }
  }
  others = follow(std::move(others));
  AddressRanges in_use;
  for (const BlockView& block : live) {
    in_use.add(block.ptr, block.size);
  }
  const std::size_t bytes = mine.bytes();
  GraphSizes sizes;
  sizes.shared_bytes = mine.intersection(others).bytes();
  sizes.private_bytes = bytes - sizes.shared_bytes;
  sizes.live_bytes = mine.intersection(in_use).bytes();
  sizes.scratch_bytes = bytes - sizes.live_bytes;
  return sizes;
}

AddressRanges Footprints::of_capture(const PoolId& pool, std::uint64_t capture) const {
  const MutexLock lock(mutex_);
  const auto captures = pools_.find(pool);
  if (captures == pools_.end() || !captures->second.contains(capture)) {
    return {};
  }
  return captures->second.at(capture);
}

std::size_t Footprints::shared_bytes(const PoolId& pool, const Follow& follow) const {
  AddressRanges seen;
  AddressRanges shared;
  for (const auto& [capture, given] : of_pool(pool)) {
    const AddressRanges ranges = follow(given);
    shared.unite(seen.intersection(ranges));
    seen.unite(ranges);
  }
  return shared.bytes();
}

// A copy, as whoever follows takes another lock.
Footprints::ByCapture Footprints::of_pool(const PoolId& pool) const {
  const MutexLock lock(mutex_);
  const auto captures = pools_.find(pool);
  return captures != pools_.end() ? captures->second : ByCapture{};
}

void Footprints::forget_capture(const PoolId& pool, std::uint64_t capture) {
  const MutexLock lock(mutex_);
  const auto captures = pools_.find(pool);
  if (captures != pools_.end() && captures->second.erase(capture) > 0 && captures->second.empty()) {
    pools_.erase(captures);
  }
}

void Footprints::forget_pool(const PoolId& pool) {
  const MutexLock lock(mutex_);
  pools_.erase(pool);
}

}  // namespace ferro
