// Which handles of a set are behind the scratch of its users.
#include "ferro/base/check.h"
#include "ferro/driver/error.h"
#include "ferro/graph/graph_pool.h"
#include "ferro/graph/scratch_set.h"

#include <iterator>
#include <utility>

namespace ferro {
namespace {

struct Remap {
  ScratchUse* use;
  std::size_t first;  // of its handles
  std::vector<HandleRange> old;
  std::vector<HandleRange> fresh;
};

Status change(const Remap& remap, std::size_t page_bytes, const std::vector<HandleRange>& from,
              const std::vector<HandleRange>& to) {
  std::vector<HandleRange>& handles = remap.use->range.handles;
  const std::size_t before = pages_in(std::span(handles).first(remap.first)) * page_bytes;
  const DevicePtr begin = remap.use->range.block->ptr + before;
  const Status status = remap.use->heap->remap(begin, from, to);
  if (status == Status::kOk) {
    const auto at = handles.begin() + static_cast<std::ptrdiff_t>(remap.first);
    const auto next = handles.erase(at, at + static_cast<std::ptrdiff_t>(from.size()));
    handles.insert(next, to.begin(), to.end());
  }
  return status;
}

// All or nothing.
Status remap_all(std::span<const Remap> remaps, std::size_t page_bytes) {
  std::size_t done = 0;
  const auto undo = [&] {
    bool undone = true;
    for (; done > 0; --done) {
      const Remap& remap = remaps[done - 1];
      try {
        undone = change(remap, page_bytes, remap.fresh, remap.old) == Status::kOk && undone;
      } catch (const DriverError&) {
        undone = false;
      }
    }
    FERRO_CHECK(undone, "the driver refused to map the pages of a graph again");
  };
  try {
    for (const Remap& remap : remaps) {
      if (const Status status = change(remap, page_bytes, remap.old, remap.fresh);
          status != Status::kOk) {
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

}  // namespace

SharingResult ScratchSet::separate(GraphPool& pool, Handles* left) {
  std::vector<ScratchUse*> uses;
  std::set<ScratchUser> users;
  for (std::vector<ScratchUse>* list : {&pool.uses, &pool.gone}) {
    for (ScratchUse& use : *list) {
      uses.push_back(&use);
      users.insert(use.user);
    }
  }
  std::map<PageHandle, HandleRange> own;
  std::vector<HandleRange> created;
  Handles separated;
  const auto give_back = [&] { store_.put_cached(created); };
  try {
    for (const auto& [handle, shared] : handles_) {
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
      separated[mine] = std::move(of_pool);
    }
    std::vector<Remap> remaps;
    for (ScratchUse* use : uses) {
      const std::vector<HandleRange>& handles = use->range.handles;
      for (std::size_t i = 0; i < handles.size(); ++i) {
        if (const auto mine = own.find(handles[i].handle); mine != own.end()) {
          remaps.push_back({use, i, {handles[i]}, {mine->second}});
        }
      }
    }
    if (remap_all(remaps, store_.page_bytes()) != Status::kOk) {
      give_back();
      return SharingResult::kOutOfMemory;
    }
  } catch (const DriverError&) {
    give_back();
    throw;
  }
  for (auto& [handle, shared] : handles_) {
    std::erase_if(shared.users, [&](ScratchUser user) { return users.contains(user); });
  }
  std::erase_if(handles_, [](const auto& entry) { return entry.second.users.empty(); });
  std::erase(members_, &pool);
  *left = std::move(separated);
  return SharingResult::kOk;
}

void ScratchSet::fold(std::optional<ScratchUser> only) {
  struct Scratch {
    ScratchUser user;
    GraphPool* pool;
    std::size_t bytes = 0;
    std::vector<ScratchUse*> uses;
    std::vector<const ScratchUse*> doubled;
  };
  std::vector<Scratch> users;
  for (GraphPool* pool : members_) {
    for (ScratchUse& use : pool->uses) {
      if (!use.may_fold || (only && use.user != *only)) {
        continue;
      }
      auto user = std::ranges::find(users, use.user, &Scratch::user);
      if (user == users.end()) {
        user = users.insert(users.end(), Scratch{use.user, pool, 0, {}, {}});
      }
      user->bytes += use.range.block->size;
      user->uses.push_back(&use);
    }
  }
  std::set<ScratchUser> folding;
  for (const Scratch& user : users) {
    folding.insert(user.user);
  }
  for (const GraphPool* pool : members_) {
    for (const ScratchUse& use : pool->uses) {
      const auto user =
          use.doubles ? std::ranges::find(users, *use.doubles, &Scratch::user) : users.end();
      if (user != users.end()) {
        user->doubled.push_back(&use);
        folding.insert(use.user);
      }
    }
  }
  // What stays behind its addresses, whatever is folded.
  std::set<PageHandle> kept;
  for (const auto& [handle, shared] : handles_) {
    if (!shared.is_used_by(folding)) {
      kept.insert(handle);
    }
  }
  std::ranges::stable_sort(users, std::ranges::greater{}, &Scratch::bytes);
  try {
    for (Scratch& user : users) {
      for (const ScratchUse* use : user.doubled) {
        fold_doubled(*user.pool, *use, kept);
      }
      for (ScratchUse* use : user.uses) {
        fold_use(*use, kept);
      }
    }
  } catch (const DriverError&) {  // NOLINT(bugprone-empty-catch): less is shared
  }
  settle_accounts();
}

void ScratchSet::fold_use(ScratchUse& use, std::set<PageHandle>& kept) {
  std::vector<HandleRange>& handles = use.range.handles;
  for (std::size_t first = 0; first < handles.size();) {
    std::vector<std::size_t> own;
    while (first + own.size() < handles.size() &&
           !kept.contains(handles[first + own.size()].handle)) {
      own.push_back(handles[first + own.size()].pages);
    }
    std::vector<HandleRange> available;
    std::vector<std::size_t> sizes;
    for (const auto& [handle, shared] : handles_) {
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
    if (plan.replaced != 0 && remap_all({&remap, 1}, store_.page_bytes()) == Status::kOk) {
      remove_user(remap.old, use.user);
      for (const HandleRange& range : remap.fresh) {
        handles_.at(range.handle).users.insert(use.user);
      }
      next += remap.fresh.size() - remap.old.size();
    }
    for (; first < std::min(next, handles.size()); ++first) {
      kept.insert(handles[first].handle);
    }
  }
}

// Each handle of the use for one of as many pages, behind all addresses of its graphs.
void ScratchSet::fold_doubled(GraphPool& pool, const ScratchUse& doubled,
                              std::set<PageHandle>& kept) {
  for (std::size_t i = 0; i < doubled.range.handles.size(); ++i) {
    const HandleRange own = doubled.range.handles[i];
    if (!kept.insert(own.handle).second) {
      continue;
    }
    const auto other = std::ranges::find_if(handles_, [&](const auto& entry) {
      const auto& [handle, shared] = entry;
      return handle != own.handle && kept.contains(handle) && shared.pages == own.pages &&
             !shared.users.contains(*doubled.doubles) && !shared.only && !shared.kept_by;
    });
    if (other == handles_.end()) {
      continue;
    }
    const HandleRange fresh{other->first, own.pages};
    std::vector<Remap> remaps;
    for (ScratchUse& use : pool.uses) {
      if (use.user != *doubled.doubles && use.doubles != doubled.doubles) {
        continue;
      }
      for (std::size_t at = 0; at < use.range.handles.size(); ++at) {
        if (use.range.handles[at].handle == own.handle) {
          remaps.push_back({&use, at, {own}, {fresh}});
        }
      }
    }
    if (remap_all(remaps, store_.page_bytes()) == Status::kOk) {
      for (const Remap& remap : remaps) {
        handles_.at(own.handle).users.erase(remap.use->user);
        other->second.users.insert(remap.use->user);
      }
      if (handles_.at(own.handle).users.empty()) {
        kept.erase(own.handle);
      }
    }
  }
}

}  // namespace ferro
