// Pools that join and leave a group, and the pages that are shared then.
#include "ferro/base/check.h"
#include "ferro/core/device/scratch_sharing.h"
#include "ferro/core/policy/scratch_folds.h"
#include "ferro/driver/error.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

namespace ferro {

SharingResult ScratchSharing::may_join(GroupId group, const PoolId& pool) const {
  const auto known = members_.find(pool);
  if (known == members_.end()) {
    return SharingResult::kOk;
  }
  const Member& member = known->second;
  if (member.group != group && sets_.at(member.group).members.size() > 1) {
    return SharingResult::kMember;
  }
  return member.is_running ? SharingResult::kCapturing : SharingResult::kOk;
}

SharingResult ScratchSharing::join(GroupId group, const PoolId& pool) {
  if (const SharingResult result = may_join(group, pool); result != SharingResult::kOk) {
    return result;
  }
  const auto known = members_.find(pool);
  const bool again = known != members_.end() && known->second.group == group;
  collect();
  if (!timeline_.wait_for_all()) {
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
    set.members.push_back(pool);
    settle_accounts(set);
    if (has_news(pool, known->second)) {
      share_what_is_not_carried(pool, known->second);
    }
  } else {
    add_member(group, pool, nullptr);
  }
  fold(set);
  return SharingResult::kOk;
}

// Of doubled ones.
std::set<PageHandle> ScratchSharing::staying_handles(const PoolId& pool) {
  std::set<PageHandle> free;
  if (doubled_.any_of(pool)) {
    for_each_arena(pool, [&](Heap& heap) { free.merge(ArenaScratch(heap).free_handles()); });
  }
  return doubled_.staying(pool, free);
}

// `written`: by its graphs; null: nobody knows, so all that there is, and the device has come to
// rest.
void ScratchSharing::add_member(GroupId group, const PoolId& pool, const AddressRanges* written) {
  Set& set = sets_[group];
  Member& member = members_[pool];
  member.group = group;
  const User user = next_user_++;
  // Without a hold there are no graphs, and nobody would say that they are gone.
  const bool has_graphs = pools_.use_count(pool) > 0;
  const bool is_tree = is_of_tree(pool);
  if (has_graphs && is_tree) {
    share_what_is_not_carried(pool, member);
  }
  const bool shares = has_graphs && !is_tree;
  const std::set<PageHandle> staying = shares ? staying_handles(pool) : std::set<PageHandle>{};
  for_each_arena(pool, [&](Heap& heap) {
    if (!shares) {
      return;
    }
    // What the pool has lent since is gone.
    const AddressRanges backed = ArenaScratch(heap).backed_ranges();
    member.written.unite(written != nullptr ? written->intersection(backed) : backed);
    ArenaScratch(heap).retire_free(member.written);
    add_uses(member, member.uses, heap, user, ArenaScratch(heap).alias_retired(staying),
             Folding::kMayFold);
  });
  if (shares) {
    for (ArenaScratch::Aliased& old : doubled_.take(pool, staying)) {
      Heap& heap = *old.block->span->heap();
      add_uses(member, member.uses, heap, next_user_++, {std::move(old)}, Folding::kMayNot);
      member.uses.back().doubles = user;
    }
  }
  update_count();
  set.members.push_back(pool);
  settle_accounts(set);
}

SharingResult ScratchSharing::leave(const PoolId& pool) {
  const auto found = members_.find(pool);
  if (found == members_.end()) {
    return SharingResult::kNoMember;
  }
  Member& member = found->second;
  Set& set = set_of(member);
  if (set.members.size() == 1) {
    // Whoever joins that group later has nothing in common with it.
    const GroupId lone = next_lone_++;
    sets_.insert({lone, std::move(sets_.extract(member.group).mapped())});
    member.group = lone;
    return SharingResult::kOk;
  }
  collect(News::kLeft);
  if (member.capturing || !timeline_.wait_for_all()) {
    return SharingResult::kCapturing;
  }
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
      Shared of_pool{shared.pages, {}, shared.only, shared.kept_by};
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

// The user with the most scratch keeps its handles, and the others get those where they fit. Who is
// a member is settled before that, so a driver that refuses only leaves the rest as it is. With
// `only` the mappings of this user change, and no others.
void ScratchSharing::fold(Set& set, std::optional<User> only) {
  struct Scratch {
    User user;
    std::size_t bytes = 0;
    std::vector<Use*> uses;
    std::vector<const Use*> doubled;
  };
  std::vector<Scratch> users;
  std::set<PageHandle> kept;
  for (const PoolId& pool : set.members) {
    Member& member = members_.at(pool);
    for (Use& use : member.uses) {
      if (!use.may_fold || (only && use.user != *only)) {
        continue;
      }
      auto user = std::ranges::find(users, use.user, &Scratch::user);
      if (user == users.end()) {
        user = users.insert(users.end(), Scratch{use.user, 0, {}, {}});
      }
      user->bytes += use.range.block->size;
      user->uses.push_back(&use);
    }
  }
  // What stays behind its addresses, whatever is folded.
  std::set<User> folding;
  for (const Scratch& user : users) {
    folding.insert(user.user);
  }
  for (const PoolId& pool : set.members) {
    for (const Use& use : members_.at(pool).uses) {
      const auto user =
          use.doubles ? std::ranges::find(users, *use.doubles, &Scratch::user) : users.end();
      if (user != users.end()) {
        user->doubled.push_back(&use);
        folding.insert(use.user);
      }
    }
  }
  for (const auto& [handle, shared] : set.handles) {
    if (!std::ranges::includes(folding, shared.users)) {
      kept.insert(handle);
    }
  }
  std::ranges::stable_sort(users, std::ranges::greater{}, &Scratch::bytes);
  try {
    for (Scratch& user : users) {
      for (const Use* use : user.doubled) {
        fold_doubled(set, *use, kept);
      }
      for (Use* use : user.uses) {
        fold_use(set, *use, kept);
      }
    }
  } catch (const DriverError&) {  // NOLINT(bugprone-empty-catch): less is shared
  }
  settle_accounts(set);
}

void ScratchSharing::fold_use(Set& set, Use& use, std::set<PageHandle>& kept) {
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
      // What died after its capture is not of one graph: the one that folds may write there too.
      if (!own.empty() && kept.contains(handle) && !shared.users.contains(use.user) &&
          !shared.only && !shared.kept_by) {
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

// Each handle of the use for one of as many pages, behind all addresses of its graphs.
void ScratchSharing::fold_doubled(Set& set, const Use& doubled, std::set<PageHandle>& kept) {
  for (std::size_t i = 0; i < doubled.range.handles.size(); ++i) {
    const HandleRange own = doubled.range.handles[i];
    if (!kept.insert(own.handle).second) {
      continue;
    }
    const auto other = std::ranges::find_if(set.handles, [&](const auto& entry) {
      const auto& [handle, shared] = entry;
      return handle != own.handle && kept.contains(handle) && shared.pages == own.pages &&
             !shared.users.contains(*doubled.doubles) && !shared.only && !shared.kept_by;
    });
    if (other == set.handles.end()) {
      continue;
    }
    const HandleRange fresh{other->first, own.pages};
    std::vector<Remap> remaps;
    for (Use& use : members_.at(doubled.heap->pool()).uses) {
      if (use.user != *doubled.doubles && use.doubles != doubled.doubles) {
        continue;
      }
      for (std::size_t at = 0; at < use.range.handles.size(); ++at) {
        if (use.range.handles[at].handle == own.handle) {
          remaps.push_back({&use, at, {own}, {fresh}});
        }
      }
    }
    if (remap_all(remaps) == Status::kOk) {
      for (const Remap& remap : remaps) {
        set.handles.at(own.handle).users.erase(remap.use->user);
        other->second.users.insert(remap.use->user);
      }
      if (set.handles.at(own.handle).users.empty()) {
        kept.erase(own.handle);
      }
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
    const Status status = ArenaScratch(*remap.use->heap).remap(begin, from, to);
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

}  // namespace ferro
