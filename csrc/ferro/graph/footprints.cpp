#include "ferro/graph/footprints.h"

#include <algorithm>
#include <iterator>

namespace ferro {

void AddressRanges::add(DevicePtr ptr, std::size_t bytes) {
  std::uint64_t begin = address_of(ptr);
  std::uint64_t end = begin + bytes;
  auto next = ends_.upper_bound(begin);
  if (next != ends_.begin() && std::prev(next)->second >= begin) {
    --next;
  }
  while (next != ends_.end() && next->first <= end) {
    begin = std::min(begin, next->first);
    end = std::max(end, next->second);
    next = ends_.erase(next);
  }
  ends_.emplace_hint(next, begin, end);
}

std::size_t AddressRanges::bytes() const {
  std::size_t sum = 0;
  for (const auto& [begin, end] : ends_) {
    sum += end - begin;
  }
  return sum;
}

AddressRanges AddressRanges::intersection(const AddressRanges& other) const {
  AddressRanges both;
  auto mine = ends_.begin();
  auto its = other.ends_.begin();
  while (mine != ends_.end() && its != other.ends_.end()) {
    const std::uint64_t begin = std::max(mine->first, its->first);
    const std::uint64_t end = std::min(mine->second, its->second);
    if (begin < end) {
      both.ends_.emplace_hint(both.ends_.end(), begin, end);
    }
    mine->second < its->second ? ++mine : ++its;
  }
  return both;
}

void AddressRanges::unite(const AddressRanges& other) {
  for (const auto& [begin, end] : other.ends_) {
    add(DevicePtr{begin}, end - begin);
  }
}

void Footprints::note(const PoolId& pool, std::uint64_t capture, DevicePtr ptr, std::size_t bytes) {
  const MutexLock lock(mutex_);
  pools_[pool][capture].add(ptr, bytes);
}

GraphSizes Footprints::sizes_of(const PoolId& pool, std::uint64_t capture,
                                const std::vector<BlockView>& live) const {
  const MutexLock lock(mutex_);
  const auto captures = pools_.find(pool);
  if (captures == pools_.end() || !captures->second.contains(capture)) {
    return {};
  }
  const AddressRanges& mine = captures->second.at(capture);
  AddressRanges others;
  for (const auto& [other, ranges] : captures->second) {
    if (other != capture) {
      others.unite(ranges);
    }
  }
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

std::size_t Footprints::shared_bytes(const PoolId& pool) const {
  const MutexLock lock(mutex_);
  const auto captures = pools_.find(pool);
  AddressRanges seen;
  AddressRanges shared;
  if (captures != pools_.end()) {
    for (const auto& [capture, ranges] : captures->second) {
      shared.unite(seen.intersection(ranges));
      seen.unite(ranges);
    }
  }
  return shared.bytes();
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
