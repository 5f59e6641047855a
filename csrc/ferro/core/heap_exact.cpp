// Allocation at an address that the program names.
#include "ferro/base/bytes.h"
#include "ferro/core/heap.h"

#include <algorithm>

namespace ferro {

DevicePtr Heap::allocate_at(Span& span, DevicePtr ptr, const Request& request) {
  const SpinLock lock(mutex_);
  if (span.heap() != this || request.size > distance(ptr, span.base() + span.bytes())) {
    return kNull;
  }
  collect_locked();
  merge_all();
  retire_stale();
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
    if (fill_gap(block, {0, first, last - first}, GrowFrom::kStore, request.context) !=
        GrowResult::kGrown) {
      return kNull;
    }
    block = block_around(span, ptr);
  }
  if (!block->is_free() || ptr < block->ptr) {
    return kNull;
  }
  return cut_block(block, ptr, request);
}

// Takes `request` out of a free block that contains it; what is left on both sides stays free.
DevicePtr Heap::cut_block(Block* block, DevicePtr ptr, const Request& request) {
  free_.remove(block);
  if (block->ptr < ptr) {
    split_tail(block, distance(block->ptr, ptr), BlockState::kFree);
    free_.insert(block);
    block = block->next;
  }
  if (block->size > request.size) {
    split_tail(block, request.size, BlockState::kFree);
    free_.insert(block->next);
  }
  return hand_out(block, request);
}

// `ptr` lies in the span. Walks the tiling.
Block* Heap::block_around(const Span& span, DevicePtr ptr) {
  Block* block = span.first;
  while (block->end() <= ptr) {
    block = block->next;
  }
  return block;
}

}  // namespace ferro
