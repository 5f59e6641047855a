// The queries of Heap: views for snapshots and reports, and the recount of invariants.
#include "ferro/base/check.h"
#include "ferro/core/heap/heap.h"

#include <algorithm>
#include <array>

namespace ferro {

BlockView Heap::view_of(const Block& block) {
  return {block.ptr,
          block.size,
          block.requested,
          block.state,
          block.extra != nullptr ? block.extra->context : nullptr,
          block.span->number(),
          block.tag};
}

bool Heap::has_pending() {
  const HeapLock lock(mutex_);
  return pending_.count() != 0;
}

bool Heap::leave(const HeapList& list) {
  const HeapLock lock(mutex_);
  const Block* largest = tiling_.free_blocks().largest();
  const bool stays = &list == &context_.with_pending
                         ? pending_.count() != 0
                         : largest != nullptr && largest->size >= page_bytes_;
  if (!stays) {
    list.drop(links_);
  }
  return !stays;
}

bool Heap::has_recorded_uses() {
  const HeapLock lock(mutex_);
  return used_outside_captures_ != 0;
}

bool Heap::is_empty() {
  const HeapLock lock(mutex_);
  if (pending_.count() != 0 || stats_.current(&ClassStats::blocks, kAll) != 0 ||
      tiling_.backed_pages() != 0) {
    return false;
  }
  // Without pages only gaps, blocks in transit and aliased blocks are left, and gaps are merged.
  return std::ranges::all_of(tiling_.spans(), [](const auto& entry) {
    const Block* first = entry.second->first;
    return first->state == BlockState::kGap && first->next == nullptr;
  });
}

Block* Heap::live_around(const Span& span, DevicePtr ptr) {
  Block* block = span.block_around(ptr);
  return block->state == BlockState::kLive ? block : nullptr;
}

std::optional<BlockView> Heap::live_block_at(Span& span, DevicePtr ptr) {
  const HeapLock lock(mutex_);
  const Block* block = span.block_at(ptr);
  return block != nullptr && block->state == BlockState::kLive ? std::optional(view_of(*block))
                                                               : std::nullopt;
}

std::optional<BlockView> Heap::live_block_around(Span& span, DevicePtr ptr) {
  const HeapLock lock(mutex_);
  const Block* block = live_around(span, ptr);
  return block != nullptr ? std::optional(view_of(*block)) : std::nullopt;
}

std::vector<SegmentView> Heap::segments() {
  const HeapLock lock(mutex_);
  std::vector<SegmentView> segments;
  const auto first_context = [this](const SegmentView& segment) FERRO_REQUIRES(mutex_) {
    const auto found = mapped_by_.lower_bound(segment.ptr);
    const bool inside = found != mapped_by_.end() && found->first < segment.ptr + segment.size;
    return inside ? found->second : nullptr;
  };
  for (const auto& [base, span] : tiling_.spans()) {
    bool open = false;
    for (const Block* block = span->first; block != nullptr; block = block->next) {
      if (!block->is_backed()) {
        open = false;
        continue;
      }
      if (!open) {
        segments.push_back({block->ptr, 0, stream_, pool_, kind_, span->number(), nullptr, {}});
        open = true;
      }
      segments.back().size += block->size;
      segments.back().blocks.push_back(view_of(*block));
    }
  }
  for (SegmentView& segment : segments) {
    segment.context = first_context(segment);
  }
  return segments;
}

void Heap::visit_live(const VisitLive& visit) {
  const HeapLock lock(mutex_);
  tiling_.for_each_block([&](const Block& block) FERRO_NO_THREAD_SAFETY_ANALYSIS {
    if (block.state == BlockState::kLive) {
      BlockView view = view_of(block);
      view.is_asleep = tiling_.is_asleep(block);
      visit(view);
    }
  });
}

std::vector<BlockView> live_blocks_of(Heap& heap) {
  std::vector<BlockView> live;
  heap.visit_live([&](const BlockView& block) { live.push_back(block); });
  return live;
}

HeapView Heap::view() {
  const HeapLock lock(mutex_);
  const Block* largest = tiling_.free_blocks().largest();
  HeapView view;
  view.backed_bytes = tiling_.backed_pages() * page_bytes_;
  view.free_bytes = tiling_.free_blocks().bytes();
  view.free_blocks = tiling_.free_blocks().count();
  view.pending_bytes = static_cast<std::size_t>(stats_.current(&ClassStats::pending_bytes, kAll));
  view.retired_bytes = tiling_.scratch().retired_bytes;
  view.borrowed_bytes = tiling_.scratch().borrowed_pages * page_bytes_;
  view.asleep_bytes = tiling_.sleep().pages * page_bytes_;
  view.asleep_free_bytes = tiling_.sleep().free_bytes;
  view.largest_free = largest != nullptr ? largest->size : 0;
  return view;
}

void Heap::add_stranded(StrandedBytes& sum) {
  const HeapLock lock(mutex_);
  tiling_.for_each_stranded([&](std::size_t pages, std::size_t bytes) { sum[pages] += bytes; });
}

void Heap::add_reserved_by_tag(TagBytes& sum) {
  const HeapLock lock(mutex_);
  // Blocks come in order of address, so handles before this one are counted already.
  std::map<BlockTag, DevicePtr> counted;
  tiling_.for_each_block([&](const Block& block) {
    if (block.state != BlockState::kLive || block.tag == 0) {
      return;
    }
    const Span& span = *block.span;
    DevicePtr& end_of_counted = counted[block.tag];
    const std::size_t last = span.page_slot(block.ptr + (block.size - 1));
    for (std::size_t slot = span.page_slot(block.ptr); slot <= last;) {
      if (span.page(slot) == kNoPage) {
        ++slot;
        continue;
      }
      const std::size_t pages = span.handle_end(slot) - span.handle_begin(slot);
      slot = span.handle_end(slot);
      if (const DevicePtr end = span.base() + slot * page_bytes_; end > end_of_counted) {
        sum[block.tag] += pages * page_bytes_;
        end_of_counted = end;
      }
    }
  });
}

void Heap::check_invariants() {
  const HeapLock lock(mutex_);
  tiling_.check_invariants();
  pending_.check_invariants();
  check_exports();

  struct Sums {
    std::size_t backed_bytes = 0, free_bytes = 0, pending_blocks = 0, pending_bytes = 0,
                used_outside_captures = 0;
    std::array<std::int64_t, kStatClasses> live_blocks{}, live_bytes{}, requested{};
  } sum;
  tiling_.for_each_block([&](const Block& block) FERRO_NO_THREAD_SAFETY_ANALYSIS {
    FERRO_CHECK(block.span != nullptr);
    const Span& span = *block.span;
    FERRO_CHECK(context_.addresses.find(block.ptr) == &span && span.heap() == this);
    const bool backed = block.is_backed();
    FERRO_CHECK(backed || (is_aligned(address_of(block.ptr), page_bytes_) &&
                           is_aligned(block.size, page_bytes_)));
    const std::size_t last = span.page_slot(block.ptr + (block.size - 1));
    for (std::size_t slot = span.page_slot(block.ptr); slot <= last; ++slot) {
      FERRO_CHECK(span.is_filled(slot) == backed);
    }
    const auto size = static_cast<std::int64_t>(block.size);
    sum.backed_bytes += backed ? block.size : 0;
    sum.free_bytes += block.is_free() ? block.size : 0;
    FERRO_CHECK(block.state != BlockState::kRetired || pool_ != kDefaultPool);
    const bool live = block.state == BlockState::kLive;
    const bool pending = block.state == BlockState::kPending;
    FERRO_CHECK(!block.is_free() || block.requested == 0);
    // So that its free takes the slow path.
    FERRO_CHECK(!live || block.extra != nullptr || !tiling_.is_asleep(block));
    sum.used_outside_captures += live && block.is_used_outside_captures() ? 1 : 0;
    if (live || pending) {
      for (const StatClass cls : {kAll, HeapStats::class_of(block.size)}) {
        sum.live_blocks[cls] += live ? 1 : 0;
        sum.live_bytes[cls] += live ? size : 0;
        sum.requested[cls] += static_cast<std::int64_t>(block.requested);
      }
    }
    sum.pending_blocks += pending ? 1 : 0;
    sum.pending_bytes += pending ? block.size : 0;
  });
  FERRO_CHECK(sum.backed_bytes == tiling_.backed_pages() * page_bytes_);
  FERRO_CHECK(sum.free_bytes == tiling_.free_blocks().bytes());
  FERRO_CHECK(sum.pending_blocks == pending_.count());
  FERRO_CHECK(sum.used_outside_captures == used_outside_captures_);
  for (const StatClass cls : {kAll, kSmall, kLarge}) {
    FERRO_CHECK(stats_.current(&ClassStats::blocks, cls) == sum.live_blocks[cls]);
    FERRO_CHECK(stats_.current(&ClassStats::bytes, cls) == sum.live_bytes[cls]);
    FERRO_CHECK(stats_.current(&ClassStats::requested, cls) == sum.requested[cls]);
  }
  FERRO_CHECK(stats_.current(&ClassStats::pending_bytes, kAll) ==
              static_cast<std::int64_t>(sum.pending_bytes));
}

}  // namespace ferro
