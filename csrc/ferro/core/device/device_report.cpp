#include "ferro/core/device/device_report.h"

#include "ferro/base/check.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>

namespace ferro {

std::vector<SegmentView> DeviceReport::segments(const PoolId* only) {
  const RecursiveMutexLock lock(climb_mutex_);
  std::vector<SegmentView> segments;
  for (Heap* heap : only != nullptr ? parts_.pools.heaps_of(*only) : parts_.pools.all_heaps()) {
    std::ranges::move(heap->segments(), std::back_inserter(segments));
  }
  std::ranges::sort(segments, {}, &SegmentView::ptr);
  return segments;
}

std::vector<BlockView> DeviceReport::live_blocks(const PoolId& id) {
  const RecursiveMutexLock lock(climb_mutex_);
  std::vector<BlockView> live;
  for (Heap* heap : parts_.pools.heaps_of(id)) {
    std::ranges::move(live_blocks_of(*heap), std::back_inserter(live));
  }
  return live;
}

void DeviceReport::visit_live(const VisitLive& visit) {
  const RecursiveMutexLock lock(climb_mutex_);
  for (Heap* heap : parts_.pools.all_heaps()) {
    heap->visit_live(visit);
  }
}

std::size_t DeviceReport::largest_free_block() {
  const RecursiveMutexLock lock(climb_mutex_);
  std::size_t largest = 0;
  for (Heap* heap : parts_.pools.all_heaps()) {
    largest = std::max(largest, heap->view().largest_free);
  }
  return largest;
}

std::size_t DeviceReport::stranded_bytes() {
  const RecursiveMutexLock lock(climb_mutex_);
  std::size_t stranded = 0;
  for (Heap* heap : parts_.pools.all_heaps()) {
    // In this order, so that memory freed in between does not count.
    const std::size_t free = heap->view().free_bytes;
    const std::size_t whole = heap->free_pages() * parts_.store.page_bytes();
    stranded += free - std::min(free, whole);
  }
  return stranded;
}

StrandedBytes DeviceReport::stranded() {
  const RecursiveMutexLock lock(climb_mutex_);
  StrandedBytes stranded;
  for (Heap* heap : parts_.pools.all_heaps()) {
    heap->add_stranded(stranded);
  }
  return stranded;
}

TagBytes DeviceReport::reserved_by_tag() {
  const RecursiveMutexLock lock(climb_mutex_);
  TagBytes reserved;
  for (Heap* heap : parts_.pools.all_heaps()) {
    heap->add_reserved_by_tag(reserved);
  }
  return reserved;
}

DeviceView DeviceReport::view() {
  const RecursiveMutexLock lock(climb_mutex_);
  DeviceView view;
  std::uint64_t climbs = 0;
  for (const std::uint64_t ended : parts_.counters.ladder) {
    climbs += ended;
  }
  view.hits =
      parts_.stats.allocations() - (climbs - parts_.counters.ended_by(LadderStep::kOutOfMemory));
  view.late_hits = parts_.counters.late_hits;
  view.misses = climbs - view.late_hits;
  for (Heap* heap : parts_.pools.all_heaps()) {
    const HeapView part = heap->view();
    view.free_blocks += part.free_blocks;
    view.free_bytes += part.free_bytes;
    view.asleep_live_bytes += part.asleep_bytes - part.asleep_free_bytes;
    view.pages_moved += heap->pages_moved();
  }
  return view;
}

std::size_t DeviceReport::bytes_from_driver(StreamId stream, const Request& request) {
  const RecursiveMutexLock lock(climb_mutex_);
  Heap& heap = parts_.pools.arena(kDefaultPool, stream, heap_kind(request.size));
  parts_.timeline.record();
  parts_.timeline.update();
  Request asked = request;
  asked.stream_may_wait = parts_.config.may_wait_before_growth();
  const PageRequest wanted =
      heap.page_request(asked, heap.pages_missing_for(asked, GrowFrom::kAnyPages));
  std::size_t at_hand = parts_.store.available(wanted);
  parts_.pools.for_each_with_free_pages(kDefaultPool, [&](Heap& giver) {
    if (&giver != &heap) {
      at_hand += giver.releasable_pages(wanted.pages, ReleaseAfter::kPassed);
    }
    return at_hand < wanted.pages;
  });
  return (wanted.pages - std::min(wanted.pages, at_hand)) * parts_.store.page_bytes();
}

DeviceCounters DeviceReport::counters() {
  const RecursiveMutexLock lock(climb_mutex_);
  DeviceCounters counters = parts_.counters;
  const PageCounts pages = parts_.store.counts();
  counters.pages_created = pages.created - pages_at_reset_.created;
  counters.pages_released = pages.released - pages_at_reset_.released;
  const StaleMappings::Counts unmaps = parts_.stale.counts();
  counters.unmapped_by_requests = unmaps.removed;
  counters.unmaps_refused = unmaps.refused;
  return counters;
}

void DeviceReport::reset_slowest() {
  const RecursiveMutexLock lock(climb_mutex_);
  parts_.counters.slowest_nanoseconds = 0;
}

std::array<StatValue, kStatClasses> DeviceReport::reserved() {
  const RecursiveMutexLock lock(climb_mutex_);
  const PageCounts pages = parts_.store.counts();
  const auto bytes = [this](std::uint64_t count) {
    return static_cast<std::int64_t>(count * parts_.store.page_bytes());
  };
  std::array<StatValue, kStatClasses> reserved{};
  StatValue& all = reserved[kAll];
  all = {bytes(pages.held), bytes(pages.peak_held), bytes(pages.created - pages_at_reset_.created),
         bytes(pages.released - pages_at_reset_.released)};
  // Pages hold blocks of all sizes. As in snapshots, the bytes of small blocks in use count as
  // small and all others as large, so pages change class. The peaks of the classes occur at
  // different times: the small one is at most the total, the large one at least the difference.
  StatValue& small = reserved[kSmall];
  small = occupied_by_small_blocks();
  small.peak = std::min(all.peak, small.peak);
  StatValue& large = reserved[kLarge];
  small.current = std::min(all.current, small.current);  // without small blocks that are asleep
  large.current = all.current - small.current;
  large.peak = std::max(large.current, all.peak - small.peak);
  large.increased = all.increased + small.decreased;
  large.decreased = all.decreased + small.increased;
  return reserved;
}

StatValue DeviceReport::occupied_by_small_blocks() {
  StatValue occupied = parts_.stats.read()[kActiveBytes][kSmall];
  for (const Heap* heap : parts_.pools.small_heaps()) {
    occupied.current -= heap->active_bytes(kSmall);
    if (heap->kind() == HeapKind::kSmallPages) {
      occupied.current += static_cast<std::int64_t>(heap->backed_bytes());
    }
  }
  occupied.increased = occupied.current + occupied.decreased;
  occupied.peak = std::max(occupied.peak, occupied.current);
  return occupied;
}

void DeviceReport::reset_peaks() {
  const RecursiveMutexLock lock(climb_mutex_);
  parts_.counters.slowest_nanoseconds = 0;
  parts_.stats.reset_peaks();
  parts_.store.reset_peak();
  parts_.pools.reset_peaks();
}

void DeviceReport::reset_accumulated() {
  const RecursiveMutexLock lock(climb_mutex_);
  parts_.counters = {.slowest_nanoseconds = parts_.counters.slowest_nanoseconds,
                     .late_hits = parts_.counters.late_hits,
                     .ladder = parts_.counters.ladder,
                     .ladder_costs = parts_.counters.ladder_costs};
  pages_at_reset_ = parts_.store.counts();
  parts_.pools.reset_accumulated();
}

OutOfMemoryFacts DeviceReport::facts_of_failure(std::size_t wanted) {
  const RecursiveMutexLock lock(climb_mutex_);
  OutOfMemoryFacts facts;
  facts.device = parts_.driver.device();
  facts.request = wanted;
  const MemoryInfo info = parts_.driver.memory_info();
  facts.capacity = info.total_bytes;
  facts.device_free = info.free_bytes;
  if (const std::size_t limit = parts_.store.limit(); limit != PageStore::kNoLimit) {
    facts.limit = limit;
  }
  facts.headroom = parts_.store.headroom();
  facts.held = held_bytes();
  facts.scratch = pages_of_graphs() * parts_.store.page_bytes();
  std::map<StreamId, StreamShare> streams;
  for (Heap* heap : parts_.pools.all_heaps()) {
    const HeapView view = heap->view();
    // Memory that is asleep is not on the device.
    const std::size_t live = view.live_bytes() - (view.asleep_bytes - view.asleep_free_bytes);
    const bool is_default = heap->pool() == kDefaultPool;
    facts.live += live;
    facts.pending += view.pending_bytes;
    (is_default ? facts.free_default : facts.free_private) += view.free_bytes;
    facts.live_private += is_default ? 0 : live;
    if (is_default) {
      heap->add_stranded(facts.stranded);
    }
    if (is_default && view.backed_bytes != view.asleep_bytes) {
      StreamShare& share = streams[heap->stream()];
      share.stream = heap->stream();
      share.held += view.backed_bytes - view.asleep_bytes;
      share.live += live;
    }
  }
  for (const auto& [stream, share] : streams) {
    facts.streams.push_back(share);
  }
  std::ranges::sort(facts.streams, std::ranges::greater{}, &StreamShare::held);
  return facts;
}

void DeviceReport::check_invariants() {
  const RecursiveMutexLock lock(climb_mutex_);
  const GraphPages* graphs = parts_.graphs;
  std::size_t backed = 0;
  std::int64_t live = 0;
  parts_.pools.for_each_pool([&](const PoolId& id, const Pool& pool) {
    const std::size_t before = backed;
    for (const auto& [key, heap] : pool.heaps) {
      heap->check_invariants();
      const HeapView view = heap->view();
      backed += view.backed_bytes - view.borrowed_bytes - view.asleep_bytes;
      live += static_cast<std::int64_t>(view.live_bytes());
    }
    FERRO_CHECK(id == kDefaultPool ||
                static_cast<std::size_t>(pool.bytes.of[kAll].held.current()) ==
                    backed - before +
                        (graphs != nullptr ? graphs->pages_of(id) : 0) * parts_.store.page_bytes());
  });
  const PageCounts pages = parts_.store.counts();
  FERRO_CHECK(pages.held * parts_.store.page_bytes() ==
              backed + (pages_of_graphs() + pages.idle) * parts_.store.page_bytes());
  if (graphs != nullptr) {
    graphs->check_invariants();
  }
  FERRO_CHECK(pages.created - pages.released == pages.held && pages.peak_held >= pages.held);
  FERRO_CHECK(parts_.stats.read()[kBytes][kAll].current == live);
}

}  // namespace ferro
