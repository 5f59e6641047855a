// Pages that leave their place: moved on the line of a heap, or given back to the store.
#include "ferro/core/heap.h"
#include "ferro/core/heap_blocks.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace ferro {

// The range lies in the free block `block`, or in what was a part of it when the caller looked. What
// is left on both sides stays free; the cut-out block is in no index and its state is the caller's
// to set.
Block* Heap::cut_out(Block* block, DevicePtr begin, std::size_t bytes) {
  while (block->end() <= begin) {
    block = block->next;
  }
  free_.remove(block);
  Block* cut = block;
  if (block->ptr < begin) {
    split_tail(block, distance(block->ptr, begin), BlockState::kFree);
    insert_free(block);
    cut = block->next;
  }
  if (cut->size > bytes) {
    split_tail(cut, bytes, BlockState::kFree);
    insert_free(cut->next);
  }
  return cut;
}

void Heap::turn_into_gap(Block* block) {
  block->state = BlockState::kGap;
  if (block->next != nullptr && block->next->state == BlockState::kGap) {
    absorb_next(block);
  }
  if (block->prev != nullptr && block->prev->state == BlockState::kGap) {
    absorb_next(block->prev);
  }
}

std::vector<PageHandle> Heap::take_pages_behind(Span& span, const PageRun& run) {
  std::vector<PageHandle> pages;
  const std::size_t first = span.page_slot(run.begin);
  for (std::size_t i = 0; i < run.bytes / page_bytes_; ++i) {
    pages.push_back(span.page(first + i));
    span.set_page(first + i, kNoPage);
  }
  return pages;
}

// Without handles that lie in the run in part.
PageRun Heap::whole_handles_inside(const Span& span, PageRun run) const {
  std::size_t first = span.page_slot(run.begin);
  std::size_t end = first + run.bytes / page_bytes_;
  if (span.handle_begin(first) != first) {
    first = std::min(span.handle_end(first), end);
  }
  if (span.handle_end(end - 1) != end) {
    end = std::max(span.handle_begin(end - 1), first);
  }
  return {span.base() + first * page_bytes_, (end - first) * page_bytes_};
}

HoleView Heap::handles_of(const Hole& hole) const {
  HoleView view;
  const std::vector<PageHandle> pages = pages_behind({hole});
  view.pages = pages.size();
  for (std::span<const PageHandle> rest = pages; !rest.empty();) {
    view.handles.push_back(pages_of_handle(rest));
    rest = rest.subspan(view.handles.back());
  }
  return view;
}

// The last `pages` of a hole.
Heap::Hole Heap::end_of(const Hole& hole, std::size_t pages) const {
  const std::size_t bytes = pages * page_bytes_;
  return {hole.block, {hole.run.begin + (hole.run.bytes - bytes), bytes}};
}

// The whole free handles of the line that are not pinned, in order of address.
std::vector<Heap::Hole> Heap::holes() {
  std::vector<Hole> whole;
  for_each_block([&](Block& block) {
    if (block.is_free()) {
      if (const auto run = whole_pages_inside(block.ptr, block.size, page_bytes_)) {
        if (const PageRun handles = whole_handles_inside(*block.span, *run); handles.bytes != 0) {
          whole.push_back({&block, handles});
        }
      }
    }
  });
  if (exported_.empty()) {
    return whole;
  }
  std::vector<Hole> unpinned;
  for (const Hole& hole : whole) {
    append_unpinned(hole, unpinned);
  }
  return unpinned;
}

// `wanted` pages, or what there is, from holes that do not touch `gap`; the last handle may bring
// more. Only in the default pool: graphs replay on the pages of private ones, also on those that
// carry no live block.
std::vector<Heap::Hole> Heap::pages_to_move(const Block* gap, std::size_t wanted) {
  if (pool_ != kDefaultPool) {
    return {};
  }
  std::vector<Hole> candidates = holes();
  std::erase_if(candidates, [gap](const Hole& hole) {
    return hole.block == gap->prev || hole.block == gap->next;
  });
  // While the stream captures, a fence on it would become part of the graph.
  if (candidates.empty() || is_capturing()) {
    return {};
  }
  return choose(candidates, wanted);
}

std::vector<Heap::Hole> Heap::choose(const std::vector<Hole>& candidates,
                                     std::size_t wanted) const {
  std::vector<HoleView> views;
  views.reserve(candidates.size());
  for (const Hole& hole : candidates) {
    views.push_back(handles_of(hole));
  }
  std::vector<Hole> chosen;
  for (const HoleShare& share : plan_moves(views, wanted)) {
    chosen.push_back(end_of(candidates[share.hole], share.pages));
  }
  return chosen;
}

std::size_t Heap::pages_in(const std::vector<Hole>& holes) const {
  std::size_t pages = 0;
  for (const Hole& hole : holes) {
    pages += hole.run.bytes / page_bytes_;
  }
  return pages;
}

std::vector<PageHandle> Heap::pages_behind(const std::vector<Hole>& chosen) const {
  std::vector<PageHandle> pages;
  for (const Hole& hole : chosen) {
    const Span& span = *hole.block->span;
    const std::size_t first = span.page_slot(hole.run.begin);
    for (std::size_t i = 0; i < hole.run.bytes / page_bytes_; ++i) {
      pages.push_back(span.page(first + i));
    }
  }
  return pages;
}

// The pages of `moved` are behind other addresses now. Work before `fence` may still use the old
// ones, so their mappings stay until it is done.
void Heap::leave_behind(const std::vector<Hole>& moved, EventId fence, const char* reason,
                        const CallContext& context) {
  if (moved.empty()) {
    return;
  }
  StaleBatch batch{fence, {}};
  for (const Hole& hole : moved) {
    tell_of_range(hole.run.begin, hole.run.bytes, MemoryEvent::kUnmapped, context,
                  {.reason = reason});
    forget_mapping(hole.run.begin, hole.run.bytes);
    take_pages_behind(*hole.block->span, hole.run);
    Block* stale = cut_out(hole.block, hole.run.begin, hole.run.bytes);
    stale->state = BlockState::kStale;
    batch.blocks.push_back(stale);
  }
  stale_.push_back(std::move(batch));
}

void Heap::forget_mapping(DevicePtr begin, std::size_t bytes) {
  mapped_by_.erase(mapped_by_.lower_bound(begin), mapped_by_.lower_bound(begin + bytes));
}

// Removes old mappings whose fence has passed. Asks the driver, never waits.
void Heap::retire_stale() {
  while (!stale_.empty() && context_.driver.is_complete(stale_.front().fence)) {
    StaleBatch& batch = stale_.front();
    while (!batch.blocks.empty()) {
      Block* block = batch.blocks.back();
      if (!context_.driver.unmap(block->ptr, block->size)) {
        return;
      }
      batch.blocks.pop_back();
      turn_into_gap(block);
    }
    context_.events.put(batch.fence);
    stale_.pop_front();
  }
}

bool Heap::retire_mappings() {
  const SpinLock lock(mutex_);
  retire_stale();
  return stale_.empty();
}

std::vector<PageHandle> Heap::lend_pages(std::size_t pages, StreamId to,
                                         const CallContext& context) {
  if (!passes_pages()) {
    return {};
  }
  const SpinLock lock(mutex_);
  merge_all();
  // Nothing is retired here: an earlier loan to the same request may have to come back.
  const std::vector<Hole> chosen = choose(holes(), pages);
  if (chosen.empty() || is_capturing()) {
    return {};
  }
  const EventId fence = record_fence();
  if (fence == kNoEvent) {
    return {};
  }
  bool ordered = false;
  try {
    ordered = context_.driver.order_behind(fence, to);
  } catch (...) {
    context_.events.put(fence);
    throw;
  }
  if (!ordered) {
    context_.events.put(fence);
    return {};
  }
  std::vector<PageHandle> lent = pages_behind(chosen);
  leave_behind(chosen, fence, "lent", context);
  return lent;
}

std::size_t Heap::lendable_pages() {
  const SpinLock lock(mutex_);
  if (!passes_pages() || is_capturing()) {
    return 0;
  }
  merge_all();
  return pages_in(holes());
}

void Heap::take_back(std::span<const PageHandle> lent) {
  const SpinLock lock(mutex_);
  StaleBatch& batch = stale_.back();
  while (!lent.empty()) {
    Block* block = batch.blocks.back();
    const std::size_t count = std::min(lent.size(), block->size / page_bytes_);
    if (const std::size_t kept = block->size - count * page_bytes_; kept != 0) {
      split_tail(block, kept, BlockState::kStale);
      block = block->next;
    } else {
      batch.blocks.pop_back();
    }
    std::size_t slot = block->span->page_slot(block->ptr);
    for (const PageHandle page : lent.last(count)) {
      block->span->set_page(slot++, page);
    }
    lent = lent.first(lent.size() - count);
    tell_of_range(block->ptr, block->size, MemoryEvent::kMapped, nullptr, {.reason = "put_back"});
    block->state = BlockState::kFree;
    free_.insert(merge_neighbours(block));
  }
  if (batch.blocks.empty()) {
    context_.events.put(batch.fence);
    stale_.pop_back();
  }
}

void Heap::order_pending() {
  const SpinLock lock(mutex_);
  while (stream_lasts() && order_one(0)) {
  }
}

bool Heap::is_capturing() {
  return context_.driver.capture_info(stream_).status != CaptureStatus::kNone;
}

// Blocks used by other streams have waited for those when they became free, so a fence on the
// heap's own stream covers all uses of its free memory.
EventId Heap::record_fence() {
  const EventId fence = context_.events.take();
  try {
    if (context_.driver.record(fence, stream_)) {
      return fence;
    }
  } catch (...) {
    context_.events.put(fence);
    throw;
  }
  context_.events.put(fence);
  return kNoEvent;
}

// False while a capture forbids to wait.
bool Heap::wait_for_last_uses() {
  if (pool_ != kDefaultPool || !stream_lasts()) {
    if (context_.captures.load(std::memory_order_relaxed) != 0) {
      return false;
    }
    context_.driver.wait_for_device();
    return true;
  }
  if (is_capturing()) {
    return false;
  }
  const EventId fence = record_fence();
  if (fence == kNoEvent) {
    return false;
  }
  try {
    context_.driver.wait(fence);
  } catch (...) {
    context_.events.put(fence);
    throw;
  }
  context_.events.put(fence);
  return true;
}

// Turns free memory, of which the host has seen the last use, into a gap. The handles that were
// behind it; none when the driver refused.
std::vector<PageHandle> Heap::take_out(const Hole& hole, const CallContext& context) {
  const PageRun& run = hole.run;
  // Told first: who registered the range with a device must let go of it while it is there.
  tell_of_range(run.begin, run.bytes, MemoryEvent::kUnmapped, context, {.reason = "given_back"});
  if (!context_.driver.unmap(run.begin, run.bytes)) {
    tell_of_range(run.begin, run.bytes, MemoryEvent::kMapped, context, {.reason = "put_back"});
    return {};
  }
  forget_mapping(run.begin, run.bytes);
  std::vector<PageHandle> pages = take_pages_behind(*hole.block->span, run);
  turn_into_gap(cut_out(hole.block, run.begin, run.bytes));
  count_pool_bytes(kLarge, -static_cast<std::int64_t>(run.bytes));
  return pages;
}

std::size_t Heap::give_back_pages(std::size_t wanted, const CallContext& context) {
  if (!is_paged(kind_)) {
    return 0;
  }
  const SpinLock lock(mutex_);
  collect_locked();
  merge_all();
  drop_leftovers();
  std::vector<Hole> candidates = holes();
  std::ranges::move(free_exports(), std::back_inserter(candidates));
  std::ranges::sort(candidates, {}, [](const Hole& hole) { return hole.run.begin; });
  if (wanted == 0 || (candidates.empty() && stale_.empty()) || !wait_for_last_uses()) {
    return 0;
  }
  return give_back(candidates, wanted, context);
}

// No free page of the heap is in use by work that was given to the device.
bool Heap::is_at_rest() {
  if (!passes_pages() || context_.captures.load(std::memory_order_relaxed) != 0) {
    return false;
  }
  collect_locked();
  merge_all();
  const Block* largest = free_.largest();
  return largest != nullptr && largest->size >= page_bytes_ && context_.driver.is_idle(stream_);
}

std::size_t Heap::give_back_at_rest(std::size_t wanted, const CallContext& context) {
  const SpinLock lock(mutex_);
  return is_at_rest() ? give_back(holes(), wanted, context) : 0;
}

std::size_t Heap::pages_at_rest() {
  const SpinLock lock(mutex_);
  return is_at_rest() ? pages_in(holes()) : 0;
}

// No work of the device uses what is free. `candidates` in order of address.
std::size_t Heap::give_back(const std::vector<Hole>& candidates, std::size_t wanted,
                            const CallContext& context) {
  // A page leaves the heap without any mapping left.
  retire_stale();
  if (!stale_.empty()) {
    return 0;
  }
  std::size_t given = 0;
  // From the far end of the line, where large requests will ask for room again last.
  for (auto it = candidates.rbegin(); it != candidates.rend() && given < wanted; ++it) {
    if (exported_.contains(it->run.begin)) {
      if (!give_back_export(*it, context)) {
        break;
      }
      given += it->run.bytes / page_bytes_;
      continue;
    }
    const std::size_t share = pages_at_end(handles_of(*it), wanted - given);
    const std::vector<PageHandle> pages = take_out(end_of(*it, share), context);
    if (pages.empty()) {
      break;
    }
    context_.store.put(pages);
    given += pages.size();
  }
  return given;
}

}  // namespace ferro
