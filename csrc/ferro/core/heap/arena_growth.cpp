// Growth of an arena: a gap gets pages. arena_release.cpp has the other direction.
#include "ferro/base/check.h"
#include "ferro/core/heap/heap.h"
#include "ferro/core/policy/scratch_folds.h"
#include "ferro/core/policy/span_sizes.h"

#include <algorithm>
#include <chrono>

namespace ferro {
namespace {

GrowResult result_of(TakeResult taken) {
  switch (taken) {
    case TakeResult::kTooFew:
      return GrowResult::kTooFewPages;
    case TakeResult::kOverLimit:
      return GrowResult::kOverLimit;
    case TakeResult::kRejected:
      return GrowResult::kRejected;
    default:
      return GrowResult::kOutOfMemory;
  }
}

}  // namespace

GrowResult Heap::allocate_grown(const Request& request, GrowFrom from, DevicePtr* out) {
  const GrowResult result = grow(request, 0, from, out);
  if (result != GrowResult::kGapTooShort) {
    return result;
  }
  const GrowResult roomier = grow(request, context_.store.max_handle_pages(), from, out);
  const bool is_final = roomier == GrowResult::kGrown || roomier == GrowResult::kRejected;
  return is_final ? roomier : GrowResult::kGapTooShort;
}

// Grows in a gap with room for `spare` pages beyond the request.
GrowResult Heap::grow(const Request& request, std::size_t spare, GrowFrom from, DevicePtr* out) {
  Span* added = nullptr;
  GrowResult result = GrowResult::kNoAddresses;
  try {
    result = grow_with(request, spare, from, &added, out);
  } catch (...) {
    release_if_empty(added);
    throw;
  }
  release_if_empty(added);
  return result;
}

// `*added`: a span that was reserved for the growth.
GrowResult Heap::grow_with(const Request& request, std::size_t spare, GrowFrom from, Span** added,
                           DevicePtr* out) {
  // Another thread of the stream may take the free memory beside the new pages. Then a new plan is
  // needed.
  for (;;) {
    Growth growth;
    GrowResult begun = GrowResult::kGrown;
    {
      const HeapLock lock(mutex_);
      begun = begin_growth(request, spare, from, growth);
    }
    if (begun == GrowResult::kNoAddresses && *added == nullptr) {
      // Old mappings occupy addresses.
      const std::size_t needed = request.size + spare * page_bytes_;
      if (is_short_of_addresses(needed) && context_.stale.remove_passed() != 0) {
        continue;
      }
      *added = add_span(needed);
      if (*added != nullptr) {
        continue;
      }
    }
    if (begun != GrowResult::kGrown) {
      return begun;
    }
    DevicePtr served = kNull;
    if (const GrowResult filled = fill(growth, request, from, &served);
        filled != GrowResult::kGrown) {
      return filled;
    }
    if (served != kNull) {
      *out = served;
      return GrowResult::kGrown;
    }
  }
}

// A growth uses free memory of the arena only if it was freed in this epoch or before: other
// streams may still use younger memory. Outside of captures the request's stream is behind the
// epoch, or waits for it. A capture uses memory of its pool whose epoch has passed, and memory that
// it freed itself (kCaptured) if the stream's next work depends on every node of the graph.
Epoch Heap::usable_until(const Request& request) {
  if (is_capturing()) {
    const bool is_ordered = pool_ == kDefaultPool || pending_.is_behind_capture();
    return is_ordered ? context_.timeline.passed() : kUnused;
  }
  return request.stream_may_wait ? std::max(behind(), context_.timeline.last_orderable())
                                 : behind();
}

Epoch Heap::neighbours_freed(const Block& gap) {
  Epoch freed = kUnused;
  for (const Block* neighbour : {gap.prev, gap.next}) {
    if (neighbour != nullptr && neighbour->is_free()) {
      freed = std::max(freed, neighbour->freed);
    }
  }
  return freed;
}

// The range of the block and its neighbours that were freed in epoch `until` or before. After the
// growth was planned, another thread of the stream may have freed or taken a neighbour.
PageRun Heap::usable_around(const Block& block, Epoch until) {
  const auto is_usable = [until](const Block* neighbour) {
    return neighbour != nullptr && neighbour->is_free() && neighbour->freed <= until;
  };
  const DevicePtr begin = is_usable(block.prev) ? block.prev->ptr : block.ptr;
  const DevicePtr end = is_usable(block.next) ? block.next->end() : block.end();
  return {begin, distance(begin, end)};
}

std::optional<GrowthPlan> Heap::plan(const Request& request, std::size_t spare, Epoch until,
                                     std::vector<Block*>& gaps) {
  gaps = tiling_.growth_candidates(request.size, spare);
  std::erase_if(gaps, [until](const Block* gap) { return neighbours_freed(*gap) > until; });
  std::vector<GapView> views;
  views.reserve(gaps.size());
  for (const Block* gap : gaps) {
    views.push_back(view_of_gap(*gap));
  }
  return plan_growth(views, request.size, page_bytes_, spare);
}

// Chooses a gap and own holes, and sets them aside. kNoAddresses: no gap has room. On any result
// but kGrown nothing changed.
GrowResult Heap::begin_growth(const Request& request, std::size_t spare, GrowFrom from,
                              Growth& growth) {
  const Epoch until = usable_until(request);
  std::vector<Block*> gaps;
  std::optional<GrowthPlan> planned = plan(request, spare, until, gaps);
  Block* gap = planned ? gaps[planned->gap] : nullptr;
  const std::size_t wanted = planned ? planned->pages : ceil_div(request.size, page_bytes_);
  std::vector<Hole> own;
  if (from != GrowFrom::kStore) {
    own = choose(movable(wanted, gap, until), wanted);
  }
  if (from == GrowFrom::kOwnPages && pages_of(own) < wanted) {
    return GrowResult::kTooFewPages;
  }
  if (!planned) {
    return GrowResult::kNoAddresses;
  }
  growth.plan = *planned;
  growth.gap = gap;
  tiling_.take_gap(gap);
  gap->state = BlockState::kTransit;
  growth.own = set_aside(own);
  growth.behind = std::max(growth.own.freed, neighbours_freed(*gap));
  return GrowResult::kGrown;
}

// Whole free handles that may move to other addresses for a request, freed in epoch `until` or
// before.
std::vector<Hole> Heap::movable(std::size_t wanted, const Block* gap, Epoch until) {
  // Captured work may use free memory at its old addresses, so its pages stay. Pages of the graph's
  // own pool keep their old mapping.
  if (is_capturing() ? !moves_within_capture() : keeps_pages()) {
    return {};
  }
  // A graph that is captured into a private pool later replays on any stream, which did not wait.
  const bool may_wait = pool_ == kDefaultPool || is_capturing();
  return candidates(wanted, gap, may_wait ? until : context_.timeline.passed());
}

// Null if no addresses are available.
Span* Heap::add_span(std::size_t at_least) {
  const std::size_t least = least_span();
  const std::size_t shortest = align_up(at_least, least);
  const bool may_be_long = kind_ != HeapKind::kKeptPages && !keeps_pages();
  const std::size_t longest = kind_ == HeapKind::kSmallPages
                                  ? longest_of_small_blocks(context_.first_span)
                                  : context_.first_span;
  std::size_t bytes = 0;
  {
    const HeapLock lock(mutex_);
    bytes = may_be_long && tiling_.spans().empty()
                ? plan_first_span(context_.addresses.reserved_bytes(), longest, at_least, least)
                : plan_span(addresses(), at_least, least);
  }
  std::optional<DevicePtr> base = context_.driver.reserve(bytes, kSpanAlignment);
  if (!base && bytes > shortest) {
    bytes = shortest;
    base = context_.driver.reserve(bytes, kSpanAlignment);
  }
  return base ? add_span(*base, bytes) : nullptr;
}

// Adds addresses that were just reserved. Null: the index has no room for them; they are released.
Span* Heap::add_span(DevicePtr base, std::size_t bytes) {
  std::unique_ptr<Span> span;
  try {
    FERRO_CHECK(is_aligned(address_of(base), kSpanAlignment));
    span = std::make_unique<Span>(base, bytes, page_bytes_, this);
  } catch (...) {
    context_.driver.unreserve(base, bytes);
    throw;
  }
  Span* added = span.get();
  {
    const HeapLock lock(mutex_);
    if (context_.addresses.add(added)) {
      tiling_.make_gap(tiling_.add_span(std::move(span)));
      return added;
    }
  }
  context_.driver.unreserve(base, bytes);
  return nullptr;
}

bool Heap::try_reserve_at(DevicePtr ptr, std::size_t bytes) {
  const DevicePtr base{align_down(address_of(ptr), kSpanAlignment)};
  const std::size_t length =
      align_up(distance(base, ptr) + bytes, std::max(kSpanAlignment, page_bytes_));
  const std::optional<DevicePtr> got = context_.driver.reserve(length, kSpanAlignment, base);
  if (!got) {
    return false;
  }
  if (*got != base) {
    context_.driver.unreserve(*got, length);
    return false;
  }
  return add_span(base, length) != nullptr;
}

TakeResult Heap::take_missing(const Request& request, std::size_t missing, GrowFrom from,
                              std::vector<StoredHandle>& out) {
  if (from == GrowFrom::kOwnPages) {
    return TakeResult::kTooFew;
  }
  // Private pools and captures do not wait: a graph replays on any stream, and a capturing stream
  // cannot wait.
  PageRequest wanted;
  if (context_.stale.count() != 0 && !is_capturing()) {
    wanted = page_request(request, missing);
    if (pool_ == kDefaultPool && from == GrowFrom::kWaitedPages) {
      wanted.waits = stream_;
    }
  }
  wanted.pages = missing;
  wanted.fit = from == GrowFrom::kStore ? Fit::kExactly : Fit::kAtLeast;
  // Scratch is shared by whole handles. With single pages a capture took 1.16 times as long as with
  // the native allocator, instead of 1.04.
  if (borrows()) {
    wanted.fit = Fit::kExactly;
    wanted.largest = largest_borrowed_handle(missing);
  }
  wanted.may_create = from != GrowFrom::kIdlePages;
  return context_.store.take(wanted, out);
}

GrowResult Heap::fill(Growth& growth, const Request& request, GrowFrom from, DevicePtr* served) {
  using Clock = std::chrono::steady_clock;
  const auto began = Clock::now();
  Span& span = *growth.gap->span;
  const std::size_t gap_pages = growth.gap->size / page_bytes_;
  const std::size_t own_pages = pages_in(growth.own.handles);
  std::vector<StoredHandle> taken;
  std::vector<HandleRange> lent;
  std::vector<HandleRange> handles;
  using Loan = GraphPages::Loan;
  const bool borrows = this->borrows();
  const bool is_lent = is_captured_into();
  std::optional<GrowthPlan> place;
  const auto undo = [&] {
    context_.store.put(taken);
    if (is_lent) {
      context_.graphs->reclaim(pool_, lent);
    }
    undo_growth(growth);
  };
  try {
    if (growth.behind > behind() && !order_behind(growth.behind)) {
      undo();
      return GrowResult::kTooFewPages;
    }
    std::size_t missing = growth.plan.pages - std::min(growth.plan.pages, own_pages);
    if (borrows) {
      // The rest of a larger handle would serve only small blocks.
      const bool fits = from == GrowFrom::kStore || kind_ == HeapKind::kSmallPages;
      lent =
          context_.graphs->lend(pool_, stream_, missing, fits ? Loan::kBorrowFit : Loan::kBorrow);
    } else if (is_lent && missing != 0) {
      // The rest of the last page may serve another graph.
      lent = context_.graphs->lend(pool_, stream_, missing - 1, Loan::kKeep);
    }
    missing -= std::min(missing, pages_in(lent));
    if (missing != 0) {
      if (const TakeResult result = take_missing(request, missing, from, taken);
          result != TakeResult::kOk) {
        undo();
        return result_of(result);
      }
    }
    handles = growth.own.handles;
    handles.insert(handles.end(), lent.begin(), lent.end());
    for (const StoredHandle& handle : taken) {
      handles.push_back(handle.range);
    }
    place = widen(growth.plan, pages_in(handles), gap_pages);
    if (!place) {
      undo();
      return GrowResult::kGapTooShort;
    }
    if (map(growth.gap->ptr + place->first_page * page_bytes_, handles) != Status::kOk) {
      undo();
      return GrowResult::kOutOfMemory;
    }
  } catch (const InternalError&) {
    // Some page may still be mapped, so it must not be handed out again.
    throw;
  } catch (...) {
    undo();
    throw;
  }
  const auto took = std::chrono::nanoseconds(Clock::now() - began).count();
  const std::size_t bytes = place->pages * page_bytes_;
  std::size_t from_store = borrows ? 0 : pages_in(lent);
  Epoch freed = growth.own.freed;
  for (const StoredHandle& handle : taken) {
    from_store += handle.range.pages;
    freed = std::max(freed, handle.freed());
  }
  const DevicePtr grown = growth.gap->ptr + place->first_page * page_bytes_;
  Left left;
  std::vector<AliasedBlock> aliased;
  {
    const HeapLock lock(mutex_);
    if (keeps_pages()) {
      aliased = alias(growth.own);
    } else {
      left = leave(growth.own, "moved", request.context);
    }
    Block* block = growth.gap;
    if (const std::size_t before = place->first_page * page_bytes_; before != 0) {
      tiling_.split_tail(block, before, BlockState::kTransit);
      Block* front = block;
      block = block->next;
      tiling_.make_gap(front);
    }
    if (block->size > bytes) {
      tiling_.split_tail(block, bytes, BlockState::kTransit);
      tiling_.make_gap(block->next);
    }
    const DevicePtr begin = block->ptr;
    block->freed = freed;
    tiling_.back(span, begin, handles,
                 borrows ? BlockTiling::Owner::kScratchSet : BlockTiling::Owner::kHeap);
    if (!borrows) {
      count_pool_bytes(kLarge, static_cast<std::int64_t>(from_store * page_bytes_));
    }
    notify_of_range(begin, bytes, MemoryEvent::kMapped, request.context,
                    {name_of(request.step), own_pages, static_cast<std::uint64_t>(took)});
    // As natively, where the first split of a segment drops the call: a view must not show the
    // calls of freed blocks. There smaller requests split a segment of 20 MiB.
    if (request.context != nullptr && request.size >= std::max(bytes, 10 * kMiB)) {
      mapped_by_[begin] = request.context;
    }
    const PageRun usable = usable_around(*block, std::max(behind(), growth.behind));
    tiling_.insert(block);
    list_free_pages();
    if (served != nullptr && usable.bytes >= request.size) {
      *served = mark_live(tiling_.cut(span.block_around(usable.begin), usable.begin, request.size),
                          request);
    }
  }
  pages_moved_.fetch_add(own_pages, std::memory_order_relaxed);
  if (is_lent) {
    const std::size_t added = borrows ? lent.size() : handles.size();
    context_.graphs->on_mapped(pool_, grown, lent, std::span(handles).subspan(added));
  }
  notify_moved(std::move(aliased), grown);
  hand_to_store(std::move(left), MovedHandles::kMapped);
  return GrowResult::kGrown;
}

Status Heap::map(DevicePtr begin, std::span<const HandleRange> handles) {
  Driver& driver = context_.driver;
  std::size_t mapped = 0;
  const auto undo = [&] {
    // If the driver refuses to remove a new mapping, its pages cannot be used again, and there is
    // no state to return to. Fails instead of handing them out twice.
    FERRO_CHECK(mapped == 0 || driver.unmap(begin, mapped),
                "the driver refused to remove new mappings after a failed call");
  };
  try {
    Status status = Status::kOk;
    for (const HandleRange& range : handles) {
      status = driver.map(begin + mapped, range.pages * page_bytes_, range.handle);
      if (status != Status::kOk) {
        break;
      }
      mapped += range.pages * page_bytes_;
    }
    if (status == Status::kOk) {
      status = driver.set_access(begin, mapped);
    }
    if (status != Status::kOk) {
      undo();
    }
    return status;
  } catch (const InternalError&) {
    throw;
  } catch (...) {
    undo();
    throw;
  }
}

void Heap::undo_growth(Growth& growth) {
  const HeapLock lock(mutex_);
  restore(growth.own);
  tiling_.make_gap(growth.gap);
}

// Uses free memory beside the gap at once, like the native expandable segments.
BlockView Heap::allocate_at(DevicePtr ptr, const Request& request) {
  for (;;) {
    Growth growth;
    {
      const HeapLock lock(mutex_);
      const Span* span = tiling_.span_around(ptr);
      if (span == nullptr || request.size > distance(ptr, span->base() + span->bytes())) {
        return {};
      }
      collect_locked();
      const DevicePtr end = ptr + request.size;
      Block* block = span->block_around(ptr);
      if (block->is_free() && end <= block->end()) {
        block = tiling_.cut(block, ptr, request.size);
        mark_live(block, request);
        return view_of(*block);
      }
      // Free neighbours are merged, so a free block is followed by a gap or a block in use.
      block = block->is_free() ? block->next : block;
      if (block == nullptr || block->state != BlockState::kGap || block->ptr >= end) {
        return {};
      }
      const std::size_t first = ptr > block->ptr ? distance(block->ptr, ptr) / page_bytes_ : 0;
      const DevicePtr needed_end = std::min(end, block->end());
      const std::size_t last = ceil_div(distance(block->ptr, needed_end), page_bytes_);
      growth.plan = {0, first, last - first};
      growth.gap = block;
      tiling_.take_gap(block);
      block->state = BlockState::kTransit;
    }
    if (fill(growth, request, GrowFrom::kStore, nullptr) != GrowResult::kGrown) {
      return {};
    }
  }
}

}  // namespace ferro
