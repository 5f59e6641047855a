#include "ferro/core/blocks/block_tiling.h"

#include "ferro/base/bytes.h"
#include "ferro/base/check.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace ferro {
Block* BlockTiling::add_span(std::unique_ptr<Span> span) {
  Block* block = blocks_.make();
  block->ptr = span->base();
  block->size = span->bytes();
  block->span = span.get();
  span->first = block;
  span->set_block(block->ptr, block);
  reserved_bytes_ += span->bytes();
  backed_pages_ += span->backed_pages();
  spans_.emplace(span->base(), std::move(span));
  return block;
}

std::unique_ptr<Span> BlockTiling::remove_span(Span& span) {
  FERRO_CHECK(span.first->next == nullptr);
  reserved_bytes_ -= span.bytes();
  backed_pages_ -= span.backed_pages();
  blocks_.recycle(std::exchange(span.first, nullptr));
  return std::move(spans_.extract(span.base()).mapped());
}

Span* BlockTiling::span_around(DevicePtr ptr) const {
  const auto after = spans_.upper_bound(ptr);
  if (after == spans_.begin()) {
    return nullptr;
  }
  Span* span = std::prev(after)->second.get();
  return ptr < span->base() + span->bytes() ? span : nullptr;
}

void BlockTiling::insert(Block* block) {
  // With many blocks both neighbours are in no cache: their reads overlap.
  __builtin_prefetch(block->prev);
  __builtin_prefetch(block->next);
  block->state = BlockState::kFree;
  block = merge_neighbours(block, [this](Block* neighbour) { free_.remove(neighbour); });
  free_.insert(block);
  page_was_freed_ = page_was_freed_ || block->size >= page_bytes_;
}

void BlockTiling::put_unchanged(Block* block) {
  block->state = BlockState::kFree;
  free_.insert(block);
}

// Merges a block with its neighbours of the same state, after `leave_index(neighbour)` of each.
template <typename LeaveIndex>
Block* BlockTiling::merge_neighbours(Block* block, LeaveIndex leave_index) {
  if (block->next != nullptr && block->next->state == block->state) {
    leave_index(block->next);
    absorb_next(block);
  }
  if (block->prev != nullptr && block->prev->state == block->state) {
    block = block->prev;
    leave_index(block);
    absorb_next(block);
  }
  return block;
}

void BlockTiling::absorb_next(Block* block) {
  Block* gone = block->next;
  block->size += gone->size;
  block->freed = std::max(block->freed, gone->freed);
  block->next = gone->next;
  if (gone->next != nullptr) {
    gone->next->prev = block;
  }
  block->span->set_block(gone->ptr, nullptr);
  blocks_.recycle(gone);
}

void BlockTiling::split_tail(Block* block, std::size_t size, BlockState tail_state) {
  Block* tail = blocks_.make();
  tail->ptr = block->ptr + size;
  tail->size = block->size - size;
  tail->span = block->span;
  tail->state = tail_state;
  tail->freed = block->freed;
  tail->prev = block;
  tail->next = block->next;
  if (tail->next != nullptr) {
    tail->next->prev = tail;
  }
  block->next = tail;
  block->size = size;
  block->span->set_block(tail->ptr, tail);
}

Block* BlockTiling::cut(Block* block, DevicePtr begin, std::size_t bytes) {
  while (block->end() <= begin) {
    block = block->next;
  }
  free_.remove(block);
  Block* range = block;
  if (block->ptr < begin) {
    split_tail(block, distance(block->ptr, begin), BlockState::kFree);
    put_unchanged(block);
    range = block->next;
  }
  if (range->size > bytes) {
    split_tail(range, bytes, BlockState::kFree);
    put_unchanged(range->next);
  }
  return range;
}

void BlockTiling::make_gap(Block* block) {
  block->state = BlockState::kGap;
  gaps_.insert(merge_neighbours(block, [this](Block* neighbour) { gaps_.remove(neighbour); }));
}

GapView view_of_gap(const Block& gap) {
  const auto free_size = [](const Block* neighbour) {
    return neighbour != nullptr && neighbour->is_free() ? neighbour->size : std::size_t{0};
  };
  return {gap.size, free_size(gap.prev), free_size(gap.next)};
}

std::vector<Block*> BlockTiling::growth_candidates(std::size_t request, std::size_t spare) const {
  std::vector<Block*> gaps;
  if (gaps_.count() <= kMaxCandidates) {
    gaps_.for_each([&](Block* gap) { gaps.push_back(gap); });
    return gaps;
  }
  const std::size_t pages = ceil_div(request, page_bytes_) + spare;
  if (Block* gap = gaps_.first_fit(pages * page_bytes_)) {
    gaps.push_back(gap);
  }
  std::size_t seen = 0;
  free_.descend([&](const Block* block) {
    for (Block* neighbour : {block->prev, block->next}) {
      if (neighbour != nullptr && neighbour->state == BlockState::kGap) {
        gaps.push_back(neighbour);
      }
    }
    return ++seen < kMaxCandidates;
  });
  std::ranges::sort(gaps, {}, &Block::ptr);
  gaps.erase(std::unique(gaps.begin(), gaps.end()), gaps.end());
  return gaps;
}

// Excludes handles that lie only partly in the run.
PageRun BlockTiling::whole_handles_inside(const Span& span, PageRun run) const {
  std::size_t first = span.page_slot(run.begin);
  std::size_t end = first + run.bytes / page_bytes_;
  if (span.handle_begin(first) != first) {
    first = std::min(span.handle_end(first), end);
  }
  if (first < end && span.handle_end(end - 1) != end) {
    end = std::max(span.handle_begin(end - 1), first);
  }
  return {span.base() + first * page_bytes_, (end - first) * page_bytes_};
}

std::vector<HandleRange> BlockTiling::handles_behind(const Span& span, const PageRun& run) const {
  std::vector<HandleRange> handles;
  const std::size_t first = span.page_slot(run.begin);
  const std::size_t end = first + run.bytes / page_bytes_;
  for (std::size_t slot = first; slot < end; slot = span.handle_end(slot)) {
    handles.push_back({span.page(slot), span.handle_end(slot) - slot});
  }
  return handles;
}

void BlockTiling::back(Span& span, DevicePtr begin, std::span<const HandleRange> handles,
                       Owner owner) {
  const bool borrowed = owner == Owner::kScratchSet;
  std::size_t slot = span.page_slot(begin);
  for (const HandleRange& range : handles) {
    span.put_handle(slot, range.handle, range.pages, borrowed);
    slot += range.pages;
    backed_pages_ += range.pages;
    scratch_.borrowed_pages += borrowed ? range.pages : 0;
  }
}

void BlockTiling::keep(Span& span, DevicePtr begin) {
  const std::size_t slot = span.page_slot(begin);
  scratch_.borrowed_pages -= span.handle_end(slot) - slot;
  span.keep_handle(slot);
}

Block* BlockTiling::retire(Block* block) {
  block->state = BlockState::kRetired;
  scratch_.retired_bytes += block->size;
  return merge_neighbours(block, [](Block* /*neighbour*/) {});
}

// Cuts off what of a block, which is in no index, lies outside of a range; the rest keeps its state.
Block* BlockTiling::cut_unindexed(Block* block, DevicePtr begin, DevicePtr end) {
  if (block->ptr < begin) {
    split_tail(block, distance(block->ptr, begin), block->state);
    block = block->next;
  }
  if (block->end() > end) {
    split_tail(block, distance(block->ptr, end), block->state);
  }
  return block;
}

Block* BlockTiling::cut_retired(Block* block, DevicePtr begin, std::size_t bytes) {
  scratch_.retired_bytes -= bytes;
  return cut_unindexed(block, begin, begin + bytes);
}

PageHandle BlockTiling::put_to_sleep(Span& span, DevicePtr begin, std::vector<PageRun>* retired) {
  const DevicePtr end = handle_end(span, begin);
  for (Block* block = span.block_around(begin); block != nullptr && block->ptr < end;
       block = block->next) {
    const DevicePtr first = std::max(block->ptr, begin);
    const std::size_t bytes = distance(first, std::min(block->end(), end));
    if (block->is_free()) {
      block = cut(block, first, bytes);
      mark_asleep(block);
    } else if (block->state == BlockState::kRetired) {
      block = cut_retired(block, first, bytes);
      mark_asleep(block);
      retired->push_back({first, bytes});
    }
  }
  sleep_.pages += distance(begin, end) / page_bytes_;
  return span.put_to_sleep(span.page_slot(begin));
}

void BlockTiling::wake(Span& span, DevicePtr begin, std::span<const HandleRange> handles,
                       std::span<const PageRun> retired) {
  const DevicePtr end = handle_end(span, begin);
  unback(span, {begin, distance(begin, end)});
  back(span, begin, handles);
  std::vector<Block*> woken;
  for (Block* block = span.block_around(begin); block != nullptr && block->ptr < end;
       block = block->next) {
    if (block->state == BlockState::kAsleep) {
      block = cut_unindexed(block, begin, end);
      sleep_.free_bytes -= block->size;
      woken.push_back(block);
    }
  }
  // A retired part is a block of its own since it was put to sleep.
  for (Block* block : woken) {
    const bool was_retired =
        std::ranges::find(retired, block->ptr, &PageRun::begin) != retired.end();
    if (was_retired) {
      retire(block);
    } else {
      insert(block);
    }
  }
}

void BlockTiling::free_asleep(Block* block) {
  const Span& span = *block->span;
  const DevicePtr end = block->end();
  while (true) {
    const std::size_t slot = span.page_slot(block->ptr);
    const bool asleep = span.is_asleep(slot);
    DevicePtr until = handle_end(span, block->ptr);
    while (until < end && span.is_asleep(span.page_slot(until)) == asleep) {
      until = handle_end(span, until);
    }
    const bool is_last = until >= end;
    if (!is_last) {
      split_tail(block, distance(block->ptr, until), block->state);
    }
    Block* next = block->next;
    if (asleep) {
      mark_asleep(block);
    } else {
      insert(block);
    }
    if (is_last) {
      return;
    }
    block = next;
  }
}

Block* BlockTiling::forget_asleep(Span& span, DevicePtr begin) {
  const DevicePtr end = handle_end(span, begin);
  unback(span, {begin, distance(begin, end)});
  Block* block = cut_unindexed(span.block_around(begin), begin, end);
  while (block->end() < end) {
    cut_unindexed(block->next, begin, end);
    absorb_next(block);
  }
  sleep_.free_bytes -= block->size;
  return block;
}

void BlockTiling::mark_asleep(Block* block) {
  block->state = BlockState::kAsleep;
  sleep_.free_bytes += block->size;
}

bool BlockTiling::is_asleep(const Block& block) const {
  if (sleep_.pages == 0) {
    return false;
  }
  const Span& span = *block.span;
  const std::size_t last = span.page_slot(block.ptr + (block.size - 1));
  for (std::size_t slot = span.page_slot(block.ptr); slot <= last; slot = span.handle_end(slot)) {
    if (span.is_asleep(slot)) {
      return true;
    }
  }
  return false;
}

void BlockTiling::unretire_all() {
  std::vector<Block*> retired;
  for_each_block([&](Block& block) {
    if (block.state == BlockState::kRetired) {
      retired.push_back(&block);
    }
  });
  for (Block* block : retired) {
    scratch_.retired_bytes -= block->size;
    insert(block);
  }
}

void BlockTiling::unback(Span& span, const PageRun& run) {
  const std::size_t first = span.page_slot(run.begin);
  const std::size_t end = first + run.bytes / page_bytes_;
  for (std::size_t slot = first; slot < end;) {
    const std::size_t next = span.handle_end(slot);
    scratch_.borrowed_pages -= span.is_borrowed(slot) ? next - slot : 0;
    sleep_.pages -= span.is_asleep(slot) ? next - slot : 0;
    span.remove_handle(slot);
    slot = next;
  }
  backed_pages_ -= end - first;
}

void BlockTiling::check_invariants() const {
  free_.check_invariants();
  gaps_.check_invariants();
  std::size_t blocks = 0;
  std::size_t free_blocks = 0;
  std::size_t gaps = 0;
  std::size_t reserved = 0;
  std::size_t backed = 0;
  std::size_t borrowed = 0;
  std::size_t retired = 0;
  std::size_t asleep = 0;
  std::size_t asleep_free = 0;
  for (const auto& [base, owned] : spans_) {
    const Span& span = *owned;
    FERRO_CHECK(base == span.base());
    reserved += span.bytes();
    backed += span.backed_pages();
    for (std::size_t slot = 0; scratch_.borrowed_pages != 0 && slot < span.page_slots(); ++slot) {
      borrowed += span.page(slot) != kNoPage && span.is_borrowed(slot) ? 1 : 0;
    }
    for (std::size_t slot = 0; sleep_.pages != 0 && slot < span.page_slots(); ++slot) {
      asleep += span.is_asleep(slot) ? 1 : 0;
    }
    DevicePtr expected = span.base();
    const Block* prev = nullptr;
    for (const Block* block = span.first; block != nullptr; prev = block, block = block->next) {
      FERRO_CHECK(block->ptr == expected && block->prev == prev && block->span == &span);
      FERRO_CHECK(block->size > 0 && is_aligned(block->size, kBlockAlignment));
      FERRO_CHECK(span.block_at(block->ptr) == block);
      FERRO_CHECK(prev == nullptr || prev->state != block->state ||
                  (block->state != BlockState::kGap && block->state != BlockState::kFree &&
                   block->state != BlockState::kRetired));
      retired += block->state == BlockState::kRetired ? block->size : 0;
      asleep_free += block->state == BlockState::kAsleep ? block->size : 0;
      check_sleep(*block);
      ++blocks;
      free_blocks += block->is_free() ? 1 : 0;
      gaps += block->state == BlockState::kGap ? 1 : 0;
      expected = block->end();
    }
    FERRO_CHECK(expected == span.base() + span.bytes());
  }
  FERRO_CHECK(blocks == blocks_.in_use());
  FERRO_CHECK(free_blocks == free_.count());
  FERRO_CHECK(gaps == gaps_.count());
  FERRO_CHECK(reserved == reserved_bytes_ && backed == backed_pages_);
  FERRO_CHECK(borrowed == scratch_.borrowed_pages && retired == scratch_.retired_bytes);
  FERRO_CHECK(asleep == sleep_.pages && asleep_free == sleep_.free_bytes);
}

void BlockTiling::check_sleep(const Block& block) const {
  if (block.state == BlockState::kAsleep) {
    const Span& span = *block.span;
    const std::size_t last = span.page_slot(block.ptr + (block.size - 1));
    for (std::size_t slot = span.page_slot(block.ptr); slot <= last; ++slot) {
      FERRO_CHECK(span.is_asleep(slot));
    }
  } else if (block.state != BlockState::kLive && block.state != BlockState::kPending &&
             block.is_backed()) {
    FERRO_CHECK(!is_asleep(block));
  }
}

}  // namespace ferro
