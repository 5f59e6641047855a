#include "ferro/core/heap/doubled_pages.h"

#include "ferro/base/check.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace ferro {

std::set<PageHandle> DoubledPages::handles_of(const PoolId& pool) const {
  std::set<PageHandle> handles;
  if (const auto found = by_pool_.find(pool); found != by_pool_.end()) {
    for (const Moved& moved : found->second) {
      for (const HandleRange& range : moved.from.handles) {
        handles.insert(range.handle);
      }
    }
  }
  return handles;
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
    return ArenaScratch(static_cast<ArenaHeap&>(*block->span->heap())).remove_alias(block);
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
