#include "ferro/graph/moved_pages.h"

#include "ferro/base/check.h"

#include <algorithm>
#include <map>

namespace ferro {

std::set<PageHandle> MovedPages::staying(const std::set<PageHandle>& free) const {
  std::set<PageHandle> staying;
  // A handle that moved several times, each time with others, keeps all of these.
  for (bool changed = true; changed;) {
    changed = false;
    for (const Move& move : moves_) {
      const std::vector<HandleRange>& handles = move.from.handles;
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

std::vector<std::size_t> MovedPages::pages_except(const std::set<PageHandle>& staying) const {
  std::map<PageHandle, std::size_t> others;
  for (const Move& move : moves_) {
    for (const HandleRange& range : move.from.handles) {
      if (!staying.contains(range.handle)) {
        others[range.handle] = range.pages;
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

std::vector<AliasedBlock> MovedPages::take_except(const std::set<PageHandle>& staying) {
  std::vector<AliasedBlock> taken;
  std::erase_if(moves_, [&](Move& move) {
    if (staying.contains(move.from.handles.front().handle)) {
      return false;
    }
    taken.push_back(std::move(move.from));
    return true;
  });
  return taken;
}

AddressRanges MovedPages::follow(AddressRanges ranges) const {
  for (const Move& move : moves_) {
    const Block& block = *move.from.block;
    AddressRanges now;
    ranges.for_each_inside(block.ptr, block.size, [&](DevicePtr ptr, std::size_t bytes) {
      now.add(move.to + distance(block.ptr, ptr), bytes);
    });
    ranges.remove(block.ptr, block.size);
    ranges.unite(now);
  }
  return ranges;
}

void MovedPages::check_invariants(std::size_t page_bytes, const std::set<PageHandle>& own) const {
  for (const Move& move : moves_) {
    FERRO_CHECK(move.from.block->state == BlockState::kAliased);
    FERRO_CHECK(pages_in(move.from.handles) * page_bytes == move.from.block->size);
    for (const HandleRange& range : move.from.handles) {
      FERRO_CHECK(own.contains(range.handle));
    }
  }
}

}  // namespace ferro
