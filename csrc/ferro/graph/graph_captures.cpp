// Captures: the handles that they borrow, and their end.
#include "ferro/base/check.h"
#include "ferro/driver/error.h"
#include "ferro/graph/graph_memory.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace ferro {

bool GraphMemory::borrows(const PoolId& id) const {
  const GraphPool* pool = find(id);
  return pool != nullptr && pool->borrows();
}

void GraphMemory::add_uses(GraphPool& pool, std::vector<ScratchUse>& to, Heap& heap, User user,
                           std::vector<AliasedBlock> found, Folding folding) {
  for (AliasedBlock& range : found) {
    const bool is_private = folding == Folding::kPoolPrivate;
    pool.set->add_user(range.handles, user, is_private ? std::optional(pool.id) : std::nullopt);
    to.push_back({user, &heap, std::move(range), folding == Folding::kMayFold});
  }
}

void GraphMemory::retire_written(GraphPool& pool) {
  for (Heap* heap : parts_.pools.heaps_of(pool.id)) {
    heap->retire_free(pool.written);
  }
}

// Shares whole borrowed handles without a live byte. True: others are left.
bool GraphMemory::share_dead_borrowed(GraphPool& pool, std::vector<ScratchUse>& to,
                                      Folding folding) {
  bool any_lives = false;
  for (Heap* heap : parts_.pools.heaps_of(pool.id)) {
    add_uses(pool, to, *heap, pool.loan->user, heap->alias_borrowed(), folding);
    any_lives = any_lives || !heap->borrowed().empty();
  }
  return any_lives;
}

// Shares whole handles that were free when the capture began and that graphs may write.
void GraphMemory::share_what_died(GraphPool& pool) {
  for (Heap* heap : parts_.pools.heaps_of(pool.id)) {
    heap->retire_free(pool.written);
    add_uses(pool, pool.uses, *heap, next_user_++, heap->alias_retired(), Folding::kPoolPrivate);
  }
  pool.set->settle_accounts();
}

// Makes memory that the capture freed available to it again. The capture goes on as another user.
void GraphMemory::share_what_died_on(StreamId stream, GraphPool& pool, std::size_t pages,
                                     Died which) {
  ScratchSet& set = *pool.set;
  CaptureLoan& loan = *pool.loan;
  const auto accepts = [&](PageHandle handle) {
    return which == Died::kAny || set.at(handle).is_used_by(loan.users);
  };
  std::vector<Heap*> heaps = parts_.pools.heaps_of(pool.id);
  std::erase_if(heaps, [&](const Heap* heap) { return heap->stream() != stream; });
  std::vector<ScratchUse> own;
  std::vector<ScratchUse> borrowed;
  for (Heap* heap : heaps) {
    heap->retire_free(pool.written);
    add_uses(pool, own, *heap, next_user_++, heap->alias_retired(), Folding::kPoolPrivate);
  }
  for (const ScratchUse& use : own) {
    pages -= which == Died::kAny ? std::min(pages, pages_in(use.range.handles)) : 0;
  }
  for (Heap* heap : heaps) {
    if (pages == 0) {
      break;
    }
    const std::size_t before = borrowed.size();
    add_uses(pool, borrowed, *heap, next_user_++, heap->alias_some_borrowed(pages, accepts),
             Folding::kMayNot);
    for (std::size_t i = before; i < borrowed.size(); ++i) {
      pages -= std::min(pages, pages_in(borrowed[i].range.handles));
    }
  }
  for (const ScratchUse& use : borrowed) {
    loan.users.insert(use.user);
    set.remove_user(use.range.handles, loan.user);
  }
  for (std::vector<ScratchUse>* uses : {&own, &borrowed}) {
    for (ScratchUse& use : *uses) {
      for (const HandleRange& range : use.range.handles) {
        loan.died_on[range.handle] = stream;
      }
      pool.uses.push_back(std::move(use));
    }
  }
  set.settle_accounts();
}

std::vector<HandleRange> GraphMemory::lend(const PoolId& id, StreamId stream, std::size_t pages,
                                           Loan terms) {
  GraphPool& pool = *find(id);
  const CaptureLoan& loan = *pool.loan;
  const bool keeps = terms == Loan::kKeep;
  const auto chosen = [&](LastHandle last) {
    return pool.set->choose(
        loan.user, pages, last, [&](PageHandle handle, const ScratchSet::Shared& shared) {
          const auto died = loan.died_on.find(handle);
          const bool has_died = died != loan.died_on.end();
          const bool is_ordered = !has_died || died->second == stream;
          return is_ordered && (keeps ? has_died && shared.is_used_by(loan.users)
                                      : !shared.only || *shared.only == id);
        });
  };
  std::vector<HandleRange> lent = chosen(LastHandle::kFits);
  if (pages_in(lent) < pages) {
    share_what_died_on(stream, pool, pages - pages_in(lent),
                       keeps ? Died::kOfThisGraph : Died::kAny);
    lent = chosen(terms == Loan::kBorrow ? LastHandle::kMayBeLarger : LastHandle::kFits);
  }
  for (const HandleRange& range : lent) {
    ScratchSet::Shared& shared = pool.set->at(range.handle);
    if (keeps) {
      shared.kept_by = id;
    } else {
      shared.users.insert(loan.user);
    }
  }
  pool.set->settle_accounts();
  return lent;
}

void GraphMemory::on_mapped(const PoolId& id, DevicePtr begin, std::span<const HandleRange> lent,
                            std::span<const HandleRange> added) {
  GraphPool& pool = *find(id);
  for (const HandleRange& range : lent) {
    const std::size_t bytes = range.pages * parts_.store.page_bytes();
    if (pool.set->at(range.handle).kept_by) {
      pool.loan->kept.add(begin, bytes);
    }
    begin = begin + bytes;
  }
  pool.set->add_user(added, pool.loan->user);
  pool.set->settle_accounts();
}

void GraphMemory::reclaim(const PoolId& id, std::span<const HandleRange> lent) {
  GraphPool& pool = *find(id);
  for (const HandleRange& range : lent) {
    ScratchSet::Shared& shared = pool.set->at(range.handle);
    shared.users.erase(pool.loan->user);
    shared.kept_by.reset();
  }
  pool.set->settle_accounts();
}

// Trees rely on the addresses of free memory.
bool GraphMemory::moves_within(const PoolId& id) const {
  const GraphPool* pool = find(id);
  return pool != nullptr && pool->carried.is_captured_into() && !pool->is_of_tree() &&
         !pool->is_member();
}

void GraphMemory::notify_moved(const PoolId& id, AliasedBlock from, DevicePtr to) {
  find(id)->moved.add(std::move(from), to);
}

SharingResult GraphMemory::begin_capture(const PoolId& id) {
  const RecursiveMutexLock lock(climb_mutex_);
  const ObserverSlot::DeliveryAtEnd delivery(parts_.observer);
  using First = GraphPool::First;
  if (is_scratch_asleep(id)) {
    return SharingResult::kAsleep;
  }
  GraphPool& pool = pool_of(id);
  pool.carried.begin([&] { return live_ranges_of(id); });
  if (pool.is_of_tree()) {
    return SharingResult::kOk;
  }
  close_order(pool);
  if (!pool.is_member()) {
    if (parts_.config.graph_order == GraphOrder::kCaptured) {
      return SharingResult::kOk;
    }
    if (std::exchange(pool.first, First::kBegun) != First::kEnded) {
      update_tracked(pool);
      return SharingResult::kOk;
    }
    pool.first = First::kNone;
    const AddressRanges written = pool.moved.follow(std::exchange(pool.written, {}));
    add_member(next_lone_++, pool, &written);
  }
  if (pool.loan) {
    if (const SharingResult result = settle(pool); result != SharingResult::kOk) {
      return result;
    }
  }
  share_what_died(pool);
  pool.loan.emplace(next_user_++);
  return SharingResult::kOk;
}

// No-op if the capture got no pages.
void GraphMemory::end_first_capture(GraphPool& pool) {
  const bool has_pages = std::ranges::any_of(
      parts_.pools.heaps_of(pool.id), [](Heap* heap) { return heap->view().backed_bytes != 0; });
  if (!has_pages) {
    return;
  }
  pool.first = GraphPool::First::kEnded;
  learn_capture(pool);
  close_order(pool);
}

void GraphMemory::learn_capture(GraphPool& pool) {
  for (const GraphPool::Given& each : pool.given) {
    pool.written.add(each.ptr, each.bytes);
  }
  std::set<DevicePtr> live;
  for (const BlockView& block : device_.report().live_blocks(pool.id)) {
    live.insert(block.ptr);
  }
  pool.lifetimes.learn(pool.given, [&](DevicePtr ptr) { return live.contains(ptr); });
}

SharingResult GraphMemory::end_capture(const PoolId& id, Outcome outcome) {
  const RecursiveMutexLock lock(climb_mutex_);
  const ObserverSlot::DeliveryAtEnd delivery(parts_.observer);
  GraphPool* pool = find(id);
  if (pool == nullptr) {
    return SharingResult::kOk;
  }
  const bool succeeded = outcome == Outcome::kSucceeded;
  std::optional<Driver::Session> session;
  if (pool->borrows()) {
    session.emplace(parts_.driver);
  }
  pool->carried.end(succeeded, [&] { return live_ranges_of(id); });
  if (!pool->borrows()) {
    if (succeeded && pool->first == GraphPool::First::kBegun) {
      end_first_capture(*pool);
    }
    return SharingResult::kOk;
  }
  SharingResult result = end_loan(*pool, outcome);
  if (result == SharingResult::kOutOfMemory) {
    // `collect` leaves memory that was freed since, because the graph writes there.
    pool->loan->is_ending = true;
    try {
      device_.reclaimer().empty_cache(nullptr);
    } catch (...) {
      pool->loan->is_ending = false;
      throw;
    }
    result = end_loan_again(*pool, outcome);
  }
  return result;
}

SharingResult GraphMemory::end_loan(GraphPool& pool, Outcome outcome) {
  const bool succeeded = outcome == Outcome::kSucceeded;
  CaptureLoan& loan = *pool.loan;
  loan.is_running = false;
  // A handle that one graph has at two addresses must not be replaced at only one of them.
  const Folding folding = loan.users.size() == 1 ? Folding::kMayFold : Folding::kMayNot;
  share_dead_borrowed(pool, pool.uses, folding);
  if (!succeeded) {
    // No graph writes there. Clang 14 cannot compile the result of std::ranges::partition.
    const auto first =
        std::partition(pool.uses.begin(), pool.uses.end(),
                       [&](const ScratchUse& use) { return !loan.users.contains(use.user); });
    std::vector<ScratchUse> unused(std::make_move_iterator(first),
                                   std::make_move_iterator(pool.uses.end()));
    pool.uses.erase(first, pool.uses.end());
    pool.set->remove_uses(unused);
    std::ranges::move(unused, std::back_inserter(pool.gone));
  }
  pool.set->settle_accounts();
  if (succeeded) {
    learn_capture(pool);
    pool.written.unite(loan.kept);
  }
  loan.kept.clear();
  loan.died_on.clear();
  close_order(pool);
  const SharingResult result = settle(pool);
  if (succeeded) {
    retire_written(pool);
  }
  return result;
}

// Completes an earlier `end_loan` that failed.
SharingResult GraphMemory::end_loan_again(GraphPool& pool, Outcome outcome) {
  pool.loan->is_ending = false;
  share_dead_borrowed(pool, outcome == Outcome::kSucceeded ? pool.uses : pool.gone,
                      Folding::kMayNot);
  const SharingResult result = settle(pool);
  if (result == SharingResult::kOk) {
    retire_written(pool);
  }
  return result;
}

// Backs live memory on borrowed handles by handles that no other graph has.
SharingResult GraphMemory::settle(GraphPool& pool) {
  ScratchSet& set = *pool.set;
  const CaptureLoan& loan = *pool.loan;
  bool all = true;
  for (Heap* heap : parts_.pools.heaps_of(pool.id)) {
    for (const Heap::PlacedHandle& borrowed : heap->borrowed()) {
      ScratchSet::Shared& shared = set.at(borrowed.range.handle);
      if (shared.is_used_by(loan.users)) {
        // Only this graph uses it, and writes the memory that it freed there earlier.
        shared.users.erase(loan.user);
        shared.kept_by = pool.id;
        if (!shared.users.empty()) {
          pool.written.add(borrowed.begin, borrowed.range.pages * parts_.store.page_bytes());
        }
        heap->keep_borrowed(borrowed.begin);
      } else if (exchange_borrowed(*heap, borrowed)) {
        shared.users.erase(loan.user);
      } else {
        all = false;
      }
    }
  }
  if (all) {
    pool.loan.reset();
  }
  set.settle_accounts();
  return all ? SharingResult::kOk : SharingResult::kOutOfMemory;
}

// Maps own handles of the heap at the addresses of a borrowed one. False: memory is short.
bool GraphMemory::exchange_borrowed(Heap& heap, const Heap::PlacedHandle& borrowed) {
  std::vector<StoredHandle> taken;
  PageRequest wanted;
  wanted.pages = borrowed.range.pages;
  wanted.fit = Fit::kExactly;
  wanted.may_create = true;
  if (parts_.store.take(wanted, taken) != TakeResult::kOk) {
    return false;
  }
  std::vector<HandleRange> fresh;
  fresh.reserve(taken.size());
  for (const StoredHandle& handle : taken) {
    fresh.push_back(handle.range);
  }
  try {
    if (heap.remap(borrowed.begin, {&borrowed.range, 1}, fresh) != Status::kOk) {
      parts_.store.put(taken);
      return false;
    }
  } catch (const InternalError&) {
    throw;
  } catch (...) {
    parts_.store.put(taken);
    find(heap.pool())->set->settle_accounts();
    throw;
  }
  heap.exchange_borrowed(borrowed.begin, fresh);
  return true;
}

}  // namespace ferro
