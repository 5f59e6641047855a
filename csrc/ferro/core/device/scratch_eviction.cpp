#include "ferro/core/device/scratch_eviction.h"

#include "ferro/base/check.h"
#include "ferro/core/policy/evictions.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace ferro {

template <typename Accepts, typename Function>
void ScratchEviction::for_each_run(const Use& use, Accepts accepts, Function function) const {
  const std::span<const HandleRange> handles = use.range.handles;
  DevicePtr begin = use.range.block->ptr;
  DevicePtr next = begin;
  std::size_t first = 0;
  for (std::size_t i = 0; i <= handles.size(); ++i) {
    const bool goes_on = i < handles.size() && accepts(next, handles[i].handle);
    if (!goes_on && i > first) {
      function(begin, handles.subspan(first, i - first));
    }
    next = i < handles.size() ? next + handles[i].pages * sharing_.store_.page_bytes() : next;
    if (!goes_on) {
      begin = next;
      first = i + 1;
    }
  }
}

void ScratchEviction::set_lends(GroupId group, bool lends) {
  if (lends) {
    lending_.insert(group);
  } else {
    lending_.erase(group);
  }
}

void ScratchEviction::set_incomplete(GroupId group, bool incomplete) {
  if (incomplete) {
    incomplete_.insert(group);
  } else {
    incomplete_.erase(group);
  }
  any_incomplete_.store(!incomplete_.empty(), std::memory_order_relaxed);
}

ScratchEviction::Set* ScratchEviction::find(GroupId group) const {
  const auto set = sharing_.sets_.find(group);
  return set == sharing_.sets_.end() ? nullptr : &set->second;
}

std::optional<ScratchEviction::GroupId> ScratchEviction::group_of(const PoolId& pool) const {
  const auto member = sharing_.members_.find(pool);
  return member == sharing_.members_.end() ? std::nullopt : std::optional(member->second.group);
}

std::size_t ScratchEviction::idle_pages(const Set& set) const {
  std::size_t pages = 0;
  for (const PoolId& pool : set.members) {
    if (sharing_.members_.at(pool).capturing) {
      return 0;
    }
  }
  for (const auto& [handle, shared] : set.handles) {
    pages += may_leave(shared) ? shared.pages : 0;
  }
  return pages;
}

std::size_t ScratchEviction::evicted_pages(GroupId group) const {
  std::size_t pages = 0;
  if (const Set* set = find(group)) {
    for (const auto& [handle, shared] : set->handles) {
      pages += shared.evicted ? shared.pages : 0;
    }
  }
  return pages;
}

std::size_t ScratchEviction::pages_not_lent() const {
  std::size_t pages = 0;
  for (const auto& [group, set] : sharing_.sets_) {
    const bool is_declared = group < ScratchSharing::kFirstLone;
    pages += is_declared && !lending_.contains(group) ? idle_pages(set) : 0;
  }
  return pages;
}

std::size_t ScratchEviction::evict(std::size_t wanted, const std::vector<StreamId>& known,
                                   GroupId but) {
  std::vector<GroupId> groups;
  std::vector<std::size_t> pages;
  for (const GroupId group : lending_) {
    const Set* set = group == but ? nullptr : find(group);
    if (const std::size_t idle = set == nullptr ? 0 : idle_pages(*set); idle != 0) {
      groups.push_back(group);
      pages.push_back(idle);
    }
  }
  const std::vector<std::size_t> chosen = plan_evictions(wanted, pages);
  if (chosen.empty()) {
    return 0;
  }
  const LaunchGate::Closed closed(gate_, longest_launch_);
  if (!closed.is_closed() || !sharing_.driver_.try_wait_for_device(known)) {
    return 0;
  }
  std::size_t evicted = 0;
  for (const std::size_t i : chosen) {
    set_incomplete(groups[i], true);
    evicted += evict_all(*find(groups[i]));
  }
  return evicted;
}

std::size_t ScratchEviction::evict_all(Set& set) {
  std::set<PageHandle> mapped;  // still
  for (const PoolId& pool : set.members) {
    ScratchSharing::Member& member = sharing_.members_.at(pool);
    for (std::vector<Use>* uses : {&member.uses, &member.gone}) {
      for (Use& use : *uses) {
        ArenaScratch scratch(*use.heap);
        const auto leaves = [&](DevicePtr begin, PageHandle handle) {
          return may_leave(set.handles.at(handle)) && !scratch.is_absent(begin);
        };
        for_each_run(use, leaves, [&](DevicePtr begin, std::span<const HandleRange> run) {
          const std::size_t bytes = pages_in(run) * sharing_.store_.page_bytes();
          if (!scratch.make_absent(begin, bytes, "lent")) {
            for (const HandleRange& range : run) {
              mapped.insert(range.handle);
            }
          }
        });
      }
    }
  }
  std::vector<HandleRange> evicted;
  for (auto& [handle, shared] : set.handles) {
    if (may_leave(shared) && !mapped.contains(handle)) {
      evicted.push_back({handle, shared.pages});
      shared.evicted = true;
    }
  }
  sharing_.store_.put_cached(evicted);
  sharing_.settle_accounts(set);
  return pages_in(evicted);
}

SharingResult ScratchEviction::refill(GroupId group) {
  if (!is_incomplete(group)) {
    return SharingResult::kOk;
  }
  if (Set* set = find(group)) {
    drop_absent(*set);
    if (const SharingResult result = take_fresh(*set); result != SharingResult::kOk) {
      return result;
    }
    if (const SharingResult result = map_absent(*set); result != SharingResult::kOk) {
      return result;
    }
  }
  set_incomplete(group, false);
  return SharingResult::kOk;
}

// Of graphs that are gone: it takes no wait, as nothing is behind it.
void ScratchEviction::drop_absent(Set& set) {
  for (const PoolId& pool : set.members) {
    std::vector<Use>& gone = sharing_.members_.at(pool).gone;
    const auto first = std::partition(gone.begin(), gone.end(), [](const Use& use) {
      return !ArenaScratch(*use.heap).is_all_absent(*use.range.block);
    });
    std::vector<Use> absent(std::make_move_iterator(first), std::make_move_iterator(gone.end()));
    gone.erase(first, gone.end());
    FERRO_CHECK(sharing_.remove_uses(set, absent));
  }
  sharing_.settle_accounts(set);
}

// Handles that the set owns take the place of the evicted ones.
SharingResult ScratchEviction::take_fresh(Set& set) {
  std::vector<HandleRange> evicted;
  for (const auto& [handle, shared] : set.handles) {
    if (shared.evicted) {
      evicted.push_back({handle, shared.pages});
    }
  }
  if (evicted.empty()) {
    return SharingResult::kOk;
  }
  // Asking first is cheaper than to create what goes back when the last one is refused.
  if (pages_in(evicted) > sharing_.store_.single_pages_at_hand()) {
    return SharingResult::kOutOfMemory;
  }
  // What is large finds a handle of the store of its size before small ones are cut out of it.
  std::ranges::stable_sort(evicted, std::ranges::greater{}, &HandleRange::pages);
  std::vector<StoredHandle> taken;
  std::map<PageHandle, std::vector<HandleRange>> fresh;
  TakeResult result = TakeResult::kOk;
  try {
    for (const HandleRange& old : evicted) {
      PageRequest wanted;
      wanted.pages = old.pages;
      wanted.fit = Fit::kExactly;
      wanted.may_create = true;
      const std::size_t before = taken.size();
      result = sharing_.store_.take(wanted, taken);
      if (result != TakeResult::kOk) {
        break;
      }
      for (std::size_t i = before; i < taken.size(); ++i) {
        fresh[old.handle].push_back(taken[i].range);
      }
    }
  } catch (...) {
    sharing_.store_.put(taken);
    throw;
  }
  if (result != TakeResult::kOk) {
    sharing_.store_.put(taken);
    return SharingResult::kOutOfMemory;
  }
  std::map<PageHandle, ScratchSharing::Shared> handles;
  for (auto& [handle, shared] : set.handles) {
    if (!shared.evicted) {
      handles[handle] = std::move(shared);
      continue;
    }
    for (const HandleRange& range : fresh.at(handle)) {
      handles[range.handle] = {range.pages, shared.users, shared.only, std::nullopt};
    }
  }
  set.handles = std::move(handles);
  for (const PoolId& pool : set.members) {
    ScratchSharing::Member& member = sharing_.members_.at(pool);
    for (std::vector<Use>* uses : {&member.uses, &member.gone}) {
      for (Use& use : *uses) {
        std::vector<HandleRange> now;
        for (const HandleRange& range : use.range.handles) {
          const auto found = fresh.find(range.handle);
          const std::span<const HandleRange> behind =
              found == fresh.end() ? std::span(&range, 1) : std::span(found->second);
          now.insert(now.end(), behind.begin(), behind.end());
        }
        use.range.handles = std::move(now);
      }
    }
  }
  sharing_.settle_accounts(set);
  return SharingResult::kOk;
}

SharingResult ScratchEviction::map_absent(Set& set) {
  Status status = Status::kOk;
  for (const PoolId& pool : set.members) {
    for (Use& use : sharing_.members_.at(pool).uses) {
      ArenaScratch scratch(*use.heap);
      const auto is_absent = [&](DevicePtr begin, PageHandle) { return scratch.is_absent(begin); };
      for_each_run(use, is_absent, [&](DevicePtr begin, std::span<const HandleRange> run) {
        status = status == Status::kOk ? scratch.make_present(begin, run) : status;
      });
    }
  }
  return status == Status::kOk ? SharingResult::kOk : SharingResult::kOutOfMemory;
}

void ScratchEviction::check_invariants() const {
  FERRO_CHECK(is_any_incomplete() == !incomplete_.empty());
  for (const auto& [group, set] : sharing_.sets_) {
    for (const auto& [handle, shared] : set.handles) {
      FERRO_CHECK(!shared.evicted || (is_incomplete(group) && !shared.kept_by));
    }
    for (const PoolId& pool : set.members) {
      for (const Use& use : sharing_.members_.at(pool).uses) {
        DevicePtr begin = use.range.block->ptr;
        for (const HandleRange& range : use.range.handles) {
          FERRO_CHECK(ArenaScratch(*use.heap).is_absent(begin)
                          ? is_incomplete(group)
                          : !set.handles.at(range.handle).evicted);
          begin = begin + range.pages * sharing_.store_.page_bytes();
        }
      }
    }
  }
}

}  // namespace ferro
