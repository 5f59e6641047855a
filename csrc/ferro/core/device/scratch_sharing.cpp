// Captures into members: what they are lent, and what becomes of it.
#include "ferro/core/device/scratch_sharing.h"

#include "ferro/base/check.h"
#include "ferro/core/policy/scratch_folds.h"
#include "ferro/driver/error.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace ferro {

void ScratchSharing::add_uses(Member& member, std::vector<Use>& to, Heap& heap, User user,
                              std::vector<ArenaScratch::Aliased> found, Folding folding) {
  Set& set = set_of(member);
  for (ArenaScratch::Aliased& range : found) {
    for (const HandleRange& handle : range.handles) {
      Shared& shared = set.handles[handle.handle];
      shared.pages = handle.pages;
      shared.users.insert(user);
      shared.kept_by.reset();
      if (folding == Folding::kNorServeOtherPools) {
        shared.only = heap.pool();
      }
    }
    to.push_back({user, &heap, std::move(range), folding == Folding::kMayFold});
  }
}

// Whole handles of what was free when the capture began, and may be written by graphs.
void ScratchSharing::share_what_died(const PoolId& pool, Member& member) {
  for_each_arena(pool, [&](Heap& heap) {
    ArenaScratch(heap).retire_free(member.written);
    add_uses(member, member.uses, heap, next_user_++, ArenaScratch(heap).alias_retired(),
             Folding::kNorServeOtherPools);
  });
  settle_accounts(set_of(member));
}

SharingResult ScratchSharing::begin_capture(const PoolId& pool) {
  carried_[pool].begin([&] { return live_ranges_of(pools_.heaps_of(pool)); });
  if (is_of_tree(pool)) {
    return SharingResult::kOk;
  }
  auto found = members_.find(pool);
  if (found == members_.end()) {
    if (order_ == GraphOrder::kCaptured) {
      return SharingResult::kOk;
    }
    lifetimes_[pool].begin();
    update_count();
    if (captured_.erase(pool) == 0) {
      given_first_[pool].clear();
      return SharingResult::kOk;
    }
    const AddressRanges written = doubled_.follow(pool, std::move(given_first_.at(pool)));
    given_first_.erase(pool);
    add_member(next_lone_++, pool, &written);
    found = members_.find(pool);
  }
  lifetimes_[pool].begin();
  Member& member = found->second;
  if (member.capturing) {
    if (const SharingResult result = settle(pool, member); result != SharingResult::kOk) {
      return result;
    }
  }
  share_what_died(pool, member);
  member.capturing = next_user_++;
  member.users = {*member.capturing};
  member.is_running = true;
  member.given.clear();
  return SharingResult::kOk;
}

std::optional<Lifetime> ScratchSharing::next_lifetime(const PoolId& pool) const {
  return lends_to(pool) ? std::optional(lifetimes_.at(pool).next()) : std::nullopt;
}

// Nothing where no pages were given.
void ScratchSharing::end_first_capture(const PoolId& pool) {
  bool any = false;
  for_each_arena(pool, [&](Heap& heap) { any |= heap.view().backed_bytes != 0; });
  if (any) {
    captured_.insert(pool);
    learn_lifetimes(pool);
  }
}

void ScratchSharing::learn_lifetimes(const PoolId& pool) {
  std::set<DevicePtr> live;
  for_each_arena(pool, [&](Heap& heap) {
    for (const BlockView& block : live_blocks_of(heap)) {
      live.insert(block.ptr);
    }
  });
  lifetimes_[pool].learn([&](DevicePtr ptr) { return live.contains(ptr); });
}

bool ScratchSharing::note(const PoolId& pool, Span& span, DevicePtr ptr) {
  const auto found = members_.find(pool);
  if (found == members_.end()) {
    const auto first = given_first_.find(pool);
    const auto known = lifetimes_.find(pool);
    if (first != given_first_.end() && known != lifetimes_.end()) {
      known->second.note(ptr);
      if (const std::optional<BlockView> block = span.heap()->live_block_at(span, ptr)) {
        first->second.add(ptr, block->size);
      }
    }
    return true;
  }
  if (!found->second.capturing) {
    return true;
  }
  Member& member = found->second;
  const std::optional<BlockView> block = span.heap()->live_block_at(span, ptr);
  const std::size_t bytes = block ? block->size : 0;
  Heap& heap = *span.heap();
  AddressRanges refused;
  if (!member.is_running && ArenaScratch(heap).is_borrowed(span, ptr, bytes)) {
    refused.add(ptr, bytes);  // a capture let it go since, whose pages others use
  } else if (member.is_running && member.written.meets(ptr, bytes)) {
    refused = member.written;
  }
  if (refused.bytes() != 0) {
    ArenaScratch(heap).undo_allocation(span, ptr);
    ArenaScratch(heap).retire_free(refused);
    return false;
  }
  if (member.is_running) {
    member.given.add(ptr, bytes);
    lifetimes_[pool].note(ptr);
  }
  return true;
}

SharingResult ScratchSharing::end_capture(const PoolId& pool, Outcome outcome) {
  const bool succeeded = outcome == Outcome::kSucceeded;
  if (const auto carried = carried_.find(pool); carried != carried_.end()) {
    carried->second.end(succeeded, [&] { return live_ranges_of(pools_.heaps_of(pool)); });
  }
  const auto found = members_.find(pool);
  if (found == members_.end()) {
    if (succeeded && given_first_.contains(pool) && !captured_.contains(pool)) {
      end_first_capture(pool);
    }
    return SharingResult::kOk;
  }
  if (!found->second.is_running) {
    return SharingResult::kOk;
  }
  Member& member = found->second;
  member.is_running = false;
  // Without a graph nobody may write there, and nothing has.
  std::vector<Use> unused;
  // What a graph has twice would not be its own where others come behind some of it.
  const Folding folding = member.users.size() == 1 ? Folding::kMayFold : Folding::kMayNot;
  for_each_arena(pool, [&](Heap& heap) {
    add_uses(member, member.uses, heap, *member.capturing, ArenaScratch(heap).alias_borrowed(),
             folding);
  });
  if (!succeeded) {
    // Not of std::ranges, whose result clang 14 cannot compile.
    const auto first = std::partition(member.uses.begin(), member.uses.end(), [&](const Use& use) {
      return !member.users.contains(use.user);
    });
    unused.assign(std::make_move_iterator(first), std::make_move_iterator(member.uses.end()));
    member.uses.erase(first, member.uses.end());
  }
  remove_uses(set_of(member), unused);
  std::ranges::move(unused, std::back_inserter(member.gone));
  settle_accounts(set_of(member));
  if (succeeded) {
    member.written.unite(member.given);
  }
  member.given.clear();
  member.died_on.clear();
  if (succeeded) {
    learn_lifetimes(pool);
  }
  const SharingResult result = settle(pool, member);
  if (succeeded) {
    for_each_arena(pool, [&](Heap& heap) { ArenaScratch(heap).retire_free(member.written); });
  }
  return result;
}

// What lives on borrowed handles gets handles that nobody else has.
SharingResult ScratchSharing::settle(const PoolId& pool, Member& member) {
  Set& set = set_of(member);
  const User user = *member.capturing;
  SharingResult result = SharingResult::kOk;
  for_each_arena(pool, [&](Heap& heap) {
    for (const ArenaScratch::Handle& borrowed : ArenaScratch(heap).borrowed()) {
      const HandleRange& range = borrowed.range;
      Shared& shared = set.handles.at(range.handle);
      if (std::ranges::includes(member.users, shared.users)) {
        // The graph's alone; what it let go there it writes before.
        shared.users.erase(user);
        shared.kept_by = pool;
        if (!shared.users.empty()) {
          member.written.add(borrowed.begin, range.pages * store_.page_bytes());
        }
        ArenaScratch(heap).keep_borrowed(borrowed.begin);
        continue;
      }
      std::vector<StoredHandle> taken;
      PageRequest wanted;
      wanted.pages = range.pages;
      wanted.fit = Fit::kExactly;
      wanted.may_create = true;
      if (store_.take(wanted, taken) != TakeResult::kOk) {
        result = SharingResult::kOutOfMemory;
        continue;
      }
      std::vector<HandleRange> fresh;
      fresh.reserve(taken.size());
      for (const StoredHandle& handle : taken) {
        fresh.push_back(handle.range);
      }
      try {
        if (ArenaScratch(heap).remap(borrowed.begin, {&range, 1}, fresh) != Status::kOk) {
          store_.put(taken);
          result = SharingResult::kOutOfMemory;
          continue;
        }
      } catch (const InternalError&) {
        throw;
      } catch (...) {
        store_.put(taken);
        settle_accounts(set);
        throw;
      }
      ArenaScratch(heap).exchange_borrowed(borrowed.begin, fresh);
      shared.users.erase(user);
    }
  });
  if (result == SharingResult::kOk) {
    end_users(member);
  }
  settle_accounts(set);
  return result;
}

void ScratchSharing::on_unheld(const PoolId& pool) {
  if (is_of_tree(pool)) {
    carried_.at(pool).forget();
  } else {
    carried_.erase(pool);
  }
  doubled_.let_go(pool);
  captured_.erase(pool);
  given_first_.erase(pool);
  lifetimes_.erase(pool);
  update_count();
  const auto found = members_.find(pool);
  if (found == members_.end() || found->second.is_running) {
    return;
  }
  Member& member = found->second;
  std::ranges::move(member.uses, std::back_inserter(member.gone));
  member.uses.clear();
  member.written.clear();
  for_each_arena(pool, [](Heap& heap) { ArenaScratch(heap).unretire_all(); });
}

SharingResult ScratchSharing::settle_again(const PoolId& pool, Outcome outcome) {
  const auto found = members_.find(pool);
  if (found == members_.end() || !found->second.capturing) {
    return SharingResult::kOk;
  }
  Member& member = found->second;
  std::vector<Use>& died = outcome == Outcome::kSucceeded ? member.uses : member.gone;
  for_each_arena(pool, [&](Heap& heap) {
    add_uses(member, died, heap, *member.capturing, ArenaScratch(heap).alias_borrowed(),
             Folding::kMayNot);
  });
  const SharingResult result = settle(pool, member);
  if (result == SharingResult::kOk) {
    for_each_arena(pool, [&](Heap& heap) { ArenaScratch(heap).retire_free(member.written); });
  }
  return result;
}

void ScratchSharing::let_go_of_all() {
  for (const auto& [pool, member] : members_) {
    on_unheld(pool);
  }
  doubled_.let_go_of_all();
}

bool ScratchSharing::keep_written(const PoolId& pool) {
  const auto found = members_.find(pool);
  if (found == members_.end()) {
    return true;
  }
  const Member& member = found->second;
  if (member.capturing || keeps_aliased(pool)) {
    return false;
  }
  for_each_arena(pool, [&](Heap& heap) { ArenaScratch(heap).retire_free(member.written); });
  return true;
}

bool ScratchSharing::keeps_aliased(const PoolId& pool) const {
  if (doubled_.any_of(pool)) {
    return true;
  }
  const auto found = members_.find(pool);
  return found != members_.end() &&
         std::ranges::any_of(sets_.at(found->second.group).handles,
                             [&](const auto& entry) { return entry.second.kept_by == pool; });
}

void ScratchSharing::take_unsettled(const PoolId& pool, Member& member) {
  bool any_lives = false;
  for_each_arena(pool, [&](Heap& heap) {
    add_uses(member, member.gone, heap, *member.capturing, ArenaScratch(heap).alias_borrowed(),
             Folding::kMayNot);
    any_lives = any_lives || !ArenaScratch(heap).borrowed().empty();
  });
  if (!any_lives) {
    end_users(member);
  }
}

void ScratchSharing::end_users(Member& member) {
  member.capturing.reset();
  member.users.clear();
}

void ScratchSharing::collect() { collect(News::kShared); }

void ScratchSharing::collect(News news) {
  for (auto& [pool, member] : members_) {
    if (member.capturing && !member.is_running && pool != ending_) {
      take_unsettled(pool, member);
    }
  }
  const bool any = std::ranges::any_of(members_, [&](const auto& entry) {
    return !entry.second.gone.empty() ||
           (news == News::kShared && has_news(entry.first, entry.second));
  });
  if ((!any && !doubled_.any_gone()) || !timeline_.wait_for_all()) {
    return;
  }
  doubled_.remove_gone();
  for (auto& [pool, member] : members_) {
    Set& set = set_of(member);
    remove_uses(set, member.gone);
    settle_accounts(set);
    if (news == News::kShared && has_news(pool, member)) {
      fold(set, share_what_is_not_carried(pool, member));
    }
  }
}

// False: the driver refused some, which stay.
bool ScratchSharing::remove_uses(Set& set, std::vector<Use>& uses) {
  std::erase_if(uses, [&](Use& use) {
    if (!ArenaScratch(*use.heap).remove_alias(use.range.block)) {
      return false;
    }
    for (const HandleRange& range : use.range.handles) {
      set.handles.at(range.handle).users.erase(use.user);
    }
    return true;
  });
  return uses.empty();
}

// Handles without a user go to the store, and the first member that has any takes the others into
// account.
void ScratchSharing::settle_accounts(Set& set) {
  trim(set);
  std::size_t pages = 0;
  for (const auto& [handle, shared] : set.handles) {
    pages += shared.held_pages();
  }
  std::optional<PoolId> home;
  for (const PoolId& pool : set.members) {
    const Member& member = members_.at(pool);
    if (!home && (!member.uses.empty() || !member.gone.empty() || member.capturing)) {
      home = pool;
    }
  }
  const auto bytes = [this](std::size_t count) {
    return static_cast<std::int64_t>(count * store_.page_bytes());
  };
  if (set.home && set.home != home) {
    pools_.count_bytes(*set.home, -bytes(std::exchange(set.home_pages, 0)));
  }
  set.home = home;
  if (home && pages != set.home_pages) {
    pools_.count_bytes(*home, bytes(pages) - bytes(std::exchange(set.home_pages, pages)));
  }
}

void ScratchSharing::trim(Set& set) {
  for (auto shared = set.handles.begin(); shared != set.handles.end();) {
    if (shared->second.users.empty()) {
      const HandleRange range{shared->first, shared->second.pages};
      if (shared->second.held_pages() != 0) {
        store_.put_cached({&range, 1});
      }
      shared = set.handles.erase(shared);
    } else {
      ++shared;
    }
  }
}

}  // namespace ferro
