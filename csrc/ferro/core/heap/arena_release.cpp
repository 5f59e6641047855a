// Pages that leave their addresses: for others in the arena, for the store, or for the driver.
#include "ferro/base/check.h"
#include "ferro/core/heap/heap.h"
#include "ferro/core/policy/span_sizes.h"

#include <algorithm>
#include <utility>

namespace ferro {

bool Heap::is_capturing() {
  return context_.driver.capture_info(stream_).status != CaptureStatus::kNone;
}

// Whole free handles that may move and were freed in epoch `freed_by` or before, in order of
// address: from the largest holes, until they have `wanted` pages, and up to kMaxCandidates more to
// choose from. Skips those beside `gap`, which a growth there uses.
std::vector<Hole> Heap::candidates(std::size_t wanted, const Block* gap, Epoch freed_by) {
  std::vector<Hole> found;
  std::size_t pages = 0;
  std::size_t more = 0;
  tiling_.for_each_hole([&](const Hole& hole) FERRO_NO_THREAD_SAFETY_ANALYSIS {
    const bool is_beside_gap =
        gap != nullptr && (hole.block == gap->prev || hole.block == gap->next);
    if (is_beside_gap || hole.block->freed > freed_by) {
      return true;
    }
    more += pages >= wanted ? 1 : 0;
    exported_.for_each_unpinned(hole.run, [&](const PageRun& run) {
      found.push_back({hole.block, run});
      pages += run.bytes / page_bytes_;
    });
    return more < kMaxCandidates;
  });
  std::ranges::sort(found, {}, [](const Hole& hole) { return hole.run.begin; });
  return found;
}

std::size_t Heap::pages_of(const std::vector<Hole>& holes) const {
  std::size_t pages = 0;
  for (const Hole& hole : holes) {
    pages += hole.run.bytes / page_bytes_;
  }
  return pages;
}

std::vector<Hole> Heap::choose(const std::vector<Hole>& candidates, std::size_t wanted) const {
  std::vector<HoleView> views;
  views.reserve(candidates.size());
  for (const Hole& hole : candidates) {
    HoleView& view = views.emplace_back();
    for (const HandleRange& range : tiling_.handles_behind(*hole.block->span, hole.run)) {
      view.handles.push_back(range.pages);
      view.pages += range.pages;
    }
  }
  std::vector<Hole> chosen;
  for (const HoleShare& share : plan_moves(views, wanted)) {
    const Hole& hole = candidates[share.hole];
    const std::size_t bytes = share.pages * page_bytes_;
    chosen.push_back({hole.block, {hole.run.begin + (hole.run.bytes - bytes), bytes}});
  }
  return chosen;
}

// The exported units that are wholly free, since epoch `freed_by` or before.
std::vector<Hole> Heap::free_exports(Epoch freed_by) {
  std::vector<Hole> found;
  if (!exported_.empty()) {
    tiling_.for_each_hole([&](const Hole& hole) FERRO_NO_THREAD_SAFETY_ANALYSIS {
      if (hole.block->freed <= freed_by) {
        exported_.for_each_inside(hole.block->ptr, hole.block->end(), [&](const PageRun& run) {
          found.push_back({hole.block, run});
        });
      }
      return true;
    });
  }
  return found;
}

Heap::SetAside Heap::set_aside(const std::vector<Hole>& chosen) {
  SetAside aside;
  for (const Hole& hole : chosen) {
    Block* block = tiling_.cut(hole.block, hole.run.begin, hole.run.bytes);
    block->state = BlockState::kTransit;
    aside.holes.push_back({block, hole.run});
    const std::vector<HandleRange> handles = tiling_.handles_behind(*block->span, hole.run);
    aside.handles.insert(aside.handles.end(), handles.begin(), handles.end());
    aside.freed = std::max(aside.freed, block->freed);
  }
  return aside;
}

void Heap::restore(SetAside& aside) {
  for (const Hole& hole : aside.holes) {
    tiling_.insert(hole.block);
  }
  aside = {};
}

// Observers are notified before the mapping is removed: a library that registered the range with a
// device must release it while it is mapped.
Heap::Left Heap::leave(SetAside& aside, const char* reason, const CallContext& context) {
  Left left;
  for (const Hole& hole : aside.holes) {
    const PageRun& run = hole.run;
    Span& span = *hole.block->span;
    notify_of_range(run.begin, run.bytes, MemoryEvent::kUnmapped, context, {.reason = reason});
    forget_mapping(run.begin, run.bytes);
    auto mapping = std::make_shared<StaleMapping>();
    mapping->owner = this;
    mapping->block = hole.block;
    mapping->begin = run.begin;
    mapping->bytes = run.bytes;
    mapping->freed = aside.freed;
    const ExportedUnit* exported = exported_.find(run.begin);
    const std::vector<HandleRange> handles = tiling_.handles_behind(span, run);
    for (const HandleRange& range : handles) {
      (exported != nullptr ? left.exported : left.handles).push_back({range, mapping});
    }
    if (exported != nullptr) {
      left.exported_ids.push_back(exported->id);
      exported_.erase(run.begin);
    }
    tiling_.unback(span, run);
    left.mappings.push_back(std::move(mapping));
  }
  aside = {};
  return left;
}

std::vector<AliasedBlock> Heap::alias(SetAside& aside) {
  std::vector<AliasedBlock> all;
  for (const Hole& hole : aside.holes) {
    Span& span = *hole.block->span;
    all.push_back({hole.block, tiling_.handles_behind(span, hole.run)});
    hole.block->state = BlockState::kAliased;
    tiling_.unback(span, hole.run);
  }
  aside = {};
  return all;
}

void Heap::notify_moved(std::vector<AliasedBlock> all, DevicePtr to) {
  for (AliasedBlock& moved : all) {
    const std::size_t bytes = pages_in(moved.handles) * page_bytes_;
    context_.graphs->notify_moved(pool_, std::move(moved), to);
    to = to + bytes;
  }
}

void Heap::hand_to_store(Left left, MovedHandles moved) {
  for (StaleMappingRef& mapping : left.mappings) {
    context_.stale.add(std::move(mapping));
  }
  if (moved == MovedHandles::kFree) {
    context_.store.put(left.handles);
  }
  for (const std::uint64_t id : left.exported_ids) {
    context_.exports.retire(id);
  }
  for (StoredHandle& handle : left.exported) {
    context_.store.retire(std::move(handle));
  }
}

// Pages that were freed in this epoch or before may leave now. None: no page may leave.
std::optional<Epoch> Heap::latest_release(ReleaseAfter after) const {
  const DeviceTimeline& timeline = context_.timeline;
  if (after == ReleaseAfter::kHostWait || after == ReleaseAfter::kIdle) {
    return timeline.last_waitable();
  }
  if (keeps_pages() || (pool_ != kDefaultPool && after == ReleaseAfter::kStreamWait)) {
    return std::nullopt;
  }
  return after == ReleaseAfter::kPassed ? timeline.passed() : timeline.last_orderable();
}

// False: the device still works (kIdle), a capture forbids the wait, or other devices take too long.
bool Heap::wait_for_release(Epoch freed, ReleaseAfter after) {
  if (after == ReleaseAfter::kIdle) {
    return context_.timeline.record() && context_.timeline.update() >= freed;
  }
  if (!context_.timeline.has_passed(freed) && stream_lasts() && is_capturing()) {
    return false;
  }
  return context_.timeline.wait(freed);
}

std::size_t Heap::release_pages(std::size_t wanted, ReleaseAfter after,
                                const CallContext& context) {
  const std::optional<Epoch> latest = latest_release(after);
  const bool to_driver = after == ReleaseAfter::kHostWait || after == ReleaseAfter::kIdle;
  if (!latest || wanted == 0) {
    return 0;
  }
  SetAside aside;
  {
    const HeapLock lock(mutex_);
    collect_locked();
    std::vector<Hole> holes = candidates(wanted, nullptr, *latest);
    if (after == ReleaseAfter::kHostWait) {
      const std::vector<Hole> exports = free_exports(*latest);
      holes.insert(holes.end(), exports.begin(), exports.end());
      std::ranges::sort(holes, {}, [](const Hole& hole) { return hole.run.begin; });
    }
    if (holes.empty()) {
      return 0;
    }
    aside = set_aside(choose(holes, wanted));
    if (pool_ != kDefaultPool && to_driver) {
      // Graphs may have replayed on the pages since they were freed.
      aside.freed = context_.timeline.now();
    }
  }
  bool may_leave = !to_driver;
  try {
    may_leave = may_leave || wait_for_release(aside.freed, after);
  } catch (...) {
    const HeapLock lock(mutex_);
    restore(aside);
    throw;
  }
  const std::size_t pages = pages_in(aside.handles);
  Left left;
  {
    const HeapLock lock(mutex_);
    if (!may_leave) {
      restore(aside);
      return 0;
    }
    left = leave(aside, to_driver ? "released" : "transferred", context);
    count_pool_bytes(kLarge, -static_cast<std::int64_t>(pages * page_bytes_));
  }
  hand_to_store(std::move(left), MovedHandles::kFree);
  return pages;
}

std::size_t Heap::releasable_pages(std::size_t at_most, ReleaseAfter after) {
  const std::optional<Epoch> latest = latest_release(after);
  if (!latest) {
    return 0;
  }
  const HeapLock lock(mutex_);
  collect_locked();
  return pages_of(candidates(at_most, nullptr, *latest));
}

std::size_t Heap::free_pages() {
  const HeapLock lock(mutex_);
  std::size_t pages = 0;
  tiling_.for_each_hole([&](const Hole& hole) FERRO_NO_THREAD_SAFETY_ANALYSIS {
    exported_.for_each_unpinned(hole.run,
                                [&](const PageRun& run) { pages += run.bytes / page_bytes_; });
    return true;
  });
  return pages + pages_of(free_exports());
}

// Removes the span from all indexes if it is one gap; else null.
std::unique_ptr<Span> Heap::detach_if_empty(Span& span) {
  Block* block = span.first;
  if (block->state != BlockState::kGap || block->next != nullptr) {
    return nullptr;
  }
  tiling_.take_gap(block);
  context_.addresses.remove(&span);
  return tiling_.remove_span(span);
}

void Heap::unreserve(std::unique_ptr<Span> span) {
  if (span != nullptr) {
    context_.driver.unreserve(span->base(), span->bytes());
  }
}

void Heap::on_mapping_removed(Block* block) {
  std::unique_ptr<Span> unused;
  {
    const HeapLock lock(mutex_);
    Span& span = *block->span;
    tiling_.make_gap(block);
    if (!keeps_empty_span(addresses(), kSpanAlignment)) {
      unused = detach_if_empty(span);
    }
  }
  unreserve(std::move(unused));
}

bool Heap::is_short_of_addresses(std::size_t needed) {
  const HeapLock lock(mutex_);
  return ferro::is_short_of_addresses(addresses(), needed, least_span());
}

void Heap::release_if_empty(Span* span) {
  std::unique_ptr<Span> unused;
  if (span != nullptr) {
    const HeapLock lock(mutex_);
    unused = detach_if_empty(*span);
  }
  unreserve(std::move(unused));
}

std::size_t Heap::release_empty_spans() {
  std::vector<std::unique_ptr<Span>> unused;
  std::size_t bytes = 0;
  {
    const HeapLock lock(mutex_);
    std::vector<Span*> spans;
    for (const auto& [base, span] : tiling_.spans()) {
      spans.push_back(span.get());
    }
    for (Span* span : spans) {
      if (std::unique_ptr<Span> empty = detach_if_empty(*span)) {
        bytes += empty->bytes();
        unused.push_back(std::move(empty));
      }
    }
  }
  for (std::unique_ptr<Span>& span : unused) {
    unreserve(std::move(span));
  }
  return bytes;
}

}  // namespace ferro
