// What a DeviceMemory tells of itself: views, statistics, the facts of a failure, the recount.
#include "ferro/base/check.h"
#include "ferro/core/device/device_memory.h"

#include <algorithm>
#include <iterator>

namespace ferro {

std::vector<SegmentView> DeviceMemory::segments(const PoolId* only) {
  const RecursiveMutexLock lock(climb_mutex_);
  std::vector<SegmentView> segments;
  for (Heap* heap : only != nullptr ? pools_.heaps_of(*only) : pools_.all_heaps()) {
    std::ranges::move(heap->segments(), std::back_inserter(segments));
  }
  std::ranges::sort(segments, {}, &SegmentView::ptr);
  return segments;
}

std::vector<BlockView> DeviceMemory::live_blocks(const PoolId& id) {
  std::vector<BlockView> live;
  with_heaps_of(id, [&live](const std::vector<Heap*>& heaps) {
    for (Heap* heap : heaps) {
      std::ranges::move(heap->live_blocks(), std::back_inserter(live));
    }
  });
  return live;
}

std::size_t DeviceMemory::largest_free_block() {
  const RecursiveMutexLock lock(climb_mutex_);
  std::size_t largest = 0;
  for (Heap* heap : pools_.all_heaps()) {
    largest = std::max(largest, heap->view().largest_free);
  }
  return largest;
}

DeviceView DeviceMemory::view() {
  const RecursiveMutexLock lock(climb_mutex_);
  DeviceView view;
  for (const std::uint64_t climbs : counters_.ladder) {
    view.misses += climbs;
  }
  view.hits = stats_.allocations() - (view.misses - counters_.ended_by(LadderStep::kOutOfMemory));
  for (Heap* heap : pools_.all_heaps()) {
    const HeapView part = heap->view();
    view.live_blocks += part.live_blocks;
    view.free_blocks += part.free_blocks;
    view.free_bytes += part.free_bytes;
    view.reserved_addresses += is_paged(heap->kind()) ? part.reserved_bytes : 0;
    view.pages_moved += is_paged(heap->kind()) ? static_cast<ArenaHeap*>(heap)->pages_moved() : 0;
  }
  return view;
}

DeviceCounters DeviceMemory::counters() {
  const RecursiveMutexLock lock(climb_mutex_);
  DeviceCounters counters = counters_;
  const PageCounts pages = store_.counts();
  counters.pages_created = pages.created - pages_at_reset_.created;
  counters.pages_released = pages.released - pages_at_reset_.released;
  const StaleMappings::Counts unmaps = stale_.counts();
  counters.unmapped_by_requests = unmaps.by_requests;
  counters.unmapped_by_thread = unmaps.by_remover;
  counters.unmaps_refused =
      unmaps.refused + (unmap_thread_ != nullptr ? unmap_thread_->failures() : 0);
  return counters;
}

std::uint64_t DeviceMemory::slowest_nanoseconds() {
  const RecursiveMutexLock lock(climb_mutex_);
  return ladder_.slowest_nanoseconds();
}

void DeviceMemory::reset_slowest() {
  const RecursiveMutexLock lock(climb_mutex_);
  ladder_.reset_slowest();
}

std::array<StatValue, kStatClasses> DeviceMemory::reserved() {
  const RecursiveMutexLock lock(climb_mutex_);
  const PageCounts pages = store_.counts();
  const auto bytes = [this](std::uint64_t count) {
    return static_cast<std::int64_t>(count * store_.page_bytes());
  };
  const std::array<StatValue, kStatClasses> segments = segment_stats_.read().of[kSegmentBytes];
  const auto plus_pages = [&](StatValue value) FERRO_REQUIRES(climb_mutex_) {
    value.current += bytes(pages.held);
    value.increased += bytes(pages.created - pages_at_reset_.created);
    value.decreased += bytes(pages.released - pages_at_reset_.released);
    return value;
  };
  std::array<StatValue, kStatClasses> reserved{};
  reserved[kAll] = plus_pages(segments[kAll]);
  reserved[kAll].peak = static_cast<std::int64_t>(pages.peak_bytes);
  // Pages hold blocks of all sizes, so they all count as large. Where there are segments beside
  // them, the two had their peaks at different times: then this one is at most their sum.
  reserved[kSmall] = segments[kSmall];
  reserved[kLarge] = plus_pages(segments[kLarge]);
  reserved[kLarge].peak =
      std::min(reserved[kAll].peak, segments[kLarge].peak + bytes(pages.peak_held));
  return reserved;
}

void DeviceMemory::reset_peaks() {
  const RecursiveMutexLock lock(climb_mutex_);
  ladder_.reset_slowest();
  stats_.reset_peaks();
  store_.reset_peak();
  segment_stats_.reset_peaks();
  pools_.reset_peaks();
}

void DeviceMemory::reset_accumulated_counters() {
  const RecursiveMutexLock lock(climb_mutex_);
  counters_ = {.ladder = counters_.ladder, .ladder_costs = counters_.ladder_costs};
  pages_at_reset_ = store_.counts();
  segment_stats_.reset_accumulated();
  pools_.reset_accumulated();
}

OutOfMemoryFacts DeviceMemory::facts_of_failure(std::size_t wanted) {
  OutOfMemoryFacts facts;
  facts.device = driver_.device();
  facts.request = wanted;
  const MemoryInfo info = driver_.memory_info();
  facts.capacity = info.total_bytes;
  facts.device_free = info.free_bytes;
  if (const std::size_t limit = store_.limit(); limit != PageStore::kNoLimit) {
    facts.limit = limit;
  }
  facts.headroom = config_.headroom;
  facts.held = held_bytes();
  for (Heap* heap : pools_.all_heaps()) {
    const HeapView view = heap->view();
    const std::size_t live = view.backed_bytes - view.free_bytes - view.pending_bytes;
    const bool is_default = heap->pool() == kDefaultPool;
    facts.live += live;
    facts.pending += view.pending_bytes;
    (is_default ? facts.free_default : facts.free_private) += view.free_bytes;
    facts.live_private += is_default ? 0 : live;
  }
  return facts;
}

void DeviceMemory::check_invariants() {
  const RecursiveMutexLock lock(climb_mutex_);
  std::size_t backed = 0;
  std::size_t in_segments = 0;
  std::int64_t live = 0;
  pools_.for_each_pool([&](const PoolId& id, const Pool& pool) {
    const std::size_t before = backed + in_segments;
    for (const auto& [key, heap] : pool.heaps) {
      heap->check_invariants();
      const HeapView view = heap->view();
      (is_paged(heap->kind()) ? backed : in_segments) += view.backed_bytes;
      live += static_cast<std::int64_t>(view.backed_bytes - view.free_bytes - view.pending_bytes);
    }
    FERRO_CHECK(id == kDefaultPool || static_cast<std::size_t>(pool.bytes.of[kAll].current.get()) ==
                                          backed + in_segments - before);
  });
  const PageCounts pages = store_.counts();
  FERRO_CHECK(pages.held * store_.page_bytes() == backed + pages.idle * store_.page_bytes());
  FERRO_CHECK(pages.charged_bytes == in_segments);
  const SegmentTable segments = segment_stats_.read();
  FERRO_CHECK(segments.of[kSegmentBytes][kAll].current == static_cast<std::int64_t>(in_segments));
  FERRO_CHECK(pages.created - pages.released == pages.held && pages.peak_held >= pages.held);
  FERRO_CHECK(stats_.read()[kBytes][kAll].current == live);
}

}  // namespace ferro
