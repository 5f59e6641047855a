#include "ferro/core/device/graph_scratch.h"

#include "ferro/driver/error.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace ferro {

bool GraphScratch::lend(GroupId group, bool lends) {
  const RecursiveMutexLock lock(climb_mutex_);
  parts_.eviction.set_lends(group, lends);
  return lends || refill(group) != SharingResult::kOk;
}

std::optional<std::size_t> GraphScratch::begin_launch(GroupId group) {
  LaunchGate& gate = parts_.eviction.gate();
  gate.enter();
  if (!parts_.eviction.is_any_incomplete()) {
    return std::nullopt;
  }
  gate.leave();
  const RecursiveMutexLock lock(climb_mutex_);
  if (refill(group) == SharingResult::kOk) {
    gate.enter();  // which is open, as an eviction has the lock
    return std::nullopt;
  }
  const std::size_t pages = parts_.eviction.evicted_pages(group);
  const std::size_t at_hand = std::min(pages, parts_.store.single_pages_at_hand());
  return (pages - at_hand) * parts_.store.page_bytes();
}

// Where memory lacks, as for a request that would fail.
SharingResult GraphScratch::refill(GroupId group) {
  ScratchEviction& eviction = parts_.eviction;
  if (!eviction.is_incomplete(group)) {
    return SharingResult::kOk;
  }
  const Driver::Session session(parts_.driver);
  parts_.stale.remove_passed();
  SharingResult result = eviction.refill(group);
  const std::size_t pages = eviction.evicted_pages(group);
  if (result == SharingResult::kOutOfMemory) {
    reclaimer_.empty_cache(nullptr);
    for (Heap* heap : parts_.pools.heaps_of(kDefaultPool)) {
      reclaimer_.empty_heap(*heap, Reclaimer::kAllPages, nullptr);
    }
    result = eviction.refill(group);
  }
  if (result == SharingResult::kOutOfMemory && ladder_.evict_scratch_for(pages, group)) {
    result = eviction.refill(group);
  }
  return result;
}

SharingResult GraphScratch::refill_group_of(const PoolId& pool) {
  const std::optional<GroupId> group = parts_.eviction.group_of(pool);
  return group ? refill(*group) : SharingResult::kOk;
}

SharingResult GraphScratch::join(GroupId group, const PoolId& pool) {
  const RecursiveMutexLock lock(climb_mutex_);
  if (parts_.captures.load() != 0) {
    return SharingResult::kCapturing;
  }
  if (const SharingResult result = parts_.scratch.may_join(group, pool);
      result != SharingResult::kOk) {
    return result;
  }
  // Of a pool alone in another group too; one may have lent to the other just now.
  if (refill_group_of(pool) != SharingResult::kOk || refill(group) != SharingResult::kOk ||
      refill_group_of(pool) != SharingResult::kOk || parts_.eviction.is_incomplete(group)) {
    return SharingResult::kOutOfMemory;
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
  if (parts_.captures.load() != 0) {
    return SharingResult::kCapturing;
  }
  if (const SharingResult result = refill_group_of(pool); result != SharingResult::kOk) {
    return result;
  }
  return parts_.scratch.leave(pool);
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
  if (const SharingResult result = refill_group_of(pool); result != SharingResult::kOk) {
    return result;
  }
  return parts_.scratch.begin_capture(pool);
}

std::optional<Lifetime> GraphScratch::next_lifetime(const PoolId& pool) {
  const RecursiveMutexLock lock(climb_mutex_);
  return parts_.scratch.next_lifetime(pool);
}

bool GraphScratch::is_on_own_pages(DevicePtr ptr) {
  const RecursiveMutexLock lock(climb_mutex_);
  Span& span = *addresses_.find(ptr);
  auto& heap = static_cast<ArenaHeap&>(*span.heap());
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
