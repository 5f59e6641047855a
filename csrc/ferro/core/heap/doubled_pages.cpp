#include "ferro/core/heap/doubled_pages.h"

#include "ferro/base/check.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace ferro {

std::set<PageHandle> DoubledPages::staying(const PoolId& pool,
                                           const std::set<PageHandle>& free) const {
  std::set<PageHandle> staying;
  const auto found = by_pool_.find(pool);
  if (found == by_pool_.end()) {
    return staying;
  }
  // One that moved several times, each time with others, keeps all of these.
  for (bool changed = true; changed;) {
    changed = false;
    for (const Moved& moved : found->second) {
      const std::vector<HandleRange>& handles = moved.from.handles;
      const bool stays = std::ranges::any_of(handles, [&](const HandleRange& range) {
        return staying.contains(range.handle) || !free.contains(range.handle);
      });
      for (const HandleRange& range : handles) {
        changed |= stays && staying.insert(range.handle).second;
      }
    }
  }
  return staying;
}

std::vector<std::size_t> DoubledPages::pages_of_others(const PoolId& pool,
                                                       const std::set<PageHandle>& staying) const {
  std::map<PageHandle, std::size_t> others;
  if (const auto found = by_pool_.find(pool); found != by_pool_.end()) {
    for (const Moved& moved : found->second) {
      for (const HandleRange& range : moved.from.handles) {
        if (!staying.contains(range.handle)) {
          others[range.handle] = range.pages;
        }
      }
    }
  }
  std::vector<std::size_t> pages;
  pages.reserve(others.size());
  for (const auto& [handle, count] : others) {
    pages.push_back(count);
  }
  return pages;
}

std::vector<ArenaScratch::Aliased> DoubledPages::take(const PoolId& pool,
                                                      const std::set<PageHandle>& staying) {
  std::vector<ArenaScratch::Aliased> taken;
  const auto found = by_pool_.find(pool);
  if (found == by_pool_.end()) {
    return taken;
  }
  std::erase_if(found->second, [&](Moved& moved) {
    if (staying.contains(moved.from.handles.front().handle)) {
      return false;
    }
    taken.push_back(std::move(moved.from));
    return true;
  });
  if (found->second.empty()) {
    by_pool_.erase(found);
  }
  return taken;
}

AddressRanges DoubledPages::follow(const PoolId& pool, AddressRanges ranges) const {
  if (const auto found = by_pool_.find(pool); found != by_pool_.end()) {
    for (const Moved& moved : found->second) {
      const Block& block = *moved.from.block;
      AddressRanges now;
      ranges.for_each_inside(block.ptr, block.size, [&](DevicePtr ptr, std::size_t bytes) {
        now.add(moved.to + distance(block.ptr, ptr), bytes);
      });
      ranges.remove(block.ptr, block.size);
      ranges.unite(now);
    }
  }
  return ranges;
}

void DoubledPages::let_go(const PoolId& pool) {
  if (const auto found = by_pool_.find(pool); found != by_pool_.end()) {
    std::ranges::move(found->second, std::back_inserter(gone_));
    by_pool_.erase(found);
  }
}

void DoubledPages::let_go_of_all() {
  while (!by_pool_.empty()) {
    let_go(PoolId(by_pool_.begin()->first));
  }
}

void DoubledPages::remove_gone() {
  std::erase_if(gone_, [](const Moved& moved) {
    Block* block = moved.from.block;
    return ArenaScratch(*block->span->heap()).remove_alias(block);
  });
}

void DoubledPages::check_invariants(
    std::size_t page_bytes, const std::function<bool(const PoolId&, PageHandle)>& is_own) const {
  for (const auto& [pool, all] : by_pool_) {
    for (const Moved& moved : all) {
      FERRO_CHECK(moved.from.block->state == BlockState::kAliased);
      FERRO_CHECK(pages_in(moved.from.handles) * page_bytes == moved.from.block->size);
      for (const HandleRange& range : moved.from.handles) {
        FERRO_CHECK(is_own(pool, range.handle));
      }
    }
  }
}

}  // namespace ferro
