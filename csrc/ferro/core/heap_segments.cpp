// The classic layout: blocks in segments, as PyTorch's own allocator places them.
#include "ferro/base/check.h"
#include "ferro/core/heap.h"
#include "ferro/core/heap_blocks.h"

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

bool Heap::has_segment_for(const Request& request, const SegmentRules& rules) {
  const SpinLock lock(mutex_);
  const Block* block = free_.best_fit(request.size);
  return block != nullptr && may_serve(block->size, request.size, rules);
}

BlockView Heap::allocate_in_segments(const Request& request, const SegmentRules& rules) {
  const SpinLock lock(mutex_);
  Block* block = free_.best_fit(request.size);
  if (block == nullptr || !may_serve(block->size, request.size, rules)) {
    return {};
  }
  free_.remove(block);
  return hand_out_split(block, request, rules);
}

BlockView Heap::allocate_in_new_segment(DevicePtr base, std::size_t bytes, const Request& request,
                                        const SegmentRules& rules) {
  const SpinLock lock(mutex_);
  // One slot of a page as long as the segment: wholly backed for as long as it exists.
  auto segment = std::make_unique<Span>(base, bytes, bytes, this);
  segment->set_page(0, kWholeSegment);
  Block* block = make_first_block(*segment);
  add_segment(std::move(segment));
  if (request.context != nullptr) {
    mapped_by_[base] = request.context;
  }
  tell_of_range(base, bytes, MemoryEvent::kSegmentCreated, request.context);
  return hand_out_split(block, request, rules);
}

void Heap::add_segment(std::unique_ptr<Span> segment) {
  const auto bytes = static_cast<std::int64_t>(segment->bytes());
  FERRO_CHECK(context_.addresses.add(segment.get()));
  keep_span(std::move(segment));
  context_.segments.on_segment(segment_class(), 1, bytes);
  count_pool_bytes(segment_class(), bytes);
}

// `block` is in no index. The request gets its low end.
BlockView Heap::hand_out_split(Block* block, const Request& request, const SegmentRules& rules) {
  const bool was_split = shares_its_segment(*block);
  const bool split = is_split(block->size, request.size, kind_, request.no_split, rules);
  if (split) {
    split_tail(block, request.size, BlockState::kFree);
    insert_free(block->next);
  }
  const auto size = static_cast<std::int64_t>(block->size);
  if (was_split) {
    context_.segments.on_splits(segment_class(), {split ? 0 : -1, -size});
  } else if (split) {
    context_.segments.on_splits(segment_class(), {1, static_cast<std::int64_t>(block->next->size)});
  }
  if (block->size >= rules.max_split) {
    context_.segments.on_oversize_allocation(1);
    block->oversize = true;
  }
  hand_out(block, request);
  return {block->ptr, block->size, block->requested, block->state, nullptr};
}

void Heap::insert_free(Block* block) {
  block->state = BlockState::kFree;
  block->free_since = context_.searches.load(std::memory_order_relaxed);
  free_.insert(block);
}

// Counted until the program frees it, also when it then waits for other streams.
void Heap::end_oversize(Block* block) {
  if (std::exchange(block->oversize, false)) {
    context_.segments.on_oversize_allocation(-1);
  }
}

void Heap::free_in_segment(Block* block) {
  end_oversize(block);
  SplitCounts change;
  for (const Block* neighbour : {block->prev, block->next}) {
    if (neighbour != nullptr && neighbour->is_free()) {
      change.blocks -= 1;
      change.bytes -= static_cast<std::int64_t>(neighbour->size);
    }
  }
  block->state = BlockState::kFree;
  block = merge_neighbours(block);
  insert_free(block);
  if (shares_its_segment(*block)) {
    change.blocks += 1;
    change.bytes += static_cast<std::int64_t>(block->size);
  }
  context_.segments.on_splits(segment_class(), change);
}

SplitCounts Heap::count_splits() {
  SplitCounts counts;
  if (!is_paged(kind_)) {
    for_each_block([&](const Block& block) {
      if (block.is_free() && shares_its_segment(block)) {
        ++counts.blocks;
        counts.bytes += static_cast<std::int64_t>(block.size);
      }
    });
  }
  return counts;
}

void Heap::note_splits_since(const SplitCounts& before) {
  if (!is_paged(kind_)) {
    const SplitCounts now = count_splits();
    context_.segments.on_splits(segment_class(),
                                {now.blocks - before.blocks, now.bytes - before.bytes});
  }
}

std::vector<FreeSegment> Heap::free_segments() {
  const SpinLock lock(mutex_);
  std::vector<FreeSegment> segments;
  for_each_block([&](const Block& block) {
    if (block.is_free() && !shares_its_segment(block)) {
      segments.push_back({block.ptr, block.size, block.free_since});
    }
  });
  std::ranges::sort(segments, [](const FreeSegment& a, const FreeSegment& b) {
    return a.bytes != b.bytes ? a.bytes < b.bytes : a.base < b.base;
  });
  return segments;
}

std::unique_ptr<Span> Heap::detach_segment(DevicePtr base, const CallContext& context) {
  const SpinLock lock(mutex_);
  const auto place = std::ranges::find(spans_, base, &Span::base);
  if (place == spans_.end()) {
    return nullptr;
  }
  Block* block = (*place)->first;
  if (!block->is_free() || shares_its_segment(*block)) {
    return nullptr;
  }
  tell_of_range(base, block->size, MemoryEvent::kSegmentReleased, context);
  free_.remove(block);
  std::unique_ptr<Span> segment = std::move(*place);
  spans_.erase(place);
  context_.addresses.remove(segment.get());
  const auto bytes = static_cast<std::int64_t>(segment->bytes());
  context_.segments.on_segment(segment_class(), -1, -bytes);
  count_pool_bytes(segment_class(), -bytes);
  forget_mapping(base, segment->bytes());
  segment->first = nullptr;
  blocks_.recycle(block);
  return segment;
}

void Heap::attach_segment(std::unique_ptr<Span> segment) {
  const SpinLock lock(mutex_);
  insert_free(make_first_block(*segment));
  add_segment(std::move(segment));
}

}  // namespace ferro
