#include "ferro/graph/scratch_set.h"

#include "ferro/graph/graph_pool.h"

#include <numeric>
#include <utility>

namespace ferro {

std::size_t ScratchSet::held_pages() const {
  return std::accumulate(
      handles_.begin(), handles_.end(), std::size_t{0},
      [](std::size_t pages, const auto& entry) { return pages + entry.second.held_pages(); });
}

void ScratchSet::add_member(GraphPool& pool, Handles handles) {
  pool.set = this;
  members_.push_back(&pool);
  handles_.merge(handles);
  settle_accounts();
}

void ScratchSet::take_over(ScratchSet& lone) {
  GraphPool& pool = *std::exchange(lone.members_, {}).front();
  lone.home_ = nullptr;
  pools_.count_bytes(pool.id, -static_cast<std::int64_t>(lone.home_pages_ * store_.page_bytes()));
  add_member(pool, std::exchange(lone.handles_, {}));
}

void ScratchSet::add_user(std::span<const HandleRange> handles, ScratchUser user,
                          const std::optional<PoolId>& only) {
  for (const HandleRange& range : handles) {
    Shared& shared = handles_[range.handle];
    shared.pages = range.pages;
    shared.users.insert(user);
    shared.kept_by.reset();
    if (only) {
      shared.only = only;
    }
  }
}

void ScratchSet::remove_user(std::span<const HandleRange> handles, ScratchUser user) {
  for (const HandleRange& range : handles) {
    handles_.at(range.handle).users.erase(user);
  }
}

std::vector<HandleRange> ScratchSet::choose(
    ScratchUser user, std::size_t pages, LastHandle last,
    const std::function<bool(PageHandle, const Shared&)>& accepts) const {
  std::vector<HandleRange> available;
  std::vector<std::size_t> sizes;
  for (const auto& [handle, shared] : handles_) {
    if (!shared.users.contains(user) && !shared.kept_by && accepts(handle, shared)) {
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

void ScratchSet::remove_uses(std::vector<ScratchUse>& uses) {
  std::erase_if(uses, [&](const ScratchUse& use) {
    const bool removed = use.heap->remove_alias(use.range.block);
    if (removed) {
      remove_user(use.range.handles, use.user);
    }
    return removed;
  });
}

void ScratchSet::settle_accounts() {
  std::erase_if(handles_, [this](const auto& entry) {
    const auto& [handle, shared] = entry;
    if (!shared.users.empty()) {
      return false;
    }
    if (const HandleRange range{handle, shared.pages}; shared.held_pages() != 0) {
      store_.put_cached({&range, 1});
    }
    return true;
  });
  const auto first = std::ranges::find_if(members_, [](const GraphPool* pool) {
    return !pool->uses.empty() || !pool->gone.empty() || pool->loan;
  });
  GraphPool* home = first != members_.end() ? *first : nullptr;
  const auto bytes = [this](std::size_t pages) {
    return static_cast<std::int64_t>(pages * store_.page_bytes());
  };
  if (home_ != nullptr && home_ != home) {
    pools_.count_bytes(home_->id, -bytes(std::exchange(home_pages_, 0)));
  }
  home_ = home;
  const std::size_t pages = held_pages();
  if (home_ != nullptr && pages != home_pages_) {
    pools_.count_bytes(home_->id, bytes(pages) - bytes(std::exchange(home_pages_, pages)));
  }
}

}  // namespace ferro
