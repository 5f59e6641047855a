#include "ferro/core/heap/segment_heap.h"

#include "ferro/base/check.h"

#include <algorithm>
#include <utility>

namespace ferro {
namespace {

// What stands for the pages of a segment, which has none to take away.
constexpr PageHandle kWholeSegment{1};

bool shares_its_segment(const Block& block) {
  return block.prev != nullptr || block.next != nullptr;
}

}  // namespace

bool SegmentHeap::has_block_for(const Request& request, const SegmentRules& rules) {
  const HeapLock lock(mutex_);
  const Block* block = tiling_.free_blocks().best_fit(request.size);
  return block != nullptr && may_serve(block->size, request.size, rules);
}

BlockView SegmentHeap::allocate(const Request& request, const SegmentRules& rules) {
  const HeapLock lock(mutex_);
  Block* block = tiling_.free_blocks().best_fit(request.size);
  if (block == nullptr || !may_serve(block->size, request.size, rules)) {
    return {};
  }
  tiling_.take(block);
  return split_and_mark_live(block, request, rules);
}

BlockView SegmentHeap::allocate_in_new_segment(DevicePtr base, std::size_t bytes,
                                               const Request& request, const SegmentRules& rules) {
  const HeapLock lock(mutex_);
  // One slot of a page as long as the segment: wholly backed for as long as it exists.
  auto segment = std::make_unique<Span>(base, bytes, bytes, this);
  segment->put_handle(0, kWholeSegment, 1);
  Block* block = add(std::move(segment));
  remember_mapping(base, request.context);
  notify_of_range(base, bytes, MemoryEvent::kSegmentCreated, request.context);
  return split_and_mark_live(block, request, rules);
}

BlockView SegmentHeap::allocate_at(DevicePtr ptr, const Request& request) {
  const HeapLock lock(mutex_);
  const Span* span = tiling_.span_around(ptr);
  if (span == nullptr || request.size > distance(ptr, span->base() + span->bytes())) {
    return {};
  }
  collect_locked();
  Block* block = span->block_around(ptr);
  if (!block->is_free() || ptr + request.size > block->end() ||
      (request.no_split && ptr != block->ptr)) {
    return {};
  }
  const SplitCounts splits = count_splits();
  block = cut_out(block, ptr, request.no_split ? block->size : request.size);
  mark_live(block, request);
  note_splits_since(splits);
  return view_of(*block);
}

// As one block, in no index.
Block* SegmentHeap::add(std::unique_ptr<Span> segment) {
  const std::size_t bytes = segment->bytes();
  FERRO_CHECK(context_.addresses.add(segment.get()));
  Block* block = tiling_.add_span(std::move(segment));
  context_.segments.on_segment(stat_class(), 1, static_cast<std::int64_t>(bytes));
  count_pool_bytes(stat_class(), static_cast<std::int64_t>(bytes));
  return block;
}

// `block` is in no index. The request gets its low end.
BlockView SegmentHeap::split_and_mark_live(Block* block, const Request& request,
                                           const SegmentRules& rules) {
  const bool was_split = shares_its_segment(*block);
  const bool split = is_split(block->size, request.size, kind(), request.no_split, rules);
  if (split) {
    tiling_.split_tail(block, request.size, BlockState::kFree);
    insert_free(block->next);
  }
  const auto size = static_cast<std::int64_t>(block->size);
  if (was_split) {
    context_.segments.on_splits(stat_class(), {split ? 0 : -1, -size});
  } else if (split) {
    context_.segments.on_splits(stat_class(), {1, static_cast<std::int64_t>(block->next->size)});
  }
  if (block->size >= rules.max_split) {
    context_.segments.on_oversize_allocation(1);
    block->oversize = true;
  }
  mark_live(block, request);
  return {block->ptr, block->size, block->requested, block->state, nullptr};
}

void SegmentHeap::note_age(Block* block) {
  block->free_since = context_.searches.load(std::memory_order_relaxed);
}

void SegmentHeap::insert_free(Block* block) {
  note_age(block);
  tiling_.put_unchanged(block);
}

Block* SegmentHeap::cut_out(Block* block, DevicePtr begin, std::size_t bytes) {
  Block* range = Heap::cut_out(block, begin, bytes);
  for (Block* rest : {range->prev, range->next}) {
    if (rest != nullptr && rest->is_free()) {
      note_age(rest);
    }
  }
  return range;
}

void SegmentHeap::end_oversize(Block* block) {
  if (std::exchange(block->oversize, false)) {
    context_.segments.on_oversize_allocation(-1);
  }
}

void SegmentHeap::free_in_segment(Block* block) {
  end_oversize(block);
  SplitCounts change;
  for (const Block* neighbour : {block->prev, block->next}) {
    if (neighbour != nullptr && neighbour->is_free()) {
      change.blocks -= 1;
      change.bytes -= static_cast<std::int64_t>(neighbour->size);
    }
  }
  block = tiling_.insert_merged(block);
  note_age(block);
  if (shares_its_segment(*block)) {
    change.blocks += 1;
    change.bytes += static_cast<std::int64_t>(block->size);
  }
  context_.segments.on_splits(stat_class(), change);
}

SplitCounts SegmentHeap::count_splits() const {
  SplitCounts counts;
  tiling_.for_each_block([&](const Block& block) {
    if (block.is_free() && shares_its_segment(block)) {
      ++counts.blocks;
      counts.bytes += static_cast<std::int64_t>(block.size);
    }
  });
  return counts;
}

std::vector<FreeSegment> SegmentHeap::free_segments() {
  const HeapLock lock(mutex_);
  std::vector<FreeSegment> segments;
  tiling_.free_blocks().descend([&](const Block* block) {
    if (!shares_its_segment(*block)) {
      segments.push_back({block->ptr, block->size, block->free_since});
    }
    return true;
  });
  std::ranges::sort(segments, [](const FreeSegment& a, const FreeSegment& b) {
    return a.bytes != b.bytes ? a.bytes < b.bytes : a.base < b.base;
  });
  return segments;
}

std::unique_ptr<Span> SegmentHeap::detach(DevicePtr base, const CallContext& context) {
  const HeapLock lock(mutex_);
  const auto found = tiling_.spans().find(base);
  if (found == tiling_.spans().end()) {
    return nullptr;
  }
  Span& segment = *found->second;
  Block* block = segment.first;
  if (!block->is_free() || shares_its_segment(*block)) {
    return nullptr;
  }
  const auto bytes = static_cast<std::int64_t>(block->size);
  notify_of_range(base, block->size, MemoryEvent::kSegmentReleased, context);
  tiling_.take(block);
  context_.addresses.remove(&segment);
  context_.segments.on_segment(stat_class(), -1, -bytes);
  count_pool_bytes(stat_class(), -bytes);
  forget_mapping(base, segment.bytes());
  return tiling_.remove_span(segment);
}

void SegmentHeap::attach(std::unique_ptr<Span> segment) {
  const HeapLock lock(mutex_);
  insert_free(add(std::move(segment)));
}

}  // namespace ferro
