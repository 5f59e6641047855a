#include "ferro/core/heap/arena_scratch.h"

#include "ferro/driver/error.h"

#include <algorithm>
#include <utility>

namespace ferro {

bool ArenaScratch::is_all_free(const Span& span, DevicePtr begin, DevicePtr end) {
  for (const Block* block = span.block_around(begin); block != nullptr && block->ptr < end;
       block = block->next) {
    if (!block->is_free() && block->state != BlockState::kRetired) {
      return false;
    }
  }
  return true;
}

// If the driver's query fails, blocks stay pending until the next collection.
void ArenaScratch::collect_locked() {
  try {
    heap_.collect_locked();
  } catch (const DriverError&) {  // NOLINT(bugprone-empty-catch): see above
  }
}

std::vector<ArenaScratch::Handle> ArenaScratch::borrowed() {
  const HeapLock lock(heap_.mutex_);
  std::vector<Handle> found;
  if (heap_.tiling_.scratch().borrowed_pages == 0) {
    return found;
  }
  for (const auto& [base, span] : heap_.tiling_.spans()) {
    for (std::size_t slot = 0; slot < span->page_slots();) {
      if (span->page(slot) == kNoPage) {
        ++slot;
        continue;
      }
      const std::size_t end = span->handle_end(slot);
      if (span->is_borrowed(slot)) {
        found.push_back({base + slot * heap_.page_bytes_, {span->page(slot), end - slot}});
      }
      slot = end;
    }
  }
  return found;
}

bool ArenaScratch::is_borrowed(const Span& span, DevicePtr ptr, std::size_t bytes) {
  const HeapLock lock(heap_.mutex_);
  const std::size_t last = span.page_slot(ptr + (bytes - 1));
  for (std::size_t slot = span.page_slot(ptr); slot <= last; slot = span.handle_end(slot)) {
    if (span.is_borrowed(slot)) {
      return true;
    }
  }
  return false;
}

// In order of address. A run lies within one block.
std::vector<ArenaScratch::Run> ArenaScratch::free_borrowed_runs(std::span<const Handle> borrowed) {
  collect_locked();
  heap_.tiling_.merge_all();
  std::vector<Run> runs;
  for (std::size_t i = 0; i < borrowed.size();) {
    const DevicePtr begin = borrowed[i].begin;
    const Block* block = heap_.tiling_.span_around(begin)->block_around(begin);
    DevicePtr end = begin;
    Run run{begin, {}};
    while (i < borrowed.size() && (run.handles.empty() || borrowed[i].begin == end)) {
      const DevicePtr next = borrowed[i].begin + borrowed[i].range.pages * heap_.page_bytes_;
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

AliasedBlock ArenaScratch::alias(Run run) {
  Span& span = *heap_.tiling_.span_around(run.begin);
  const PageRun range{run.begin, pages_in(run.handles) * heap_.page_bytes_};
  Block* block = heap_.tiling_.cut(span.block_around(range.begin), range.begin, range.bytes);
  block->state = BlockState::kAliased;
  heap_.tiling_.unback(span, range);
  return {block, std::move(run.handles)};
}

std::vector<AliasedBlock> ArenaScratch::alias_borrowed() {
  const std::vector<Handle> handles = borrowed();
  const HeapLock lock(heap_.mutex_);
  std::vector<AliasedBlock> found;
  for (Run& run : free_borrowed_runs(handles)) {
    found.push_back(alias(std::move(run)));
  }
  return found;
}

std::vector<AliasedBlock> ArenaScratch::alias_some_borrowed(
    std::size_t wanted, const std::function<bool(PageHandle)>& accepts) {
  std::vector<Handle> handles = borrowed();
  std::erase_if(handles, [&](const Handle& handle) { return !accepts(handle.range.handle); });
  const HeapLock lock(heap_.mutex_);
  std::vector<Run> runs = free_borrowed_runs(handles);
  const auto is_growing = [](const Block* block) {
    return block != nullptr && block->state == BlockState::kTransit;
  };
  std::erase_if(runs, [&](const Run& run) FERRO_NO_THREAD_SAFETY_ANALYSIS {
    const Block* block = heap_.tiling_.span_around(run.begin)->block_around(run.begin);
    return is_growing(block->prev) || is_growing(block->next);
  });
  std::ranges::stable_sort(runs, {}, [](const Run& run) { return pages_in(run.handles); });
  std::vector<AliasedBlock> found;
  for (Run& run : runs) {
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
    found.push_back(alias(std::move(run)));
  }
  return found;
}

void ArenaScratch::keep_borrowed(DevicePtr begin) {
  const HeapLock lock(heap_.mutex_);
  Span& span = *heap_.tiling_.span_around(begin);
  const std::size_t slot = span.page_slot(begin);
  heap_.tiling_.keep(span, begin);
  heap_.count_pool_bytes(
      kLarge, static_cast<std::int64_t>((span.handle_end(slot) - slot) * heap_.page_bytes_));
}

void ArenaScratch::exchange_borrowed(DevicePtr begin, std::span<const HandleRange> fresh) {
  const HeapLock lock(heap_.mutex_);
  Span& span = *heap_.tiling_.span_around(begin);
  const std::size_t bytes = pages_in(fresh) * heap_.page_bytes_;
  heap_.tiling_.unback(span, {begin, bytes});
  heap_.tiling_.back(span, begin, fresh);
  heap_.count_pool_bytes(kLarge, static_cast<std::int64_t>(bytes));
}

AddressRanges ArenaScratch::backed_ranges() {
  const HeapLock lock(heap_.mutex_);
  AddressRanges ranges;
  heap_.tiling_.for_each_block([&](const Block& block) {
    if (block.is_backed()) {
      ranges.add(block.ptr, block.size);
    }
  });
  return ranges;
}

void ArenaScratch::retire_free(const AddressRanges& written) {
  const HeapLock lock(heap_.mutex_);
  collect_locked();
  heap_.tiling_.merge_all();
  std::vector<std::pair<DevicePtr, std::size_t>> parts;
  heap_.tiling_.for_each_block([&](const Block& block) {
    if (block.is_free()) {
      written.for_each_inside(block.ptr, block.size, [&](DevicePtr ptr, std::size_t bytes) {
        parts.emplace_back(ptr, bytes);
      });
    }
  });
  for (const auto& [ptr, bytes] : parts) {
    heap_.tiling_.retire(
        heap_.tiling_.cut(heap_.tiling_.span_around(ptr)->block_around(ptr), ptr, bytes));
  }
}

// Own handles that are wholly free or retired and overlap an accepted block, in order of address.
template <typename Accepts>
std::vector<ArenaScratch::Handle> ArenaScratch::handles_under(Accepts accepts) {
  std::vector<Handle> handles;
  DevicePtr seen{};
  heap_.tiling_.for_each_block([&](const Block& block) FERRO_NO_THREAD_SAFETY_ANALYSIS {
    if (!accepts(block)) {
      return;
    }
    const Span& span = *block.span;
    const std::size_t last = span.page_slot(block.ptr + (block.size - 1));
    for (std::size_t slot = span.page_slot(block.ptr); slot <= last;) {
      const std::size_t first = span.handle_begin(slot);
      const std::size_t end = span.handle_end(slot);
      const DevicePtr begin = span.base() + first * heap_.page_bytes_;
      if (begin >= seen && !span.is_borrowed(slot) &&
          heap_.exported_.around(begin) == heap_.exported_.all().end() &&
          is_all_free(span, begin, span.base() + end * heap_.page_bytes_)) {
        handles.push_back({begin, {span.page(slot), end - first}});
      }
      seen = span.base() + end * heap_.page_bytes_;
      slot = end;
    }
  });
  return handles;
}

std::vector<ArenaScratch::Handle> ArenaScratch::free_handles_outside(
    const AddressRanges& ranges, const std::set<PageHandle>& but) {
  collect_locked();
  heap_.tiling_.merge_all();
  std::vector<Handle> handles = handles_under([](const Block& block) { return block.is_free(); });
  std::erase_if(handles, [&](const Handle& handle) {
    return ranges.overlaps(handle.begin, handle.range.pages * heap_.page_bytes_) ||
           but.contains(handle.range.handle);
  });
  return handles;
}

HandleRuns ArenaScratch::runs_of_free_handles(const AddressRanges& outside,
                                              const std::set<PageHandle>& but) {
  const HeapLock lock(heap_.mutex_);
  std::vector<Handle> handles = free_handles_outside(outside, but);
  HandleRuns runs;
  DevicePtr end{};
  for (const Handle& handle : handles) {
    if (runs.empty() || handle.begin != end) {
      runs.emplace_back();
    }
    runs.back().push_back(handle.range.pages);
    end = handle.begin + handle.range.pages * heap_.page_bytes_;
  }
  return runs;
}

std::vector<AliasedBlock> ArenaScratch::alias_retired(const std::set<PageHandle>& but) {
  const HeapLock lock(heap_.mutex_);
  std::vector<Handle> handles =
      handles_under([](const Block& block) { return block.state == BlockState::kRetired; });
  std::erase_if(handles, [&](const Handle& handle) { return but.contains(handle.range.handle); });
  return alias_own(handles);
}

std::vector<AliasedBlock> ArenaScratch::alias_free_outside(const AddressRanges& ranges,
                                                           const std::set<PageHandle>& but) {
  const HeapLock lock(heap_.mutex_);
  return alias_own(free_handles_outside(ranges, but));
}

std::vector<AliasedBlock> ArenaScratch::alias_own(std::span<const Handle> handles) {
  std::vector<AliasedBlock> found;
  DevicePtr end{};
  for (const Handle& handle : handles) {
    const DevicePtr until = handle.begin + handle.range.pages * heap_.page_bytes_;
    Span& span = *heap_.tiling_.span_around(handle.begin);
    for (DevicePtr at = handle.begin; at < until;) {
      Block* block = span.block_around(at);
      at = block->end();
      if (block->is_free()) {
        const DevicePtr first = std::max(block->ptr, handle.begin);
        block = heap_.tiling_.cut(block, first, distance(first, std::min(until, block->end())));
        at = heap_.tiling_.retire(block)->end();
      }
    }
    const PageRun range{handle.begin, distance(handle.begin, until)};
    Block* block =
        heap_.tiling_.cut_retired(span.block_around(range.begin), range.begin, range.bytes);
    block->state = BlockState::kAliased;
    heap_.tiling_.unback(span, range);
    heap_.count_pool_bytes(kLarge, -static_cast<std::int64_t>(range.bytes));
    if (!found.empty() && handle.begin == end && found.back().block->next == block) {
      Block* before = found.back().block;
      heap_.tiling_.join_next(before);
      found.back().handles.push_back(handle.range);
    } else {
      found.push_back({block, {handle.range}});
    }
    end = until;
  }
  return found;
}

std::set<PageHandle> ArenaScratch::own_handles() {
  const HeapLock lock(heap_.mutex_);
  std::set<PageHandle> handles;
  for (const auto& [base, span] : heap_.tiling_.spans()) {
    for (std::size_t slot = 0; slot < span->page_slots(); ++slot) {
      if (span->page(slot) != kNoPage && !span->is_borrowed(slot)) {
        handles.insert(span->page(slot));
      }
    }
  }
  return handles;
}

std::set<PageHandle> ArenaScratch::free_handles() {
  const HeapLock lock(heap_.mutex_);
  collect_locked();
  heap_.tiling_.merge_all();
  std::set<PageHandle> found;
  for (const Handle& handle : handles_under([](const Block& block) {
         return block.is_free() || block.state == BlockState::kRetired;
       })) {
    found.insert(handle.range.handle);
  }
  return found;
}

void ArenaScratch::unretire_all() {
  const HeapLock lock(heap_.mutex_);
  heap_.tiling_.unretire_all();
  heap_.list_free_pages();
}

}  // namespace ferro
