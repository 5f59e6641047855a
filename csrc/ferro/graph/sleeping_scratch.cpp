// Scratch that sleeps: its handles return to the driver, and its addresses stay.
#include "ferro/base/check.h"
#include "ferro/driver/error.h"
#include "ferro/graph/graph_memory.h"
#include "ferro/graph/graph_pool.h"

#include <algorithm>
#include <utility>

namespace ferro {

template <typename Visit>
void ScratchSet::for_each_use(Visit visit) {
  for (GraphPool* pool : members_) {
    std::ranges::for_each(pool->uses, visit);
    std::ranges::for_each(pool->gone, visit);
  }
}

// Replaces handles, here and in the uses.
void ScratchSet::rename(const Renamed& names) {
  for (const auto& [before, after] : names) {
    auto shared = handles_.extract(before);
    shared.key() = after;
    handles_.insert(std::move(shared));
  }
  for_each_use([&](ScratchUse& use) {
    for (HandleRange& range : use.range.handles) {
      if (const auto name = names.find(range.handle); name != names.end()) {
        range.handle = name->second;
      }
    }
  });
}

std::size_t ScratchSet::sleep() {
  // The driver's handles are addresses or small numbers.
  static std::uint64_t next_number = std::uint64_t{1} << 63;
  std::set<PageHandle> mapped;
  for_each_use([&](ScratchUse& use) {
    const bool is_held = std::ranges::all_of(use.range.handles, [&](const HandleRange& range) {
      return handles_.at(range.handle).held_pages() != 0;
    });
    if (is_held && !use.is_asleep && use.heap->unmap_alias(*use.range.block)) {
      use.is_asleep = true;
      is_asleep_ = true;
    }
    if (!use.is_asleep) {
      for (const HandleRange& range : use.range.handles) {
        mapped.insert(range.handle);
      }
    }
  });
  Renamed names;
  std::size_t pages = 0;
  for (auto& [handle, shared] : handles_) {
    if (shared.held_pages() != 0 && !mapped.contains(handle)) {
      const HandleRange range{handle, shared.pages};
      store_.release({&range, 1});
      pages += shared.pages;
      shared.is_asleep = true;
      names[handle] = PageHandle{next_number++};
    }
  }
  rename(names);
  settle_accounts();
  return pages;
}

bool ScratchSet::wake() {
  Renamed fresh;
  std::vector<const ScratchUse*> backed;
  const auto undo = [&] {
    for (const ScratchUse* use : backed) {
      FERRO_CHECK(use->heap->unmap_alias(*use->range.block),
                  "the driver refused to remove new mappings after a failed call");
    }
    for (const auto& [name, handle] : fresh) {
      const HandleRange range{handle, handles_.at(name).pages};
      store_.release({&range, 1});
    }
  };
  try {
    bool is_complete = true;
    for (const auto& [name, shared] : handles_) {
      PageHandle handle{};
      if (shared.is_asleep && is_complete) {
        is_complete = store_.create_one(shared.pages, &handle) == TakeResult::kOk;
        if (is_complete) {
          fresh[name] = handle;
        }
      }
    }
    for_each_use([&](ScratchUse& use) {
      if (!use.is_asleep || !is_complete) {
        return;
      }
      std::vector<HandleRange> handles = use.range.handles;
      for (HandleRange& range : handles) {
        const auto name = fresh.find(range.handle);
        range.handle = name != fresh.end() ? name->second : range.handle;
      }
      is_complete = use.heap->map_alias(*use.range.block, handles) == Status::kOk;
      if (is_complete) {
        backed.push_back(&use);
      }
    });
    if (!is_complete) {
      undo();
      return false;
    }
  } catch (const InternalError&) {
    throw;
  } catch (...) {
    undo();
    throw;
  }
  for (const auto& [name, handle] : fresh) {
    handles_.at(name).is_asleep = false;
  }
  rename(fresh);
  for_each_use([](ScratchUse& use) { use.is_asleep = false; });
  is_asleep_ = false;
  settle_accounts();
  return true;
}

std::size_t ScratchSet::asleep_pages() const {
  std::size_t pages = 0;
  for (const auto& [handle, shared] : handles_) {
    pages += shared.is_asleep ? shared.pages : 0;
  }
  return pages;
}

std::size_t GraphMemory::sleep_scratch(const SleepFilter& which, StayingBytes& staying) {
  std::size_t pages = 0;
  for (auto& [group, set] : sets_) {
    const bool is_wanted = std::ranges::all_of(
        set.members(), [&](const GraphPool* pool) { return which.has_scratch(pool->id); });
    if (!is_wanted || set.members().empty()) {
      continue;
    }
    const bool is_borrowed = std::ranges::any_of(
        set.members(), [](const GraphPool* pool) { return pool->loan.has_value(); });
    pages += is_borrowed ? 0 : set.sleep();
    staying.add(StayReason::kShared, set.held_pages() * parts_.store.page_bytes());
  }
  return pages;
}

AddressRanges GraphMemory::held_by_trees(const PoolId& id) {
  GraphPool* pool = find(id);
  return pool != nullptr && pool->is_of_tree() ? pool->carried.ranges() : AddressRanges{};
}

std::size_t GraphMemory::asleep_scratch(const SleepFilter& which) const {
  std::size_t pages = 0;
  for (const auto& [group, set] : sets_) {
    const bool is_wanted = std::ranges::any_of(
        set.members(), [&](const GraphPool* pool) { return which.has_scratch(pool->id); });
    pages += is_wanted ? set.asleep_pages() : 0;
  }
  return pages;
}

bool GraphMemory::wake_scratch(const SleepFilter& which) {
  std::vector<ScratchSet*> woken;
  const auto undo = [&] {
    for (ScratchSet* set : woken) {
      set->sleep();
    }
  };
  try {
    for (auto& [group, set] : sets_) {
      const bool is_wanted = std::ranges::any_of(
          set.members(), [&](const GraphPool* pool) { return which.has_scratch(pool->id); });
      if (!set.is_asleep() || !is_wanted) {
        continue;
      }
      if (!set.wake()) {
        undo();
        return false;
      }
      woken.push_back(&set);
    }
  } catch (const InternalError&) {
    throw;
  } catch (...) {
    undo();
    throw;
  }
  return true;
}

bool GraphMemory::is_scratch_asleep(const PoolId& id) const {
  const GraphPool* pool = find(id);
  return pool != nullptr && pool->is_member() && pool->set->is_asleep();
}

}  // namespace ferro
