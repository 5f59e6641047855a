// Pools that join and leave a group, and what they share then.
#include "ferro/driver/error.h"
#include "ferro/graph/graph_memory.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

namespace ferro {

ScratchSet& GraphMemory::set_of(GroupId group) {
  return sets_.try_emplace(group, group, parts_.store, parts_.pools).first->second;
}

std::optional<GroupId> GraphMemory::group_of(const PoolId& id) {
  const RecursiveMutexLock lock(climb_mutex_);
  const GraphPool* pool = find(id);
  return pool != nullptr && pool->is_member() ? std::optional(pool->set->group()) : std::nullopt;
}

SharingResult GraphMemory::may_join(GroupId group, const PoolId& id) {
  const RecursiveMutexLock lock(climb_mutex_);
  return check_join(group, id);
}

SharingResult GraphMemory::check_join(GroupId group, const PoolId& id) const {
  if (parts_.captures.load() != 0) {
    return SharingResult::kCapturing;
  }
  const auto set = sets_.find(group);
  const bool is_asleep = std::ranges::any_of(
      parts_.pools.heaps_of(id), [](const Heap* heap) { return heap->asleep_bytes() != 0; });
  if (is_asleep || is_scratch_asleep(id) || (set != sets_.end() && set->second.is_asleep())) {
    return SharingResult::kAsleep;
  }
  const GraphPool* pool = find(id);
  if (pool == nullptr || !pool->is_member()) {
    return SharingResult::kOk;
  }
  if (pool->set->group() != group && pool->set->members().size() > 1) {
    return SharingResult::kMember;
  }
  return pool->borrows() ? SharingResult::kCapturing : SharingResult::kOk;
}

SharingResult GraphMemory::join(GroupId group, const PoolId& id) {
  const RecursiveMutexLock lock(climb_mutex_);
  const ObserverSlot::DeliveryAtEnd delivery(parts_.observer);
  if (const SharingResult result = check_join(group, id); result != SharingResult::kOk) {
    return result;
  }
  collect();
  if (const SharingResult result = wait_for_rest(); result != SharingResult::kOk) {
    return result;
  }
  ScratchSet& set = set_of(group);
  GraphPool& pool = pool_of(id);
  if (!pool.is_member()) {
    add_member(group, pool, nullptr);
  } else if (pool.set != &set) {
    ScratchSet& lone = *pool.set;
    set.take_over(lone);
    sets_.erase(lone.group());
    if (has_news(pool)) {
      share_what_is_not_carried(pool);
    }
  }
  set.fold();
  return SharingResult::kOk;
}

SharingResult GraphMemory::wait_for_rest() {
  if (parts_.timeline.wait_for_all()) {
    return SharingResult::kOk;
  }
  return parts_.captures.load() != 0 ? SharingResult::kCapturing : SharingResult::kBusy;
}

// Moved ones that cannot be shared.
std::set<PageHandle> GraphMemory::staying_handles(const GraphPool& pool) {
  std::set<PageHandle> free;
  if (pool.moved.any()) {
    for (Heap* heap : parts_.pools.heaps_of(pool.id)) {
      free.merge(heap->free_handles());
    }
  }
  return pool.moved.staying(free);
}

// `written`: by the graphs of the pool. Null: unknown, so all that the pool has, and the device is
// at rest.
void GraphMemory::add_member(GroupId group, GraphPool& pool, const AddressRanges* written) {
  pool.set = &set_of(group);
  update_tracked(pool);
  const User user = next_user_++;
  // Without a hold there are no graphs, and no later release would remove their scratch.
  const bool has_graphs = parts_.pools.use_count(pool.id) > 0;
  if (has_graphs && pool.is_of_tree()) {
    share_what_is_not_carried(pool);
  } else if (has_graphs) {
    const std::set<PageHandle> staying = staying_handles(pool);
    for (Heap* heap : parts_.pools.heaps_of(pool.id)) {
      // What the pool has given to others since is gone.
      const AddressRanges backed = heap->backed_ranges();
      pool.written.unite(written != nullptr ? written->intersection(backed) : backed);
      heap->retire_free(pool.written);
      add_uses(pool, pool.uses, *heap, user, heap->alias_retired(staying), Folding::kMayFold);
    }
    for (AliasedBlock& old : pool.moved.take_except(staying)) {
      Heap& heap = *old.block->span->heap();
      add_uses(pool, pool.uses, heap, next_user_++, {std::move(old)}, Folding::kMayNot);
      pool.uses.back().doubles = user;
    }
  }
  pool.set->add_member(pool, {});
}

SharingResult GraphMemory::leave(const PoolId& id) {
  const RecursiveMutexLock lock(climb_mutex_);
  const ObserverSlot::DeliveryAtEnd delivery(parts_.observer);
  if (parts_.captures.load() != 0) {
    return SharingResult::kCapturing;
  }
  GraphPool* pool = find(id);
  if (pool == nullptr || !pool->is_member()) {
    return SharingResult::kNoMember;
  }
  if (pool->set->is_asleep()) {
    return SharingResult::kAsleep;
  }
  ScratchSet& before = *pool->set;
  if (before.members().size() == 1) {
    // A pool that joins that group later shares nothing with this one.
    auto lone = sets_.extract(before.group());
    lone.key() = next_lone_++;
    before.set_group(lone.key());
    sets_.insert(std::move(lone));
    return SharingResult::kOk;
  }
  collect(News::kLeft);
  if (pool->loan) {
    return SharingResult::kCapturing;
  }
  if (const SharingResult result = wait_for_rest(); result != SharingResult::kOk) {
    return result;
  }
  ScratchSet::Handles own;
  const SharingResult result = before.separate(*pool, &own);
  if (result == SharingResult::kOk) {
    set_of(next_lone_++).add_member(*pool, std::move(own));
    before.settle_accounts();
    before.fold();
  }
  return result;
}

GroupBytes GraphMemory::bytes_of(GroupId group) {
  const RecursiveMutexLock lock(climb_mutex_);
  const auto set = sets_.find(group);
  if (set == sets_.end()) {
    return {};
  }
  GroupBytes bytes;
  bytes.set = set->second.held_pages() * parts_.store.page_bytes();
  for (const GraphPool* pool : set->second.members()) {
    for (const ScratchUse& use : pool->uses) {
      bytes.scratch += use.range.block->size;
    }
  }
  return bytes;
}

GroupBytes GraphMemory::bytes_if_joined(std::span<const PoolId> ids) {
  const RecursiveMutexLock lock(climb_mutex_);
  std::vector<HandleRuns> users;
  std::vector<std::vector<std::size_t>> doubled;
  std::size_t pages = 0;
  const GraphPool unknown(kDefaultPool);
  for (const PoolId& id : ids) {
    const GraphPool* known = find(id);
    const GraphPool& pool = known != nullptr ? *known : unknown;
    HandleRuns& runs = users.emplace_back();
    std::vector<std::size_t>& twice = doubled.emplace_back();
    if (!pool.is_member()) {
      const AddressRanges carried =
          pool.is_of_tree() ? find(id)->carried.ranges() : AddressRanges{};
      const std::set<PageHandle> moved = pool.moved.handles();
      if (!pool.is_of_tree()) {
        twice = pool.moved.pages_except(staying_handles(pool));
      }
      for (Heap* heap : parts_.pools.heaps_of(id)) {
        std::ranges::move(heap->runs_of_free_handles(carried, moved), std::back_inserter(runs));
      }
    } else if (pool.set->members().size() == 1) {
      // It has left a group; others may not join.
      for (const auto& [handle, shared] : pool.set->handles()) {
        runs.push_back({shared.held_pages()});
      }
    }
    pages = std::accumulate(twice.begin(), twice.end(), pages);
    for (const std::vector<std::size_t>& run : runs) {
      pages = std::accumulate(run.begin(), run.end(), pages);
    }
  }
  const std::size_t folded = pages_when_folded(users, std::move(doubled));
  return {folded * parts_.store.page_bytes(), pages * parts_.store.page_bytes()};
}

// Pools outside declared groups, and those that have left one, do not share new scratch.
bool GraphMemory::has_news(const GraphPool& pool) {
  return pool.is_member() && pool.set->group() < kFirstLone && pool.is_of_tree() &&
         pool.carried.has_news();
}

// The device is at rest: nothing orders the program's own work in the pool behind replays.
GraphMemory::User GraphMemory::share_what_is_not_carried(GraphPool& pool) {
  const User user = next_user_++;
  const std::set<PageHandle> moved = pool.moved.handles();
  for (Heap* heap : parts_.pools.heaps_of(pool.id)) {
    add_uses(pool, pool.uses, *heap, user, heap->alias_free_outside(pool.carried.ranges(), moved),
             Folding::kMayFold);
  }
  pool.carried.settle(backed_ranges_of(pool.id));
  pool.set->settle_accounts();
  return user;
}

}  // namespace ferro
