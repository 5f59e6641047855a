// Allocation at an address that the program names.
#include "ferro/base/bytes.h"
#include "ferro/core/heap.h"
#include "ferro/core/heap_blocks.h"

#include <algorithm>

namespace ferro {

DevicePtr Heap::allocate_at(DevicePtr ptr, const Request& request) {
  const SpinLock lock(mutex_);
  Span* span = span_around(ptr);
  if (span == nullptr || request.size > distance(ptr, span->base() + span->bytes())) {
    return kNull;
  }
  collect_locked();
  merge_all();
  retire_stale();
  Block* block = is_paged(kind_) ? back_range(*span, ptr, request) : block_around(*span, ptr);
  const bool whole = !is_paged(kind_) && request.no_split;
  if (!block->is_free() || ptr < block->ptr || ptr + request.size > block->end() ||
      (whole && ptr != block->ptr)) {
    return kNull;
  }
  const SplitCounts splits = count_splits();
  block = cut_out(block, ptr, whole ? block->size : request.size);
  hand_out(block, request);
  note_splits_since(splits);
  return block->ptr;
}

// Puts pages behind the gaps of the range, as far as it is free. The result is the free block
// around `ptr`, or what is in the way.
Block* Heap::back_range(Span& span, DevicePtr ptr, const Request& request) {
  const DevicePtr end = ptr + request.size;
  Block* block = block_around(span, ptr);
  while (block->state == BlockState::kGap || (block->is_free() && block->end() < end)) {
    if (block->is_free()) {
      // Free neighbours are merged, so what follows is in use or a gap.
      block = block->next;
      continue;
    }
    const std::size_t first = ptr > block->ptr ? distance(block->ptr, ptr) / page_bytes_ : 0;
    const DevicePtr needed_end = std::min(end, block->end());
    const std::size_t last = ceil_div(distance(block->ptr, needed_end), page_bytes_);
    const GrowthPlan plan{0, first, last - first};
    if (fill_gap(block, plan, GrowFrom::kStore, request) != GrowResult::kGrown) {
      break;
    }
    block = block_around(span, ptr);
  }
  return block;
}

Span* Heap::span_around(DevicePtr ptr) {
  const auto after = std::ranges::upper_bound(spans_, ptr, {}, &Span::base);
  if (after == spans_.begin()) {
    return nullptr;
  }
  Span* span = std::prev(after)->get();
  return ptr < span->base() + span->bytes() ? span : nullptr;
}

// `ptr` lies in the span. Walks the tiling, unless a block starts there.
Block* Heap::block_around(const Span& span, DevicePtr ptr) {
  Block* block = span.block_at(ptr);
  block = block != nullptr ? block : span.first;
  while (block->end() <= ptr) {
    block = block->next;
  }
  return block;
}

}  // namespace ferro
