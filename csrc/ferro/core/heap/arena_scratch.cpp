// Scratch of graphs in one arena.
#include "ferro/core/heap/heap.h"
#include "ferro/driver/error.h"

#include <algorithm>
#include <utility>

namespace ferro {

bool Heap::is_all_free(const Span& span, DevicePtr begin, DevicePtr end) {
  for (const Block* block = span.block_around(begin); block != nullptr && block->ptr < end;
       block = block->next) {
    if (!block->is_free() && block->state != BlockState::kRetired) {
      return false;
    }
  }
  return true;
}

// If the driver's query fails, blocks stay pending until the next collection.
void Heap::collect_quietly() {
  try {
    collect_locked();
  } catch (const DriverError&) {  // NOLINT(bugprone-empty-catch): see above
  }
}

std::vector<Heap::PlacedHandle> Heap::borrowed() {
  const HeapLock lock(mutex_);
  std::vector<PlacedHandle> found;
  if (tiling_.scratch().borrowed_pages == 0) {
    return found;
  }
  for (const auto& [base, span] : tiling_.spans()) {
    for (std::size_t slot = 0; slot < span->page_slots();) {
      if (span->page(slot) == kNoPage) {
        ++slot;
        continue;
      }
      const std::size_t end = span->handle_end(slot);
      if (span->is_borrowed(slot)) {
        found.push_back({base + slot * page_bytes_, {span->page(slot), end - slot}});
      }
      slot = end;
    }
  }
  return found;
}

bool Heap::is_borrowed(const Span& span, DevicePtr ptr, std::size_t bytes) {
  const HeapLock lock(mutex_);
  const std::size_t last = span.page_slot(ptr + (bytes - 1));
  for (std::size_t slot = span.page_slot(ptr); slot <= last; slot = span.handle_end(slot)) {
    if (span.is_borrowed(slot)) {
      return true;
    }
  }
  return false;
}

// In order of address. A run lies within one block.
std::vector<Heap::BorrowedRun> Heap::free_borrowed_runs(std::span<const PlacedHandle> borrowed) {
  collect_quietly();
  std::vector<BorrowedRun> runs;
  for (std::size_t i = 0; i < borrowed.size();) {
    const DevicePtr begin = borrowed[i].begin;
    const Block* block = tiling_.span_around(begin)->block_around(begin);
    DevicePtr end = begin;
    BorrowedRun run{begin, {}};
    while (i < borrowed.size() && (run.handles.empty() || borrowed[i].begin == end)) {
      const DevicePtr next = borrowed[i].begin + borrowed[i].range.pages * page_bytes_;
      if (!block->is_free() || next > block->end()) {
        break;
      }
      run.handles.push_back(borrowed[i].range);
      end = next;
      ++i;
    }
    if (run.handles.empty()) {
      ++i;
    } else {
      runs.push_back(std::move(run));
    }
  }
  return runs;
}

AliasedBlock Heap::alias_run(BorrowedRun run) {
  Span& span = *tiling_.span_around(run.begin);
  const PageRun range{run.begin, pages_in(run.handles) * page_bytes_};
  Block* block = tiling_.cut(span.block_around(range.begin), range.begin, range.bytes);
  block->state = BlockState::kAliased;
  tiling_.unback(span, range);
  return {block, std::move(run.handles)};
}

std::vector<AliasedBlock> Heap::alias_borrowed() {
  const std::vector<PlacedHandle> handles = borrowed();
  const HeapLock lock(mutex_);
  std::vector<AliasedBlock> found;
  for (BorrowedRun& run : free_borrowed_runs(handles)) {
    found.push_back(alias_run(std::move(run)));
  }
  return found;
}

std::vector<AliasedBlock> Heap::alias_some_borrowed(
    std::size_t wanted, const std::function<bool(PageHandle)>& accepts) {
  std::vector<PlacedHandle> handles = borrowed();
  std::erase_if(handles, [&](const PlacedHandle& handle) { return !accepts(handle.range.handle); });
  const HeapLock lock(mutex_);
  std::vector<BorrowedRun> runs = free_borrowed_runs(handles);
  const auto is_growing = [](const Block* block) {
    return block != nullptr && block->state == BlockState::kTransit;
  };
  std::erase_if(runs, [&](const BorrowedRun& run) FERRO_NO_THREAD_SAFETY_ANALYSIS {
    const Block* block = tiling_.span_around(run.begin)->block_around(run.begin);
    return is_growing(block->prev) || is_growing(block->next);
  });
  std::ranges::stable_sort(runs, {}, [](const BorrowedRun& run) { return pages_in(run.handles); });
  std::vector<AliasedBlock> found;
  for (BorrowedRun& run : runs) {
    std::size_t pages = 0;
    std::size_t count = 0;
    while (count < run.handles.size() && pages < wanted) {
      pages += run.handles[count++].pages;
    }
    if (count == 0) {
      break;
    }
    run.handles.resize(count);
    wanted -= std::min(wanted, pages);
    found.push_back(alias_run(std::move(run)));
  }
  return found;
}

void Heap::keep_borrowed(DevicePtr begin) {
  const HeapLock lock(mutex_);
  Span& span = *tiling_.span_around(begin);
  const std::size_t slot = span.page_slot(begin);
  tiling_.keep(span, begin);
  count_pool_bytes(kLarge, static_cast<std::int64_t>((span.handle_end(slot) - slot) * page_bytes_));
}

void Heap::exchange_borrowed(DevicePtr begin, std::span<const HandleRange> fresh) {
  const HeapLock lock(mutex_);
  Span& span = *tiling_.span_around(begin);
  const std::size_t bytes = pages_in(fresh) * page_bytes_;
  tiling_.unback(span, {begin, bytes});
  tiling_.back(span, begin, fresh);
  count_pool_bytes(kLarge, static_cast<std::int64_t>(bytes));
}

AddressRanges Heap::backed_ranges() {
  const HeapLock lock(mutex_);
  AddressRanges ranges;
  tiling_.for_each_block([&](const Block& block) {
    if (block.is_backed()) {
      ranges.add(block.ptr, block.size);
    }
  });
  return ranges;
}

void Heap::retire_free(const AddressRanges& written) {
  const HeapLock lock(mutex_);
  collect_quietly();
  std::vector<std::pair<DevicePtr, std::size_t>> parts;
  tiling_.for_each_block([&](const Block& block) {
    if (block.is_free()) {
      written.for_each_inside(block.ptr, block.size, [&](DevicePtr ptr, std::size_t bytes) {
        parts.emplace_back(ptr, bytes);
      });
    }
  });
  for (const auto& [ptr, bytes] : parts) {
    tiling_.retire(tiling_.cut(tiling_.span_around(ptr)->block_around(ptr), ptr, bytes));
  }
}

// Own handles that are wholly free or retired and overlap an accepted block, in order of address.
template <typename Accepts>
std::vector<Heap::PlacedHandle> Heap::handles_under(Accepts accepts) {
  std::vector<PlacedHandle> handles;
  DevicePtr seen{};
  tiling_.for_each_block([&](const Block& block) FERRO_NO_THREAD_SAFETY_ANALYSIS {
    if (!accepts(block)) {
      return;
    }
    const Span& span = *block.span;
    const std::size_t last = span.page_slot(block.ptr + (block.size - 1));
    for (std::size_t slot = span.page_slot(block.ptr); slot <= last;) {
      const std::size_t first = span.handle_begin(slot);
      const std::size_t end = span.handle_end(slot);
      const DevicePtr begin = span.base() + first * page_bytes_;
      if (begin >= seen && !span.is_borrowed(slot) &&
          exported_.around(begin) == exported_.all().end() &&
          is_all_free(span, begin, span.base() + end * page_bytes_)) {
        handles.push_back({begin, {span.page(slot), end - first}});
      }
      seen = span.base() + end * page_bytes_;
      slot = end;
    }
  });
  return handles;
}

std::vector<Heap::PlacedHandle> Heap::free_handles_outside(const AddressRanges& ranges,
                                                           const std::set<PageHandle>& but) {
  collect_quietly();
  std::vector<PlacedHandle> handles =
      handles_under([](const Block& block) { return block.is_free(); });
  std::erase_if(handles, [&](const PlacedHandle& handle) {
    return ranges.overlaps(handle.begin, handle.range.pages * page_bytes_) ||
           but.contains(handle.range.handle);
  });
  return handles;
}

HandleRuns Heap::runs_of_free_handles(const AddressRanges& outside,
                                      const std::set<PageHandle>& but) {
  const HeapLock lock(mutex_);
  std::vector<PlacedHandle> handles = free_handles_outside(outside, but);
  HandleRuns runs;
  DevicePtr end{};
  for (const PlacedHandle& handle : handles) {
    if (runs.empty() || handle.begin != end) {
      runs.emplace_back();
    }
    runs.back().push_back(handle.range.pages);
    end = handle.begin + handle.range.pages * page_bytes_;
  }
  return runs;
}

std::vector<AliasedBlock> Heap::alias_retired(const std::set<PageHandle>& but) {
  const HeapLock lock(mutex_);
  std::vector<PlacedHandle> handles =
      handles_under([](const Block& block) { return block.state == BlockState::kRetired; });
  std::erase_if(handles,
                [&](const PlacedHandle& handle) { return but.contains(handle.range.handle); });
  return alias_own(handles);
}

std::vector<AliasedBlock> Heap::alias_free_outside(const AddressRanges& ranges,
                                                   const std::set<PageHandle>& but) {
  const HeapLock lock(mutex_);
  return alias_own(free_handles_outside(ranges, but));
}

std::vector<AliasedBlock> Heap::alias_own(std::span<const PlacedHandle> handles) {
  std::vector<AliasedBlock> found;
  DevicePtr end{};
  for (const PlacedHandle& handle : handles) {
    const DevicePtr until = handle.begin + handle.range.pages * page_bytes_;
    Span& span = *tiling_.span_around(handle.begin);
    for (DevicePtr at = handle.begin; at < until;) {
      Block* block = span.block_around(at);
      at = block->end();
      if (block->is_free()) {
        const DevicePtr first = std::max(block->ptr, handle.begin);
        block = tiling_.cut(block, first, distance(first, std::min(until, block->end())));
        at = tiling_.retire(block)->end();
      }
    }
    const PageRun range{handle.begin, distance(handle.begin, until)};
    Block* block = tiling_.cut_retired(span.block_around(range.begin), range.begin, range.bytes);
    block->state = BlockState::kAliased;
    tiling_.unback(span, range);
    count_pool_bytes(kLarge, -static_cast<std::int64_t>(range.bytes));
    if (!found.empty() && handle.begin == end && found.back().block->next == block) {
      Block* before = found.back().block;
      tiling_.absorb_next(before);
      found.back().handles.push_back(handle.range);
    } else {
      found.push_back({block, {handle.range}});
    }
    end = until;
  }
  return found;
}

std::set<PageHandle> Heap::own_handles() {
  const HeapLock lock(mutex_);
  std::set<PageHandle> handles;
  for (const auto& [base, span] : tiling_.spans()) {
    for (std::size_t slot = 0; slot < span->page_slots(); ++slot) {
      if (span->page(slot) != kNoPage && !span->is_borrowed(slot)) {
        handles.insert(span->page(slot));
      }
    }
  }
  return handles;
}

std::set<PageHandle> Heap::free_handles() {
  const HeapLock lock(mutex_);
  collect_quietly();
  std::set<PageHandle> found;
  for (const PlacedHandle& handle : handles_under([](const Block& block) {
         return block.is_free() || block.state == BlockState::kRetired;
       })) {
    found.insert(handle.range.handle);
  }
  return found;
}

void Heap::unretire_all() {
  const HeapLock lock(mutex_);
  tiling_.unretire_all();
  for (auto& [begin, retired] : asleep_) {
    retired.clear();
  }
  list_free_pages();
}

}  // namespace ferro
