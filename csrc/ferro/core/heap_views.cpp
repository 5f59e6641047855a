// The parts of Heap that only look: views for snapshots and reports, and the recount of invariants.
#include "ferro/base/check.h"
#include "ferro/core/heap.h"
#include "ferro/core/heap_blocks.h"

#include <algorithm>
#include <set>

namespace ferro {
namespace {

BlockView view_of(const Block& block) {
  return {block.ptr, block.size, block.requested, block.state,
          block.extra != nullptr ? block.extra->context : nullptr};
}

}  // namespace

bool Heap::has_pending() {
  const SpinLock lock(mutex_);
  return pending_.count() != 0;
}

bool Heap::has_recorded_uses() {
  const SpinLock lock(mutex_);
  bool found = false;
  for_each_block([&](const Block& block) {
    found = found || (block.state == BlockState::kLive && block.has_uses() &&
                      std::ranges::any_of(block.extra->uses, [](const StreamUse& use) {
                        return use.capture_id == 0;
                      }));
  });
  return found;
}

bool Heap::is_unused() {
  const SpinLock lock(mutex_);
  return pending_.count() == 0 && stats_.of[kAll].blocks.current.get() == 0;
}

bool Heap::is_empty() {
  const SpinLock lock(mutex_);
  return stale_.empty() && leftovers_.empty() &&
         std::ranges::all_of(
             spans_, [](const std::unique_ptr<Span>& span) { return span->backed_pages() == 0; });
}

Block* Heap::live_around(Span& span, DevicePtr ptr) {
  Block* block = block_around(span, ptr);
  return block->state == BlockState::kLive ? block : nullptr;
}

std::optional<BlockView> Heap::live_block_at(Span& span, DevicePtr ptr) {
  const SpinLock lock(mutex_);
  const Block* block = span.block_at(ptr);
  return block != nullptr && block->state == BlockState::kLive ? std::optional(view_of(*block))
                                                               : std::nullopt;
}

std::optional<BlockView> Heap::live_block_around(Span& span, DevicePtr ptr) {
  const SpinLock lock(mutex_);
  const Block* block = live_around(span, ptr);
  if (block == nullptr) {
    return std::nullopt;
  }
  return view_of(*block);
}

std::vector<SegmentView> Heap::segments() {
  const SpinLock lock(mutex_);
  // What a reader sees must not depend on what happened to be kept unmerged.
  merge_all();
  std::vector<SegmentView> segments;
  const auto first_context = [this](const SegmentView& segment) FERRO_REQUIRES(mutex_) {
    const auto found = mapped_by_.lower_bound(segment.ptr);
    const bool inside = found != mapped_by_.end() && found->first < segment.ptr + segment.size;
    return inside ? found->second : nullptr;
  };
  for (const std::unique_ptr<Span>& span : spans_) {
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

std::vector<BlockView> Heap::live_blocks() {
  const SpinLock lock(mutex_);
  std::vector<BlockView> live;
  for_each_block([&](const Block& block) {
    if (block.state == BlockState::kLive) {
      live.push_back(view_of(block));
    }
  });
  return live;
}

HeapView Heap::view() {
  const SpinLock lock(mutex_);
  merge_all();
  HeapView view;
  for_each_block([&](const Block& block) {
    view.backed_bytes += block.is_backed() ? block.size : 0;
    view.pending_bytes += block.state == BlockState::kPending ? block.size : 0;
    view.live_blocks += block.state == BlockState::kLive ? 1 : 0;
    if (block.is_free()) {
      ++view.free_blocks;
      view.free_bytes += block.size;
      view.largest_free = std::max(view.largest_free, block.size);
    }
  });
  if (is_paged(kind_)) {
    for (const std::vector<Hole>& holes : {holes(), free_exports()}) {
      for (const Hole& hole : holes) {
        view.whole_free_page_bytes += hole.run.bytes;
      }
    }
  }
  return view;
}

std::size_t Heap::pages_missing_for(const Request& request) {
  const SpinLock lock(mutex_);
  collect_locked();
  merge_all();
  if (free_.best_fit(request.size) != nullptr) {
    return 0;
  }
  std::vector<Block*> gaps;
  const std::optional<GrowthPlan> growth = plan(request, 0, gaps);
  const std::size_t wanted = growth ? growth->pages : ceil_div(request.size, page_bytes_);
  // Where the line needs another span, no free block touches the gap.
  const Block elsewhere{};
  const std::size_t moved =
      pages_in(pages_to_move(growth ? gaps[growth->gap] : &elsewhere, wanted));
  return wanted - std::min(wanted, moved);
}

void Heap::check_exports() {
  if (!is_paged(kind_)) {
    FERRO_CHECK(exported_.empty());
    return;
  }
  DevicePtr end{};
  for (const auto& [begin, unit] : exported_) {
    const Span* span = context_.addresses.find(begin);
    FERRO_CHECK(span != nullptr && span->heap() == this && unit.pages > 0 && begin >= end);
    for (std::size_t i = 0; i < unit.pages; ++i) {
      FERRO_CHECK(span->page(span->page_slot(begin) + i) == unit.handle);
    }
    FERRO_CHECK(unit.id == 0 || context_.exports.descriptor(unit.id) >= 0);
    FERRO_CHECK(unit.id != 0 || unit.pages > 1);
    end = begin + unit.pages * page_bytes_;
  }
  // A handle that was seen and left does not come again.
  std::set<PageHandle> handles;
  for (const std::unique_ptr<Span>& span : spans_) {
    PageHandle last = kNoPage;
    for (std::size_t slot = 0; slot < span->page_slots(); ++slot) {
      const PageHandle handle = span->page(slot);
      FERRO_CHECK(handle == kNoPage || handle == last || handles.insert(handle).second);
      last = handle;
    }
  }
}

void Heap::check_invariants() {
  const SpinLock lock(mutex_);
  check_exports();
  free_.check_invariants();
  unmerged_.check_invariants();
  pending_.check_invariants();

  struct Sums {
    std::size_t blocks = 0, backed_bytes = 0, free_blocks = 0, free_bytes = 0, unmerged_bytes = 0,
                pending_blocks = 0, pending_bytes = 0, stale_blocks = 0;
    std::array<std::int64_t, kStatClasses> live_blocks{}, live_bytes{}, requested{};
  } sum;
  std::size_t backed_pages = 0;
  std::size_t span_bytes = 0;
  for (const std::unique_ptr<Span>& owned : spans_) {
    const Span& span = *owned;
    span_bytes += span.bytes();
    DevicePtr expected = span.base();
    const Block* prev = nullptr;
    for (const Block* block = span.first; block != nullptr; prev = block, block = block->next) {
      FERRO_CHECK(block->ptr == expected && block->prev == prev && block->span == &span);
      FERRO_CHECK(block->size > 0 && is_aligned(block->size, kBlockAlignment));
      FERRO_CHECK(span.block_at(block->ptr) == block);
      FERRO_CHECK(context_.addresses.find(block->ptr) == &span);
      const bool backed = block->is_backed();
      FERRO_CHECK(prev == nullptr || prev->state != block->state ||
                  (block->state != BlockState::kGap && block->state != BlockState::kFree));
      FERRO_CHECK(backed || is_paged(kind_));
      FERRO_CHECK(backed || (is_aligned(address_of(block->ptr), page_bytes_) &&
                             is_aligned(block->size, page_bytes_)));
      for (std::size_t slot = span.page_slot(block->ptr);
           slot <= span.page_slot(block->ptr + (block->size - 1)); ++slot) {
        FERRO_CHECK((span.page(slot) != kNoPage) == backed);
      }
      const auto size = static_cast<std::int64_t>(block->size);
      ++sum.blocks;
      sum.backed_bytes += backed ? block->size : 0;
      sum.stale_blocks += block->state == BlockState::kStale ? 1 : 0;
      switch (block->state) {
        case BlockState::kGap:
        case BlockState::kStale:
          break;
        case BlockState::kFree:
          ++sum.free_blocks;
          sum.free_bytes += block->size;
          break;
        case BlockState::kUnmerged:
          sum.unmerged_bytes += block->size;
          break;
        case BlockState::kLive:
        case BlockState::kPending: {
          const bool live = block->state == BlockState::kLive;
          for (const StatClass cls : {kAll, HeapStats::class_of(block->size)}) {
            sum.live_blocks[cls] += live ? 1 : 0;
            sum.live_bytes[cls] += live ? size : 0;
            sum.requested[cls] += static_cast<std::int64_t>(block->requested);
          }
          sum.pending_blocks += live ? 0 : 1;
          sum.pending_bytes += live ? 0 : block->size;
          break;
        }
      }
      expected = block->end();
    }
    FERRO_CHECK(expected == span.base() + span.bytes());
    backed_pages += span.backed_pages();
  }
  FERRO_CHECK(sum.blocks == blocks_.in_use());
  FERRO_CHECK(sum.backed_bytes == (is_paged(kind_) ? backed_pages * page_bytes_ : span_bytes));
  FERRO_CHECK(sum.free_blocks == free_.count() && sum.free_bytes == free_.bytes());
  FERRO_CHECK(sum.unmerged_bytes == unmerged_.bytes());
  FERRO_CHECK(sum.pending_blocks == pending_.count());
  for (const StaleBatch& batch : stale_) {
    sum.stale_blocks -= batch.blocks.size();
  }
  FERRO_CHECK(sum.stale_blocks == 0);
  for (const StatClass cls : {kAll, kSmall, kLarge}) {
    const ClassStats& stats = stats_.of[cls];
    FERRO_CHECK(stats.blocks.current.get() == sum.live_blocks[cls]);
    FERRO_CHECK(stats.bytes.current.get() == sum.live_bytes[cls]);
    FERRO_CHECK(stats.requested.current.get() == sum.requested[cls]);
  }
  FERRO_CHECK(stats_.of[kAll].pending_bytes.current.get() ==
              static_cast<std::int64_t>(sum.pending_bytes));
}

}  // namespace ferro
