#include "ferro/core/device/scratch_sharing.h"

#include "ferro/base/check.h"
#include "ferro/core/policy/scratch_folds.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

namespace ferro {

template <typename Function>
void ScratchSharing::for_each_arena(const PoolId& pool, Function function) {
  for (Heap* heap : pools_.heaps_of(pool)) {
    if (is_paged(heap->kind())) {
      function(static_cast<ArenaHeap&>(*heap));
    }
  }
}

void ScratchSharing::add_uses(Member& member, std::vector<Use>& to, ArenaHeap& heap, User user,
                              std::vector<ArenaHeap::Aliased> found, bool may_fold) {
  Set& set = set_of(member);
  for (ArenaHeap::Aliased& range : found) {
    for (const HandleRange& handle : range.handles) {
      Shared& shared = set.handles[handle.handle];
      shared.pages = handle.pages;
      shared.users.insert(user);
      if (!may_fold) {
        shared.only = heap.pool();
      }
    }
    to.push_back({user, &heap, std::move(range), may_fold});
  }
}

SharingResult ScratchSharing::join(GroupId group, const PoolId& pool) {
  const auto known = members_.find(pool);
  const bool again = known != members_.end() && known->second.group == group;
  if (known != members_.end() && !again && sets_.at(known->second.group).members.size() > 1) {
    return SharingResult::kMember;
  }
  if (known != members_.end() && known->second.is_running) {
    return SharingResult::kCapturing;
  }
  collect();
  if (!driver_.try_wait_for_device()) {
    return SharingResult::kCapturing;
  }
  Set& set = sets_[group];
  if (again) {
    fold(set);
    return SharingResult::kOk;
  }
  if (known != members_.end()) {
    // From a group of one.
    Set& before = sets_.at(known->second.group);
    pools_.count_bytes(pool, -static_cast<std::int64_t>(before.home_pages * store_.page_bytes()));
    set.handles.merge(before.handles);
    sets_.erase(known->second.group);
    known->second.group = group;
  } else {
    Member& member = members_[pool];
    member.group = group;
    const User user = next_user_++;
    for_each_arena(pool, [&](ArenaHeap& heap) {
      const AddressRanges free = heap.free_ranges();
      member.written.unite(free);
      heap.retire_free(free);
      add_uses(member, member.uses, heap, user, heap.alias_retired(), true);
    });
  }
  count_.store(members_.size(), std::memory_order_relaxed);
  set.members.push_back(pool);
  settle_accounts(set);
  fold(set);
  return SharingResult::kOk;
}

SharingResult ScratchSharing::leave(const PoolId& pool) {
  const auto found = members_.find(pool);
  if (found == members_.end()) {
    return SharingResult::kNoMember;
  }
  Member& member = found->second;
  Set& set = set_of(member);
  if (set.members.size() == 1) {
    return SharingResult::kOk;
  }
  if (member.capturing || !driver_.try_wait_for_device()) {
    return SharingResult::kCapturing;
  }
  collect();
  std::vector<Use*> uses;
  std::set<User> users;
  for (std::vector<Use>* list : {&member.uses, &member.gone}) {
    for (Use& use : *list) {
      uses.push_back(&use);
      users.insert(use.user);
    }
  }
  // One of its own for each handle that others have too, behind the same addresses.
  std::map<PageHandle, HandleRange> own;
  std::map<PageHandle, Shared> left;
  std::vector<HandleRange> created;
  const auto give_back = [&] { store_.put_cached(created); };
  try {
    for (const auto& [handle, shared] : set.handles) {
      Shared of_pool{shared.pages, {}, shared.only};
      std::ranges::set_intersection(shared.users, users,
                                    std::inserter(of_pool.users, of_pool.users.end()));
      if (of_pool.users.empty()) {
        continue;
      }
      PageHandle mine = handle;
      if (of_pool.users.size() != shared.users.size()) {
        TakeResult result = store_.create_one(shared.pages, &mine);
        if (result != TakeResult::kOk && store_.trim(shared.pages) != 0) {
          result = store_.create_one(shared.pages, &mine);
        }
        if (result != TakeResult::kOk) {
          give_back();
          return SharingResult::kOutOfMemory;
        }
        created.push_back({mine, shared.pages});
        own[handle] = created.back();
      }
      left[mine] = std::move(of_pool);
    }
    std::vector<Remap> remaps;
    for (Use* use : uses) {
      const std::vector<HandleRange>& handles = use->range.handles;
      for (std::size_t i = 0; i < handles.size(); ++i) {
        if (const auto mine = own.find(handles[i].handle); mine != own.end()) {
          remaps.push_back({use, i, {handles[i]}, {mine->second}});
        }
      }
    }
    if (remap_all(remaps) != Status::kOk) {
      give_back();
      return SharingResult::kOutOfMemory;
    }
  } catch (const DriverError&) {
    give_back();
    throw;
  }
  for (auto shared = set.handles.begin(); shared != set.handles.end();) {
    std::erase_if(shared->second.users, [&](User user) { return users.contains(user); });
    shared = shared->second.users.empty() ? set.handles.erase(shared) : std::next(shared);
  }
  std::erase(set.members, pool);
  member.group = next_lone_++;
  Set& lone = sets_[member.group];
  lone.handles = std::move(left);
  lone.members = {pool};
  settle_accounts(lone);
  settle_accounts(set);
  fold(set);
  return SharingResult::kOk;
}

GroupBytes ScratchSharing::bytes_of(GroupId group) const {
  GroupBytes bytes;
  const auto set = sets_.find(group);
  if (set == sets_.end()) {
    return bytes;
  }
  for (const auto& [handle, shared] : set->second.handles) {
    bytes.set += shared.pages * store_.page_bytes();
  }
  for (const PoolId& pool : set->second.members) {
    for (const Use& use : members_.at(pool).uses) {
      bytes.scratch += use.range.block->size;
    }
  }
  return bytes;
}

// Whole handles of what was free when the capture began, and may be written by graphs.
void ScratchSharing::share_what_died(const PoolId& pool, Member& member) {
  for_each_arena(pool, [&](ArenaHeap& heap) {
    heap.retire_free(member.written);
    add_uses(member, member.uses, heap, next_user_++, heap.alias_retired(), false);
  });
  settle_accounts(set_of(member));
}

SharingResult ScratchSharing::begin_capture(const PoolId& pool) {
  const auto found = members_.find(pool);
  if (found == members_.end()) {
    return SharingResult::kOk;
  }
  Member& member = found->second;
  if (member.capturing) {
    if (const SharingResult result = settle(pool, member); result != SharingResult::kOk) {
      return result;
    }
  }
  share_what_died(pool, member);
  member.capturing = next_user_++;
  member.is_running = true;
  member.given.clear();
  return SharingResult::kOk;
}

bool ScratchSharing::note(const PoolId& pool, Span& span, DevicePtr ptr, std::size_t bytes) {
  const auto found = members_.find(pool);
  if (found == members_.end() || !found->second.is_running) {
    return true;
  }
  if (found->second.written.meets(ptr, bytes) && is_paged(span.heap()->kind())) {
    auto& heap = static_cast<ArenaHeap&>(*span.heap());
    FERRO_CHECK(heap.free(span, ptr).error == FreeError::kNone);
    heap.retire_free(found->second.written);
    return false;
  }
  found->second.given.add(ptr, bytes);
  return true;
}

SharingResult ScratchSharing::end_capture(const PoolId& pool, Outcome outcome) {
  const auto found = members_.find(pool);
  if (found == members_.end() || !found->second.is_running) {
    return SharingResult::kOk;
  }
  Member& member = found->second;
  member.is_running = false;
  const bool succeeded = outcome == Outcome::kSucceeded;
  for_each_arena(pool, [&](ArenaHeap& heap) {
    // Without a graph nobody may write there, and nothing has.
    add_uses(member, succeeded ? member.uses : member.gone, heap, *member.capturing,
             heap.alias_borrowed(), true);
  });
  if (succeeded) {
    member.written.unite(member.given);
  }
  member.given.clear();
  const SharingResult result = settle(pool, member);
  if (succeeded) {
    for_each_arena(pool, [&](ArenaHeap& heap) { heap.retire_free(member.written); });
  } else {
    Set& set = set_of(member);
    remove_uses(set, member.gone);
    settle_accounts(set);
  }
  return result;
}

// What lives on borrowed handles gets handles that nobody else has.
SharingResult ScratchSharing::settle(const PoolId& pool, Member& member) {
  Set& set = set_of(member);
  const User user = *member.capturing;
  SharingResult result = SharingResult::kOk;
  for_each_arena(pool, [&](ArenaHeap& heap) {
    for (const ArenaHeap::Borrowed& borrowed : heap.borrowed()) {
      const HandleRange& range = borrowed.range;
      Shared& shared = set.handles.at(range.handle);
      if (shared.users.size() == 1) {
        set.handles.erase(range.handle);
        heap.keep_borrowed(borrowed.begin);
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
      for (const StoredHandle& handle : taken) {
        fresh.push_back(handle.range);
      }
      try {
        if (heap.remap(borrowed.begin, {&range, 1}, fresh) != Status::kOk) {
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
      heap.exchange_borrowed(borrowed.begin, fresh);
      shared.users.erase(user);
    }
  });
  if (result == SharingResult::kOk) {
    member.capturing.reset();
  }
  settle_accounts(set);
  return result;
}

void ScratchSharing::on_unheld(const PoolId& pool) {
  const auto found = members_.find(pool);
  if (found == members_.end() || found->second.is_running) {
    return;
  }
  Member& member = found->second;
  std::ranges::move(member.uses, std::back_inserter(member.gone));
  member.uses.clear();
  member.written.clear();
  for_each_arena(pool, [](ArenaHeap& heap) { heap.unretire_all(); });
}

SharingResult ScratchSharing::settle_again(const PoolId& pool) {
  const auto found = members_.find(pool);
  return found != members_.end() && found->second.capturing ? settle(pool, found->second)
                                                            : SharingResult::kOk;
}

void ScratchSharing::let_go_of_all() {
  for (const auto& [pool, member] : members_) {
    on_unheld(pool);
  }
}

void ScratchSharing::collect() {
  const bool any = std::ranges::any_of(
      members_, [](const auto& entry) { return !entry.second.gone.empty(); });
  if (!any || !driver_.try_wait_for_device()) {
    return;
  }
  for (auto& [pool, member] : members_) {
    Set& set = set_of(member);
    remove_uses(set, member.gone);
    settle_accounts(set);
  }
}

// False: the driver refused some, which stay.
bool ScratchSharing::remove_uses(Set& set, std::vector<Use>& uses) {
  std::erase_if(uses, [&](Use& use) {
    if (!use.heap->remove_alias(use.range.block)) {
      return false;
    }
    for (const HandleRange& range : use.range.handles) {
      set.handles.at(range.handle).users.erase(use.user);
    }
    return true;
  });
  return uses.empty();
}

// The user with the most scratch keeps its handles, and the others get those where they fit.
void ScratchSharing::fold(Set& set) {
  struct Scratch {
    User user;
    std::size_t bytes = 0;
    std::vector<std::pair<PoolId, Use*>> uses;
  };
  std::vector<Scratch> users;
  std::set<PageHandle> kept;
  for (const PoolId& pool : set.members) {
    Member& member = members_.at(pool);
    for (Use& use : member.uses) {
      if (!use.may_fold) {
        continue;
      }
      auto user = std::ranges::find(users, use.user, &Scratch::user);
      if (user == users.end()) {
        user = users.insert(users.end(), Scratch{use.user, 0, {}});
      }
      user->bytes += use.range.block->size;
      user->uses.emplace_back(pool, &use);
    }
  }
  // What stays behind its addresses, whatever is folded.
  std::set<User> folding;
  for (const Scratch& user : users) {
    folding.insert(user.user);
  }
  for (const auto& [handle, shared] : set.handles) {
    if (!std::ranges::includes(folding, shared.users)) {
      kept.insert(handle);
    }
  }
  std::ranges::stable_sort(users, std::ranges::greater{}, &Scratch::bytes);
  for (Scratch& user : users) {
    for (auto& [pool, use] : user.uses) {
      fold_use(set, pool, *use, kept);
    }
  }
  settle_accounts(set);
}

void ScratchSharing::fold_use(Set& set, const PoolId& pool, Use& use,
                              std::set<PageHandle>& kept) {
  std::vector<HandleRange>& handles = use.range.handles;
  for (std::size_t first = 0; first < handles.size();) {
    std::vector<std::size_t> own;
    while (first + own.size() < handles.size() &&
           !kept.contains(handles[first + own.size()].handle)) {
      own.push_back(handles[first + own.size()].pages);
    }
    std::vector<HandleRange> available;
    std::vector<std::size_t> sizes;
    for (const auto& [handle, shared] : set.handles) {
      if (!own.empty() && kept.contains(handle) && !shared.users.contains(use.user) &&
          (!shared.only || *shared.only == pool)) {
        available.push_back({handle, shared.pages});
        sizes.push_back(shared.pages);
      }
    }
    const FoldPlan plan = plan_fold(own, sizes);
    Remap remap{&use, first, {}, {}};
    const auto begin = handles.begin() + static_cast<std::ptrdiff_t>(first);
    remap.old.assign(begin, begin + static_cast<std::ptrdiff_t>(plan.replaced));
    for (const std::size_t i : plan.taken) {
      remap.fresh.push_back(available[i]);
    }
    std::size_t next = first + own.size() + 1;
    if (plan.replaced != 0 && remap_all({&remap, 1}) == Status::kOk) {
      for (const HandleRange& range : remap.old) {
        set.handles.at(range.handle).users.erase(use.user);
      }
      for (const HandleRange& range : remap.fresh) {
        set.handles.at(range.handle).users.insert(use.user);
      }
      next += remap.fresh.size() - remap.old.size();
    }
    for (; first < std::min(next, handles.size()); ++first) {
      kept.insert(handles[first].handle);
    }
  }
}

DevicePtr ScratchSharing::address_of_handle(const Use& use, std::size_t index) const {
  const std::span<const HandleRange> handles = use.range.handles;
  return use.range.block->ptr + pages_in(handles.first(index)) * store_.page_bytes();
}

// All or nothing.
Status ScratchSharing::remap_all(std::span<const Remap> remaps) {
  std::size_t done = 0;
  const auto change = [this](const Remap& remap, const std::vector<HandleRange>& from,
                             const std::vector<HandleRange>& to) {
    const DevicePtr begin = address_of_handle(*remap.use, remap.first);
    const Status status = remap.use->heap->remap(begin, from, to);
    if (status == Status::kOk) {
      std::vector<HandleRange>& handles = remap.use->range.handles;
      const auto at = handles.begin() + static_cast<std::ptrdiff_t>(remap.first);
      const auto next = handles.erase(at, at + static_cast<std::ptrdiff_t>(from.size()));
      handles.insert(next, to.begin(), to.end());
    }
    return status;
  };
  const auto undo = [&] {
    bool undone = true;
    for (; done > 0; --done) {
      const Remap& remap = remaps[done - 1];
      try {
        undone = change(remap, remap.fresh, remap.old) == Status::kOk && undone;
      } catch (const DriverError&) {
        undone = false;
      }
    }
    FERRO_CHECK(undone, "the driver refused to map the pages of a graph again");
  };
  try {
    for (const Remap& remap : remaps) {
      if (const Status status = change(remap, remap.old, remap.fresh); status != Status::kOk) {
        undo();
        return status;
      }
      ++done;
    }
  } catch (const InternalError&) {
    throw;
  } catch (...) {
    undo();
    throw;
  }
  return Status::kOk;
}

// Handles without a user go to the store, and the first member that has any takes the others into
// account.
void ScratchSharing::settle_accounts(Set& set) {
  trim(set);
  std::size_t pages = 0;
  for (const auto& [handle, shared] : set.handles) {
    pages += shared.pages;
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
      store_.put_cached({&range, 1});
      shared = set.handles.erase(shared);
    } else {
      ++shared;
    }
  }
}

bool ScratchSharing::lends_to(const PoolId& pool) const {
  const auto found = members_.find(pool);
  return found != members_.end() && found->second.is_running;
}

std::vector<HandleRange> ScratchSharing::lend(const PoolId& pool, std::size_t pages,
                                              bool exactly) {
  const Member& member = members_.at(pool);
  std::vector<HandleRange> available;
  std::vector<std::size_t> sizes;
  Set& set = set_of(member);
  for (const auto& [handle, shared] : set.handles) {
    if (!shared.users.contains(*member.capturing) && (!shared.only || *shared.only == pool)) {
      available.push_back({handle, shared.pages});
      sizes.push_back(shared.pages);
    }
  }
  std::vector<HandleRange> lent;
  for (const std::size_t i :
       plan_lending(pages, sizes, exactly ? LastHandle::kFits : LastHandle::kMayBeLarger)) {
    lent.push_back(available[i]);
    set.handles.at(available[i].handle).users.insert(*member.capturing);
  }
  return lent;
}

void ScratchSharing::take_back(const PoolId& pool, std::span<const HandleRange> handles) {
  const Member& member = members_.at(pool);
  for (const HandleRange& range : handles) {
    set_of(member).handles.at(range.handle).users.erase(*member.capturing);
  }
}

void ScratchSharing::adopt(const PoolId& pool, std::span<const HandleRange> handles) {
  const Member& member = members_.at(pool);
  Set& set = set_of(member);
  for (const HandleRange& range : handles) {
    set.handles[range.handle] = {range.pages, {*member.capturing}, std::nullopt};
  }
  settle_accounts(set);
}

std::size_t ScratchSharing::pages_of(const PoolId& pool) const {
  const auto found = members_.find(pool);
  if (found == members_.end()) {
    return 0;
  }
  const Set& set = sets_.at(found->second.group);
  return set.home == pool ? set.home_pages : 0;
}

std::size_t ScratchSharing::pages() const {
  std::size_t pages = 0;
  for (const auto& [group, set] : sets_) {
    pages += set.home_pages;
  }
  return pages;
}

void ScratchSharing::check_invariants() const {
  std::map<PageHandle, std::set<User>> users;
  for (const auto& [pool, member] : members_) {
    const auto count = [&](const HandleRange& range, User user) {
      const Set& set = sets_.at(member.group);
      FERRO_CHECK(set.handles.contains(range.handle) &&
                  set.handles.at(range.handle).pages == range.pages);
      FERRO_CHECK(users[range.handle].insert(user).second);
    };
    for (const std::vector<Use>* uses : {&member.uses, &member.gone}) {
      for (const Use& use : *uses) {
        FERRO_CHECK(use.range.block->state == BlockState::kAliased);
        FERRO_CHECK(pages_in(use.range.handles) * store_.page_bytes() == use.range.block->size);
        for (const HandleRange& range : use.range.handles) {
          count(range, use.user);
        }
      }
    }
    for (Heap* heap : pools_.heaps_of(pool)) {
      if (is_paged(heap->kind())) {
        for (const auto& borrowed : static_cast<ArenaHeap*>(heap)->borrowed()) {
          FERRO_CHECK(member.capturing.has_value());
          count(borrowed.range, *member.capturing);
        }
      }
    }
  }
  for (const auto& [group, set] : sets_) {
    std::size_t pages = 0;
    for (const auto& [handle, shared] : set.handles) {
      FERRO_CHECK(!shared.users.empty() && shared.users == users[handle]);
      pages += shared.pages;
    }
    FERRO_CHECK(pages == set.home_pages && (pages == 0 || set.home.has_value()));
  }
}

}  // namespace ferro
