#include "ferro/core/device/reclaimer.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace ferro {

void Reclaimer::empty_cache(const CallContext& context) {
  // In segments the frees of all pools are settled, as in PyTorch's; pools of pages are left alone,
  // because their graphs may run for long.
  if (parts_.layout == Layout::kSegments && parts_.captures.load(std::memory_order_relaxed) == 0) {
    for (Heap* heap : parts_.pools.all_heaps()) {
      heap->wait_for_pending();
    }
  }
  const std::vector<Heap*> givers = parts_.pools.heaps_to_empty();
  for (Heap* heap : givers) {
    heap->wait_for_pending();
  }
  collect_scratch();
  std::size_t surplus = surplus_pages(givers);
  for (Heap* heap : givers) {
    surplus -= std::min(surplus, empty_heap(*heap, surplus, context));
    if (is_paged(heap->kind())) {
      static_cast<ArenaHeap*>(heap)->release_empty_spans();
    }
  }
  if (!parts_.observer.is_within_climb()) {
    parts_.pools.drop_unused();
  }
  trim(surplus);
  parts_.imports.collect();
}

void Reclaimer::empty_pool(const PoolId& id, const CallContext& context) {
  const std::vector<Heap*> heaps = parts_.pools.heaps_of(id);
  for (Heap* heap : heaps) {
    heap->wait_for_pending();
  }
  collect_scratch();
  for (Heap* heap : heaps) {
    empty_heap(*heap, kAllPages, context);
  }
  if (!parts_.observer.is_within_climb()) {
    parts_.pools.drop_if_unused(id);
  }
}

// After frees that waited, which may be of scratch.
void Reclaimer::collect_scratch() {
  if (parts_.captures.load() == 0 && !parts_.observer.is_within_climb()) {
    parts_.scratch.collect();
  }
}

std::size_t Reclaimer::empty_heap(Heap& heap, std::size_t pages, const CallContext& context) {
  if (!is_paged(heap.kind())) {
    release_free_segments(static_cast<SegmentHeap&>(heap), context);
    return 0;
  }
  const std::size_t released = release_pages_of(heap, pages, context);
  trim(released);
  return released;
}

std::size_t Reclaimer::release_pages_of(Heap& heap, std::size_t pages, const CallContext& context) {
  const bool may_leave = heap.pool() == kDefaultPool || !parts_.observer.is_within_climb();
  if (!is_paged(heap.kind()) || !may_leave || !parts_.scratch.keep_written(heap.pool())) {
    return 0;
  }
  auto& arena = static_cast<ArenaHeap&>(heap);
  const std::size_t released = arena.release_pages(pages, ReleaseAfter::kHostWait, context);
  // Exported handles count until their mapping is gone.
  parts_.stale.remove_passed();
  return released;
}

std::size_t Reclaimer::trim(std::size_t pages) {
  parts_.stale.remove_passed();
  return parts_.store.trim(pages);
}

// What is free beyond what the settings want to keep; a lot when that is nothing.
std::size_t Reclaimer::surplus_pages(const std::vector<Heap*>& givers) {
  if (parts_.config.idle_bytes == 0) {
    return kAllPages;
  }
  std::size_t free_pages = parts_.store.counts().idle;
  for (Heap* heap : givers) {
    if (is_paged(heap->kind())) {
      free_pages += static_cast<ArenaHeap*>(heap)->free_pages();
    }
  }
  return free_pages - std::min(free_pages, parts_.config.idle_bytes / parts_.store.page_bytes());
}

SegmentSource& Reclaimer::source_of(const PoolId& id, std::shared_ptr<SegmentSource>& keep) {
  keep = parts_.pools.source(id);
  return keep != nullptr ? *keep : driver_segments_;
}

bool Reclaimer::release_segment(SegmentHeap& heap, DevicePtr base, const CallContext& context) {
  std::unique_ptr<Span> segment = heap.detach(base, context);
  if (segment == nullptr) {
    return false;
  }
  const std::size_t bytes = segment->bytes();
  bool released = false;
  try {
    parts_.observer.deliver_within_climb();
    const Driver::SessionBreak pause;
    std::shared_ptr<SegmentSource> keep;
    released = source_of(heap.pool(), keep).release(base);
  } catch (...) {
    heap.attach(std::move(segment));
    throw;
  }
  if (!released) {
    heap.attach(std::move(segment));
    return false;
  }
  parts_.store.discharge(bytes);
  ++parts_.counters.segments_released;
  if (bytes >= parts_.segment_rules().max_split) {
    parts_.segment_stats.on_oversize_segment(-1);
  }
  return true;
}

void Reclaimer::release_free_segments(SegmentHeap& heap, const CallContext& context) {
  for (const FreeSegment& segment : heap.free_segments()) {
    release_segment(heap, segment.base, context);
  }
}

std::size_t Reclaimer::release_addresses() {
  parts_.stale.remove_passed();
  std::size_t bytes = 0;
  for (Heap* heap : parts_.pools.all_heaps()) {
    if (is_paged(heap->kind())) {
      bytes += static_cast<ArenaHeap*>(heap)->release_empty_spans();
    }
  }
  return bytes;
}

}  // namespace ferro
