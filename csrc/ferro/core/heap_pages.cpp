// Pages and addresses of a heap: how its line grows and gives back.
#include "ferro/base/check.h"
#include "ferro/core/heap.h"
#include "ferro/core/heap_blocks.h"

#include <algorithm>
#include <atomic>

namespace ferro {
namespace {

std::atomic<std::uint64_t> spans_reserved{0};

}  // namespace

Heap::Heap(const HeapContext& context, PoolId pool, StreamId stream)
    : context_(context),
      pool_(pool),
      stream_(stream),
      page_bytes_(context.store.page_bytes()),
      pending_(context.driver, context.events) {
  context_.stats.add_heap(&stats_);
}

Heap::~Heap() FERRO_NO_THREAD_SAFETY_ANALYSIS {
  context_.stats.remove_heap(&stats_);
  for (const NumberedSpan& numbered : spans_) {
    context_.addresses.remove(numbered.span.get());
    context_.driver.unreserve(numbered.span->base(), numbered.span->bytes());
  }
}

// Null when the address space is exhausted.
Span* Heap::add_span(std::size_t at_least) {
  const std::size_t shortest = align_up(at_least, kSpanAlignment);
  std::size_t bytes = std::max(context_.span_bytes, shortest);
  std::optional<DevicePtr> base = context_.driver.reserve(bytes, kSpanAlignment);
  if (!base && bytes > shortest) {
    bytes = shortest;
    base = context_.driver.reserve(bytes, kSpanAlignment);
  }
  if (!base) {
    return nullptr;
  }
  FERRO_CHECK(is_aligned(address_of(*base), kSpanAlignment));
  std::unique_ptr<Span> span;
  try {
    span = std::make_unique<Span>(*base, bytes, page_bytes_, this);
  } catch (...) {
    context_.driver.unreserve(*base, bytes);
    throw;
  }
  if (!context_.addresses.add(span.get())) {
    context_.driver.unreserve(*base, bytes);
    return nullptr;
  }
  Block* gap = blocks_.make();
  gap->ptr = *base;
  gap->size = bytes;
  gap->span = span.get();
  gap->state = BlockState::kGap;
  span->first = gap;
  span->set_block(gap->ptr, gap);
  const auto place = std::find_if(spans_.begin(), spans_.end(), [&](const NumberedSpan& other) {
    return other.span->base() > *base;
  });
  const std::uint64_t number = spans_reserved.fetch_add(1, std::memory_order_relaxed);
  return spans_.insert(place, {number, std::move(span)})->span.get();
}

// Undoes add_span for a span that is one gap; null does nothing.
void Heap::drop_span(const Span* unused) {
  if (unused == nullptr) {
    return;
  }
  FERRO_CHECK(unused->backed_pages() == 0 && unused->first->next == nullptr);
  blocks_.recycle(unused->first);
  context_.addresses.remove(unused);
  context_.driver.unreserve(unused->base(), unused->bytes());
  std::erase_if(spans_, [&](const NumberedSpan& other) { return other.span.get() == unused; });
}

std::optional<GrowthPlan> Heap::plan(const Request& request, std::vector<Block*>& gaps) {
  gaps.clear();
  std::vector<GapView> views;
  for_each_block([&](Block& block) {
    if (block.state == BlockState::kGap) {
      const auto free_size = [](const Block* neighbour) {
        return neighbour != nullptr && neighbour->is_free() ? neighbour->size : std::size_t{0};
      };
      gaps.push_back(&block);
      views.push_back({block.size, free_size(block.prev), free_size(block.next)});
    }
  });
  return plan_growth(views, request.size, page_bytes_);
}

GrowResult Heap::allocate_grown(const Request& request, GrowFrom from, DevicePtr* out) {
  const SpinLock lock(mutex_);
  merge_all();
  retire_stale();
  if (from == GrowFrom::kOwnPages && holes().empty()) {
    return GrowResult::kTooFewPages;
  }
  std::vector<Block*> gaps;
  std::optional<GrowthPlan> growth = plan(request, gaps);
  const Span* new_span = nullptr;
  if (!growth) {
    new_span = add_span(request.size);
    if (new_span == nullptr) {
      return GrowResult::kOutOfMemory;
    }
    growth = plan(request, gaps);
    FERRO_CHECK(growth.has_value());
  }
  GrowResult result = GrowResult::kOutOfMemory;
  try {
    result = fill_gap(gaps[growth->gap], *growth, from);
  } catch (...) {
    drop_span(new_span);
    throw;
  }
  if (result != GrowResult::kGrown) {
    drop_span(new_span);
    return result;
  }
  *out = take_best_fit(request);
  FERRO_CHECK(*out != kNull);
  return GrowResult::kGrown;
}

GrowResult Heap::fill_gap(Block* gap, const GrowthPlan& plan, GrowFrom from) {
  const std::vector<Hole> moved = pages_to_move(gap, plan.pages);
  std::vector<PageHandle> pages;
  for (const Hole& hole : moved) {
    const Span& span = *hole.block->span;
    const std::size_t first = span.page_slot(hole.run.begin);
    for (std::size_t i = 0; i < hole.run.bytes / page_bytes_; ++i) {
      pages.push_back(span.page(first + i));
    }
  }
  std::vector<PageHandle> from_store;
  if (const std::size_t missing = plan.pages - pages.size(); missing != 0) {
    if (from == GrowFrom::kOwnPages) {
      return GrowResult::kTooFewPages;
    }
    if (from == GrowFrom::kIdlePages) {
      if (!context_.store.take_idle(missing, from_store)) {
        return GrowResult::kTooFewPages;
      }
    } else {
      switch (context_.store.take(missing, from_store)) {
        case TakeResult::kOverLimit:
          return GrowResult::kOverLimit;
        case TakeResult::kOutOfMemory:
          return GrowResult::kOutOfMemory;
        case TakeResult::kOk:
          break;
      }
    }
  }
  pages.insert(pages.end(), from_store.begin(), from_store.end());
  EventId fence = kNoEvent;
  const auto undo = [&]() FERRO_REQUIRES(mutex_) {
    context_.store.put(from_store);
    if (fence != kNoEvent) {
      context_.events.put(fence);
    }
  };
  Status backed = Status::kOutOfMemory;
  try {
    // Before the new mappings exist, so that a refusal has nothing to undo.
    fence = moved.empty() ? kNoEvent : record_fence();
    backed = back(*gap->span, gap->ptr + plan.first_page * page_bytes_, pages);
  } catch (const InternalError&) {
    // Some page may still be mapped: it must not be handed out again.
    throw;
  } catch (...) {
    undo();
    throw;
  }
  if (backed != Status::kOk) {
    undo();
    return GrowResult::kOutOfMemory;
  }
  leave_behind(moved, fence);
  turn_gap_into_free(gap, plan);
  return GrowResult::kGrown;
}

// Maps `pages` one after the other from `begin` on. On failure nothing is mapped there and the
// pages are still the caller's.
Status Heap::back(Span& span, DevicePtr begin, const std::vector<PageHandle>& pages) {
  Driver& driver = context_.driver;
  std::size_t mapped = 0;
  const auto undo = [&] {
    // A driver that refuses to remove what it has just mapped leaves pages that cannot be used
    // again. There is no state to return to, so say it instead of handing them out twice.
    FERRO_CHECK(mapped == 0 || driver.unmap(begin, mapped * page_bytes_),
                "the driver refused to remove new mappings after a failed call");
  };
  try {
    Status status = Status::kOk;
    while (mapped < pages.size() && status == Status::kOk) {
      status = driver.map(begin + mapped * page_bytes_, page_bytes_, pages[mapped]);
      mapped += status == Status::kOk ? 1 : 0;
    }
    if (status == Status::kOk) {
      status = driver.set_access(begin, pages.size() * page_bytes_);
    }
    if (status != Status::kOk) {
      undo();
      return status;
    }
  } catch (const InternalError&) {
    throw;
  } catch (...) {
    undo();
    throw;
  }
  const std::size_t first_slot = span.page_slot(begin);
  for (std::size_t i = 0; i < pages.size(); ++i) {
    span.set_page(first_slot + i, pages[i]);
  }
  return Status::kOk;
}

void Heap::turn_gap_into_free(Block* gap, const GrowthPlan& plan) {
  const std::size_t begin = plan.first_page * page_bytes_;
  const std::size_t bytes = plan.pages * page_bytes_;
  Block* backed = gap;
  if (begin > 0) {
    split_tail(gap, begin, BlockState::kGap);
    backed = gap->next;
  }
  if (backed->size > bytes) {
    split_tail(backed, bytes, BlockState::kGap);
  }
  backed->state = BlockState::kFree;
  free_.insert(merge_neighbours(backed));
}

// Takes `run` out of the free block that contains it. What is left on both sides stays free; the
// cut-out block is in no index and its state is the caller's to set.
Block* Heap::cut_out(Block* block, const PageRun& run) {
  free_.remove(block);
  Block* cut = block;
  if (block->ptr < run.begin) {
    split_tail(block, distance(block->ptr, run.begin), BlockState::kFree);
    free_.insert(block);
    cut = block->next;
  }
  if (cut->size > run.bytes) {
    split_tail(cut, run.bytes, BlockState::kFree);
    free_.insert(cut->next);
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

// The whole free pages of the line, in order of address.
std::vector<Heap::Hole> Heap::holes() {
  std::vector<Hole> holes;
  for_each_block([&](Block& block) {
    if (block.is_free()) {
      if (const auto run = whole_pages_inside(block.ptr, block.size, page_bytes_)) {
        holes.push_back({&block, *run});
      }
    }
  });
  return holes;
}

// At most `wanted` pages from holes that do not touch `gap`. Only in the default pool: graphs
// replay on the pages of private ones, also on those that carry no live block.
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
  std::vector<std::size_t> sizes;
  sizes.reserve(candidates.size());
  for (const Hole& hole : candidates) {
    sizes.push_back(hole.run.bytes / page_bytes_);
  }
  std::vector<Hole> chosen;
  for (const HoleShare& share : plan_moves(sizes, wanted)) {
    Hole hole = candidates[share.hole];
    const std::size_t bytes = share.pages * page_bytes_;
    hole.run.begin = hole.run.begin + (hole.run.bytes - bytes);
    hole.run.bytes = bytes;
    chosen.push_back(hole);
  }
  return chosen;
}

// The pages of `moved` are behind other addresses now. Work before `fence` may still use the old
// ones, so their mappings stay until it is done.
void Heap::leave_behind(const std::vector<Hole>& moved, EventId fence) {
  if (moved.empty()) {
    return;
  }
  StaleBatch batch{fence, {}};
  for (const Hole& hole : moved) {
    pages_moved_ += take_pages_behind(*hole.block->span, hole.run).size();
    Block* stale = cut_out(hole.block, hole.run);
    stale->state = BlockState::kStale;
    batch.blocks.push_back(stale);
  }
  stale_.push_back(std::move(batch));
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

bool Heap::is_capturing() {
  return context_.driver.capture_info(stream_).state != CaptureState::kNone;
}

// Blocks used by other streams have waited for those when they became free, so a fence on the
// heap's own stream covers all uses of its free memory.
EventId Heap::record_fence() {
  const EventId fence = context_.events.take();
  try {
    context_.driver.record(fence, stream_);
  } catch (...) {
    context_.events.put(fence);
    throw;
  }
  return fence;
}

// False while a capture forbids to wait.
bool Heap::wait_for_last_uses() {
  if (pool_ != kDefaultPool) {
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
  try {
    context_.driver.wait(fence);
  } catch (...) {
    context_.events.put(fence);
    throw;
  }
  context_.events.put(fence);
  return true;
}

std::size_t Heap::give_back_pages(std::size_t max_pages) {
  const SpinLock lock(mutex_);
  collect_locked();
  merge_all();
  std::vector<Hole> candidates = holes();
  if (max_pages == 0 || (candidates.empty() && stale_.empty()) || !wait_for_last_uses()) {
    return 0;
  }
  // A page leaves the heap without any mapping left.
  retire_stale();
  if (!stale_.empty()) {
    return 0;
  }
  std::size_t given = 0;
  // From the far end of the line, where large requests will ask for room again last.
  for (auto it = candidates.rbegin(); it != candidates.rend() && given < max_pages; ++it) {
    PageRun run = it->run;
    const std::size_t allowed = (max_pages - given) * page_bytes_;
    if (run.bytes > allowed) {
      run.begin = run.begin + (run.bytes - allowed);
      run.bytes = allowed;
    }
    if (!context_.driver.unmap(run.begin, run.bytes)) {
      break;
    }
    const std::vector<PageHandle> pages = take_pages_behind(*it->block->span, run);
    turn_into_gap(cut_out(it->block, run));
    context_.store.put(pages);
    given += pages.size();
  }
  return given;
}

}  // namespace ferro
