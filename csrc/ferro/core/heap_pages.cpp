// Pages and addresses of a heap: how its line grows. heap_moves.cpp has the other direction.
#include "ferro/base/check.h"
#include "ferro/core/heap.h"
#include "ferro/core/heap_blocks.h"

#include <algorithm>
#include <chrono>

namespace ferro {
Heap::Heap(const HeapContext& context, PoolId pool, StreamId stream, HeapKind kind,
           PoolBytes* pool_bytes)
    : context_(context),
      pool_(pool),
      stream_(stream),
      kind_(kind),
      page_bytes_(context.store.page_bytes()),
      pool_bytes_(pool_bytes),
      // Segments do as PyTorch's own do.
      pending_(context.driver, context.events, stream,
               is_paged(kind) ? PendingFrees::InCapture::kGraphOrder
                              : PendingFrees::InCapture::kItsEnd) {
  context_.stats.add_heap(&stats_);
}

Heap::~Heap() FERRO_NO_THREAD_SAFETY_ANALYSIS {
  context_.stats.remove_heap(&stats_);
  for (const std::unique_ptr<Span>& span : spans_) {
    context_.addresses.remove(span.get());
    context_.driver.unreserve(span->base(), span->bytes());
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
  make_first_block(*span)->state = BlockState::kGap;
  return keep_span(std::move(span));
}

// The one block of a span that has none yet.
Block* Heap::make_first_block(Span& span) {
  Block* block = blocks_.make();
  block->ptr = span.base();
  block->size = span.bytes();
  block->span = &span;
  span.first = block;
  span.set_block(block->ptr, block);
  return block;
}

Span* Heap::keep_span(std::unique_ptr<Span> span) {
  const auto place = std::ranges::upper_bound(spans_, span->base(), {}, &Span::base);
  return spans_.insert(place, std::move(span))->get();
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
  std::erase_if(spans_, [&](const std::unique_ptr<Span>& other) { return other.get() == unused; });
}

std::optional<GrowthPlan> Heap::plan(const Request& request, std::size_t spare,
                                     std::vector<Block*>& gaps) {
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
  return plan_growth(views, request.size, page_bytes_, spare);
}

GrowResult Heap::allocate_grown(const Request& request, GrowFrom from, DevicePtr* out) {
  const SpinLock lock(mutex_);
  merge_all();
  retire_stale();
  if (from == GrowFrom::kOwnPages && holes().empty()) {
    return GrowResult::kTooFewPages;
  }
  GrowResult result = grow_line(request, 0, from);
  if (result == GrowResult::kGapTooShort) {
    result = grow_line(request, context_.store.max_handle_pages(), from);
    if (result != GrowResult::kGrown && result != GrowResult::kRejected) {
      return GrowResult::kGapTooShort;
    }
  }
  if (result != GrowResult::kGrown) {
    return result;
  }
  *out = take_best_fit(request);
  FERRO_CHECK(*out != kNull);
  return GrowResult::kGrown;
}

// In a gap with room for `spare` pages more than the request takes.
GrowResult Heap::grow_line(const Request& request, std::size_t spare, GrowFrom from) {
  std::vector<Block*> gaps;
  std::optional<GrowthPlan> growth = plan(request, spare, gaps);
  const Span* new_span = nullptr;
  if (!growth) {
    new_span = add_span(request.size + spare * page_bytes_);
    if (new_span == nullptr) {
      return GrowResult::kOutOfMemory;
    }
    growth = plan(request, spare, gaps);
    FERRO_CHECK(growth.has_value());
  }
  GrowResult result = GrowResult::kOutOfMemory;
  try {
    result = fill_gap(gaps[growth->gap], *growth, from, request);
  } catch (...) {
    drop_span(new_span);
    throw;
  }
  if (result != GrowResult::kGrown) {
    drop_span(new_span);
  }
  return result;
}

GrowResult Heap::fill_gap(Block* gap, const GrowthPlan& plan, GrowFrom from,
                          const Request& request) {
  using Clock = std::chrono::steady_clock;
  const auto began = Clock::now();
  const std::vector<Hole> moved =
      from == GrowFrom::kStore ? std::vector<Hole>{} : pages_to_move(gap, plan.pages);
  std::vector<PageHandle> pages = pages_behind(moved);
  const std::size_t pages_moved = pages.size();
  std::vector<PageHandle> from_store;
  if (const std::size_t missing = plan.pages - std::min(plan.pages, pages.size()); missing != 0) {
    if (from == GrowFrom::kOwnPages) {
      return GrowResult::kTooFewPages;
    }
    if (from == GrowFrom::kIdlePages) {
      if (!context_.store.take_idle(missing, from_store)) {
        return GrowResult::kTooFewPages;
      }
    } else {
      const Fit fit = from == GrowFrom::kStore ? Fit::kExactly : Fit::kAtLeast;
      switch (context_.store.take(missing, fit, from_store)) {
        case TakeResult::kOverLimit:
          return GrowResult::kOverLimit;
        case TakeResult::kRejected:
          return GrowResult::kRejected;
        case TakeResult::kOutOfMemory:
          return GrowResult::kOutOfMemory;
        case TakeResult::kOk:
          break;
      }
    }
  }
  pages.insert(pages.end(), from_store.begin(), from_store.end());
  const std::optional<GrowthPlan> place = widen(plan, pages.size(), gap->size / page_bytes_);
  if (!place) {
    context_.store.put(from_store);
    return GrowResult::kGapTooShort;
  }
  const DevicePtr begin = gap->ptr + place->first_page * page_bytes_;
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
    if (fence == kNoEvent && !moved.empty()) {
      undo();
      return fill_gap(gap, plan, from, request);  // the stream captures now: nothing moves
    }
    backed = back(*gap->span, begin, pages);
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
  count_pool_bytes(kLarge, static_cast<std::int64_t>(from_store.size() * page_bytes_));
  leave_behind(moved, fence, "moved", request.context);
  pages_moved_.store(pages_moved_.load(std::memory_order_relaxed) + pages_moved,
                     std::memory_order_relaxed);
  const auto took = std::chrono::nanoseconds(Clock::now() - began).count();
  tell_of_range(begin, pages.size() * page_bytes_, MemoryEvent::kMapped, request.context,
                {name_of(request.step), pages_moved, static_cast<std::uint64_t>(took)});
  if (request.context != nullptr) {
    mapped_by_[begin] = request.context;
  }
  turn_gap_into_free(gap, *place);
  return GrowResult::kGrown;
}

// Maps `pages`, handle by handle, from `begin` on. On failure nothing is mapped there and the
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
      const std::size_t count = pages_of_handle(std::span(pages).subspan(mapped));
      status = driver.map(begin + mapped * page_bytes_, count * page_bytes_, pages[mapped]);
      mapped += status == Status::kOk ? count : 0;
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

}  // namespace ferro
