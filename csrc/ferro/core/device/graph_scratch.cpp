#include "ferro/core/device/graph_scratch.h"

#include "ferro/driver/error.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace ferro {

SharingResult GraphScratch::join(GroupId group, const PoolId& pool) {
  const RecursiveMutexLock lock(climb_mutex_);
  const ObserverSlot::DeliveryAtEnd delivery(parts_.observer);
  if (parts_.captures.load() != 0) {
    return SharingResult::kCapturing;
  }
  return parts_.scratch.join(group, pool);
}

SharingResult GraphScratch::may_join(GroupId group, const PoolId& pool) {
  const RecursiveMutexLock lock(climb_mutex_);
  return parts_.captures.load() != 0 ? SharingResult::kCapturing
                                     : parts_.scratch.may_join(group, pool);
}

SharingResult GraphScratch::leave(const PoolId& pool) {
  const RecursiveMutexLock lock(climb_mutex_);
  const ObserverSlot::DeliveryAtEnd delivery(parts_.observer);
  if (parts_.captures.load() != 0) {
    return SharingResult::kCapturing;
  }
  return parts_.scratch.leave(pool);
}

bool GraphScratch::is_member(const PoolId& pool) {
  const RecursiveMutexLock lock(climb_mutex_);
  return parts_.scratch.is_member(pool);
}

bool GraphScratch::is_in_group(GroupId group, const PoolId& pool) {
  const RecursiveMutexLock lock(climb_mutex_);
  return parts_.scratch.is_in_group(group, pool);
}

GroupBytes GraphScratch::bytes_of(GroupId group) {
  const RecursiveMutexLock lock(climb_mutex_);
  return parts_.scratch.bytes_of(group);
}

GroupBytes GraphScratch::bytes_if_joined(std::span<const PoolId> pools) {
  const RecursiveMutexLock lock(climb_mutex_);
  return parts_.scratch.bytes_if_joined(pools);
}

SharingResult GraphScratch::begin_capture(const PoolId& pool) {
  const RecursiveMutexLock lock(climb_mutex_);
  const ObserverSlot::DeliveryAtEnd delivery(parts_.observer);
  return parts_.scratch.begin_capture(pool);
}

std::optional<Lifetime> GraphScratch::next_lifetime(const PoolId& pool) {
  const RecursiveMutexLock lock(climb_mutex_);
  return parts_.scratch.next_lifetime(pool);
}

bool GraphScratch::is_on_own_pages(DevicePtr ptr) {
  const RecursiveMutexLock lock(climb_mutex_);
  Span& span = *addresses_.find(ptr);
  auto& heap = *span.heap();
  const std::optional<BlockView> block = heap.live_block_at(span, ptr);
  if (block && !ArenaScratch(heap).is_borrowed(span, ptr, block->size)) {
    return true;
  }
  ArenaScratch(heap).undo_allocation(span, ptr);
  return false;
}

bool GraphScratch::note(const PoolId& pool, DevicePtr ptr) {
  if (!parts_.scratch.any()) {
    return true;
  }
  const RecursiveMutexLock lock(climb_mutex_);
  Span* span = addresses_.find(ptr);
  return span == nullptr || parts_.scratch.note(pool, *span, ptr);
}

SharingResult GraphScratch::end_capture(const PoolId& pool, ScratchSharing::Outcome outcome) {
  const RecursiveMutexLock lock(climb_mutex_);
  const ObserverSlot::DeliveryAtEnd delivery(parts_.observer);
  if (!parts_.scratch.lends_to(pool)) {
    return parts_.scratch.end_capture(pool, outcome);
  }
  const Driver::Session session(parts_.driver);
  SharingResult result = parts_.scratch.end_capture(pool, outcome);
  if (result == SharingResult::kOutOfMemory) {
    const ScratchSharing::Ending ending(parts_.scratch, pool);
    reclaimer_.empty_cache(nullptr);
    result = parts_.scratch.settle_again(pool, outcome);
  }
  return result;
}

bool GraphScratch::expect_checkpoints(const PoolId& pool) {
  const RecursiveMutexLock lock(climb_mutex_);
  return parts_.scratch.expect_checkpoints(pool);
}

void GraphScratch::on_restore(const PoolId& pool) {
  const RecursiveMutexLock lock(climb_mutex_);
  parts_.scratch.carried_of(pool).on_restore(live_ranges_of(parts_.pools.heaps_of(pool)));
}

void GraphScratch::on_checkpoint(const PoolId& pool) {
  const RecursiveMutexLock lock(climb_mutex_);
  const ObserverSlot::DeliveryAtEnd delivery(parts_.observer);
  parts_.scratch.carried_of(pool).on_checkpoint(live_ranges_of(parts_.pools.heaps_of(pool)));
  try {
    if (parts_.captures.load() == 0) {
      parts_.scratch.collect();
    }
  } catch (const DriverError&) {  // NOLINT(bugprone-empty-catch): it is shared later
  }
}

bool GraphScratch::is_of_tree(const PoolId& pool) {
  const RecursiveMutexLock lock(climb_mutex_);
  return parts_.scratch.is_of_tree(pool);
}

AddressRanges GraphScratch::follow_moves(const PoolId& pool, AddressRanges ranges) {
  const RecursiveMutexLock lock(climb_mutex_);
  return parts_.scratch.doubled().follow(pool, std::move(ranges));
}

void GraphScratch::on_unheld(const PoolId& pool) {
  const RecursiveMutexLock lock(climb_mutex_);
  parts_.scratch.on_unheld(pool);
}

}  // namespace ferro
