// What a capture into a member is lent, also of what died in it, and what it keeps; what pools share
// whose captures borrow nothing; and which pages a pool takes into account.
#include "ferro/base/check.h"
#include "ferro/core/device/scratch_sharing.h"
#include "ferro/core/policy/scratch_folds.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <utility>

namespace ferro {

bool ScratchSharing::lends_to(const PoolId& pool) const {
  const auto found = members_.find(pool);
  return found != members_.end() && found->second.is_running;
}

// Its capture goes on as another user of what it had, which serves it again.
void ScratchSharing::share_what_died_on(StreamId stream, const PoolId& pool, Member& member,
                                        std::size_t pages, Died which) {
  const auto accepts = [&](PageHandle handle) {
    return which == Died::kAny ||
           std::ranges::includes(member.users, set_of(member).handles.at(handle).users);
  };
  std::vector<Use> borrowed;
  std::vector<Use> own;
  for_each_arena(pool, [&](Heap& heap) {
    if (heap.stream() != stream) {
      return;
    }
    ArenaScratch(heap).retire_free(member.written);
    add_uses(member, own, heap, next_user_++, ArenaScratch(heap).alias_retired(),
             Folding::kNorServeOtherPools);
  });
  for (const Use& use : own) {
    pages -= which == Died::kAny ? std::min(pages, pages_in(use.range.handles)) : 0;
  }
  for_each_arena(pool, [&](Heap& heap) {
    if (heap.stream() == stream && pages != 0) {
      const User user = next_user_++;
      add_uses(member, borrowed, heap, user, ArenaScratch(heap).alias_some_borrowed(pages, accepts),
               Folding::kMayNot);
    }
    for (Use& use : borrowed) {
      if (use.heap == &heap) {
        pages -= std::min(pages, pages_in(use.range.handles));
      }
    }
  });
  Set& set = set_of(member);
  for (const Use& use : borrowed) {
    member.users.insert(use.user);
    for (const HandleRange& range : use.range.handles) {
      set.handles.at(range.handle).users.erase(*member.capturing);
    }
  }
  for (std::vector<Use>* uses : {&own, &borrowed}) {
    for (Use& use : *uses) {
      for (const HandleRange& range : use.range.handles) {
        member.died_on[range.handle] = stream;
      }
      member.uses.push_back(std::move(use));
    }
  }
  settle_accounts(set);
}

std::vector<HandleRange> ScratchSharing::choose(
    const Member& member, std::size_t pages, LastHandle last,
    const std::function<bool(PageHandle, const Shared&)>& accepts) {
  std::vector<HandleRange> available;
  std::vector<std::size_t> sizes;
  for (const auto& [handle, shared] : set_of(member).handles) {
    if (!shared.users.contains(*member.capturing) && !shared.kept_by && accepts(handle, shared)) {
      available.push_back({handle, shared.pages});
      sizes.push_back(shared.pages);
    }
  }
  std::vector<HandleRange> chosen;
  for (const std::size_t i : plan_lending(pages, sizes, last)) {
    chosen.push_back(available[i]);
  }
  return chosen;
}

std::vector<HandleRange> ScratchSharing::lend(const PoolId& pool, StreamId stream,
                                              std::size_t pages, bool exactly) {
  Member& member = members_.at(pool);
  const auto chosen = [&](LastHandle last) {
    return choose(member, pages, last, [&](PageHandle handle, const Shared& shared) {
      const auto died = member.died_on.find(handle);
      return (!shared.only || *shared.only == pool) &&
             (died == member.died_on.end() || died->second == stream);
    });
  };
  std::vector<HandleRange> lent = chosen(LastHandle::kFits);
  if (pages_in(lent) < pages) {
    share_what_died_on(stream, pool, member, pages - pages_in(lent), Died::kAny);
    lent = chosen(exactly ? LastHandle::kFits : LastHandle::kMayBeLarger);
  }
  for (const HandleRange& range : lent) {
    set_of(member).handles.at(range.handle).users.insert(*member.capturing);
  }
  return lent;
}

std::vector<HandleRange> ScratchSharing::let_keep(const PoolId& pool, StreamId stream,
                                                  std::size_t pages) {
  Member& member = members_.at(pool);
  const auto chosen = [&] {
    return choose(member, pages, LastHandle::kFits, [&](PageHandle handle, const Shared& shared) {
      const auto died = member.died_on.find(handle);
      return died != member.died_on.end() && died->second == stream &&
             std::ranges::includes(member.users, shared.users);
    });
  };
  std::vector<HandleRange> kept = chosen();
  if (pages_in(kept) < pages) {
    share_what_died_on(stream, pool, member, pages - pages_in(kept), Died::kOfThisGraph);
    kept = chosen();
  }
  for (const HandleRange& range : kept) {
    set_of(member).handles.at(range.handle).kept_by = pool;
  }
  settle_accounts(set_of(member));
  return kept;
}

void ScratchSharing::on_kept(const PoolId& pool, DevicePtr begin, std::size_t bytes) {
  if (bytes != 0) {
    members_.at(pool).given.add(begin, bytes);
  }
}

void ScratchSharing::take_back_kept(const PoolId& pool, std::span<const HandleRange> handles) {
  Set& set = set_of(members_.at(pool));
  for (const HandleRange& range : handles) {
    set.handles.at(range.handle).kept_by.reset();
  }
  settle_accounts(set);
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
    set.handles[range.handle] = {range.pages, {*member.capturing}, std::nullopt, std::nullopt};
  }
  settle_accounts(set);
}

// Trees rely on what is free at which addresses.
bool ScratchSharing::moves_within(const PoolId& pool) const {
  const auto found = carried_.find(pool);
  return found != carried_.end() && found->second.is_captured_into() &&
         !found->second.is_of_tree() && !members_.contains(pool);
}

void ScratchSharing::on_moved(const PoolId& pool, Block* block, std::vector<HandleRange> handles,
                              DevicePtr to) {
  doubled_.add(pool, {block, std::move(handles)}, to);
}

GroupBytes ScratchSharing::bytes_of(GroupId group) const {
  GroupBytes bytes;
  const auto set = sets_.find(group);
  if (set == sets_.end()) {
    return bytes;
  }
  for (const auto& [handle, shared] : set->second.handles) {
    bytes.set += shared.held_pages() * store_.page_bytes();
  }
  for (const PoolId& pool : set->second.members) {
    for (const Use& use : members_.at(pool).uses) {
      bytes.scratch += use.range.block->size;
    }
  }
  return bytes;
}

GroupBytes ScratchSharing::bytes_if_joined(std::span<const PoolId> pools) {
  std::vector<HandleRuns> users;
  std::vector<std::vector<std::size_t>> doubled;
  std::size_t pages = 0;
  for (const PoolId& pool : pools) {
    HandleRuns& runs = users.emplace_back();
    std::vector<std::size_t>& twice = doubled.emplace_back();
    if (const auto found = members_.find(pool); found != members_.end()) {
      // It has left a group; others may not join.
      const Set& set = set_of(found->second);
      if (set.members.size() == 1) {
        for (const auto& [handle, shared] : set.handles) {
          runs.push_back({shared.kept_by ? 0 : shared.pages});
        }
      }
    } else {
      const bool is_tree = is_of_tree(pool);
      const AddressRanges carried = is_tree ? carried_.at(pool).ranges() : AddressRanges{};
      const std::set<PageHandle> all_doubled = doubled_.handles_of(pool);
      if (!is_tree) {
        twice = doubled_.pages_of_others(pool, staying_handles(pool));
      }
      for_each_arena(pool, [&](Heap& heap) {
        std::ranges::move(ArenaScratch(heap).runs_of_free_handles(carried, all_doubled),
                          std::back_inserter(runs));
      });
    }
    pages = std::accumulate(twice.begin(), twice.end(), pages);
    for (const std::vector<std::size_t>& run : runs) {
      pages = std::accumulate(run.begin(), run.end(), pages);
    }
  }
  const std::size_t folded = pages_when_folded(users, std::move(doubled));
  return {folded * store_.page_bytes(), pages * store_.page_bytes()};
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
  std::map<GroupId, std::map<PageHandle, std::set<User>>> users;
  for (const auto& [pool, member] : members_) {
    const Set& set = sets_.at(member.group);
    const auto count = [&, group = member.group](const HandleRange& range, User user) {
      FERRO_CHECK(set.handles.contains(range.handle) &&
                  set.handles.at(range.handle).pages == range.pages);
      FERRO_CHECK(users[group][range.handle].insert(user).second);
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
      for (const auto& borrowed : ArenaScratch(*heap).borrowed()) {
        FERRO_CHECK(member.capturing.has_value());
        count(borrowed.range, *member.capturing);
      }
    }
  }
  check_doubled();
  for (const auto& [group, set] : sets_) {
    std::size_t pages = 0;
    for (const auto& [handle, shared] : set.handles) {
      FERRO_CHECK(!shared.users.empty() && shared.users == users[group][handle]);
      pages += shared.held_pages();
    }
    FERRO_CHECK(pages == set.home_pages && (pages == 0 || set.home.has_value()));
  }
}

void ScratchSharing::check_doubled() const {
  std::map<PoolId, std::set<PageHandle>> own;
  doubled_.check_invariants(store_.page_bytes(), [&](const PoolId& pool, PageHandle handle) {
    if (own.try_emplace(pool).second) {
      for (Heap* heap : pools_.heaps_of(pool)) {
        own[pool].merge(ArenaScratch(*heap).own_handles());
      }
    }
    const auto member = members_.find(pool);
    if (own[pool].contains(handle) || member == members_.end()) {
      return own[pool].contains(handle);
    }
    const Set& set = sets_.at(member->second.group);
    return set.handles.contains(handle) && set.handles.at(handle).only == pool;
  });
}

AddressRanges live_ranges_of(std::span<Heap* const> heaps) {
  AddressRanges live;
  for (Heap* heap : heaps) {
    for (const BlockView& block : live_blocks_of(*heap)) {
      live.add(block.ptr, block.size);
    }
  }
  return live;
}

AddressRanges ScratchSharing::backed_ranges_of(const PoolId& pool) {
  AddressRanges backed;
  for_each_arena(pool, [&](Heap& heap) { backed.unite(ArenaScratch(heap).backed_ranges()); });
  return backed;
}

bool ScratchSharing::expect_checkpoints(const PoolId& pool) {
  CarriedMemory& carried = carried_[pool];
  if (carried.is_of_tree()) {
    return true;
  }
  const auto member = members_.find(pool);
  if (member != members_.end() && member->second.capturing) {
    return false;
  }
  // What a member has shared is a part of the scratch of its graphs, of which the rest may be here.
  if (const bool is_known = carried.expect_checkpoints(); !is_known || member != members_.end()) {
    carried.settle(backed_ranges_of(pool));
  }
  lifetimes_.erase(pool);
  given_first_.erase(pool);
  update_count();
  return true;
}

// Pools that nobody declared, and such as have left, are left as they are.
bool ScratchSharing::has_news(const PoolId& pool, const Member& member) const {
  return member.group < kFirstLone && is_of_tree(pool) && carried_.at(pool).has_news();
}

// Once the device has come to rest, as the program's own work in the pool is ordered behind nobody.
ScratchSharing::User ScratchSharing::share_what_is_not_carried(const PoolId& pool, Member& member) {
  CarriedMemory& carried = carried_.at(pool);
  const User user = next_user_++;
  const std::set<PageHandle> doubled = doubled_.handles_of(pool);
  for_each_arena(pool, [&](Heap& heap) {
    add_uses(member, member.uses, heap, user,
             ArenaScratch(heap).alias_free_outside(carried.ranges(), doubled), Folding::kMayFold);
  });
  carried.settle(backed_ranges_of(pool));
  settle_accounts(set_of(member));
  return user;
}

}  // namespace ferro
