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
  std::vector<PageHandle> pages;
  if (from == GrowFrom::kIdlePages) {
    if (!context_.store.take_idle(plan.pages, pages)) {
      return GrowResult::kTooFewPages;
    }
  } else {
    switch (context_.store.take(plan.pages, pages)) {
      case TakeResult::kOverLimit:
        return GrowResult::kOverLimit;
      case TakeResult::kOutOfMemory:
        return GrowResult::kOutOfMemory;
      case TakeResult::kOk:
        break;
    }
  }
  try {
    if (back(*gap->span, gap->ptr + plan.first_page * page_bytes_, pages) == Status::kOk) {
      turn_gap_into_free(gap, plan);
      return GrowResult::kGrown;
    }
  } catch (const InternalError&) {
    // Some page may still be mapped: it must not be handed out again.
    throw;
  } catch (...) {
    context_.store.put(pages);
    throw;
  }
  context_.store.put(pages);
  return GrowResult::kOutOfMemory;
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

void Heap::turn_free_into_gap(Block* block, const PageRun& run) {
  free_.remove(block);
  Block* gap = block;
  if (block->ptr < run.begin) {
    split_tail(block, distance(block->ptr, run.begin), BlockState::kFree);
    free_.insert(block);
    gap = block->next;
  }
  if (gap->size > run.bytes) {
    split_tail(gap, run.bytes, BlockState::kFree);
    free_.insert(gap->next);
  }
  gap->state = BlockState::kGap;
  if (gap->next != nullptr && gap->next->state == BlockState::kGap) {
    absorb_next(gap);
  }
  if (gap->prev != nullptr && gap->prev->state == BlockState::kGap) {
    absorb_next(gap->prev);
  }
}

// A page leaves the heap only behind its last use. Blocks used by other streams have waited for
// those when they became free, so a fence on the heap's own stream covers everything.
bool Heap::wait_for_own_stream() {
  if (context_.driver.capture_info(stream_).state != CaptureState::kNone) {
    return false;
  }
  const EventId fence = context_.events.take();
  try {
    context_.driver.record(fence, stream_);
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
  struct Candidate {
    Block* block;
    PageRun run;
  };
  std::vector<Candidate> candidates;
  for_each_block([&](Block& block) {
    if (block.is_free()) {
      if (const auto run = whole_pages_inside(block.ptr, block.size, page_bytes_)) {
        candidates.push_back({&block, *run});
      }
    }
  });
  if (max_pages == 0 || candidates.empty() || !wait_for_own_stream()) {
    return 0;
  }
  std::size_t given = 0;
  std::vector<PageHandle> pages;
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
    Span& span = *it->block->span;
    pages.clear();
    const std::size_t first_slot = span.page_slot(run.begin);
    for (std::size_t i = 0; i < run.bytes / page_bytes_; ++i) {
      pages.push_back(span.page(first_slot + i));
      span.set_page(first_slot + i, kNoPage);
    }
    turn_free_into_gap(it->block, run);
    context_.store.put(pages);
    given += pages.size();
  }
  return given;
}

}  // namespace ferro
