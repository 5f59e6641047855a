#include "ferro/core/device/ladder.h"

#include "ferro/core/policy/stream_waits.h"
#include "ferro/driver/error.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <utility>

namespace ferro {
namespace {

// The pages that the request would take from the driver or from other heaps.
std::size_t pages_missing(const DeviceParts& parts, const Climb& climb) {
  const std::size_t pages = climb.heap.pages_missing_for(climb.request, GrowFrom::kAnyPages);
  return pages - parts.store.available(climb.heap.page_request(climb.request, pages));
}

// As far as the limit and the driver's free memory tell.
std::size_t creatable_pages(const DeviceParts& parts) {
  const std::size_t held = parts.held_bytes();
  const std::size_t limit = parts.store.limit();
  const std::size_t free = parts.driver.memory_info().free_bytes;
  const std::size_t bytes =
      std::min(limit - std::min(limit, held), free - std::min(free, parts.store.headroom()));
  return bytes / parts.store.page_bytes();
}

// Whether free pages of the request's own pool move to it, and suffice with what `after` brings
// from elsewhere. Else they stay the pool's, as under native, where a failed request takes nothing.
bool takes_from_own_pool(const DeviceParts& parts, const Climb& climb, ReleaseAfter after) {
  const Heap& heap = climb.heap;
  if (heap.pool() == kDefaultPool || heap.keeps_pages()) {
    return false;
  }
  // After a wait of the host its own heap gives pages like the others.
  const bool is_last = after == ReleaseAfter::kHostWait;
  PageRequest all;
  all.pages = ceil_div(climb.request.size, parts.store.page_bytes());
  const std::size_t missing =
      is_last ? all.pages - parts.store.available(all) : pages_missing(parts, climb);
  std::size_t pages = 0;
  const auto add_pages_of = [&](const PoolId& pool) {
    for (Heap* giver : parts.pools.heaps_of(pool)) {
      if ((is_last || giver != &heap) && pages < missing) {
        pages += giver->releasable_pages(missing - pages, after);
      }
    }
  };
  add_pages_of(heap.pool());
  if (pages == 0) {
    return false;
  }
  // Before memory grows, a request looks at few heaps of the default pool.
  if (is_last) {
    add_pages_of(kDefaultPool);
  }
  return pages >= missing || pages + creatable_pages(parts) >= missing;
}

}  // namespace

struct Ladder::Step {
  LadderStep name;
  DevicePtr (Ladder::*make_room_and_allocate)(Climb&);
};

const std::array<Ladder::Step, 12> Ladder::kSteps = {{
    {LadderStep::kCollectPending, &Ladder::collect_pending_frees},
    {LadderStep::kGrow, &Ladder::grow_instead_of_moving},
    {LadderStep::kMovePages, &Ladder::move_pages},
    {LadderStep::kIdlePages, &Ladder::take_idle_pages},
    {LadderStep::kPassedPages, &Ladder::take_passed_pages},
    {LadderStep::kStreamWait, &Ladder::stream_wait_before_growth},
    {LadderStep::kTransfer, &Ladder::transfer_before_growth},
    {LadderStep::kGrow, &Ladder::grow},
    {LadderStep::kStreamWait, &Ladder::wait_on_stream},
    {LadderStep::kTransfer, &Ladder::transfer_pages},
    {LadderStep::kReclaim, &Ladder::reclaim},
    {LadderStep::kWait, &Ladder::wait_for_memory},
}};

DevicePtr Ladder::climb(Climb& climb) {
  using Clock = std::chrono::steady_clock;
  const auto began = Clock::now();
  Clock::time_point last = began;
  DevicePtr ptr = kNull;
  parts_.stale.remove_passed();
  climb.request.stream_may_wait = parts_.config.may_wait_before_growth();
  const auto pages_so_far = [&] {
    return climb.heap.pages_moved() + parts_.counters.pages_transferred;
  };
  const std::uint64_t created = parts_.store.counts().created;
  for (const Step& step : kSteps) {
    // Memory freed before this point may go elsewhere once it has passed.
    if (&step == &kSteps[kFirstElsewhere]) {
      parts_.timeline.record();
      parts_.timeline.update();
    }
    const std::uint64_t pages = pages_so_far();
    climb.request.step = step.name;
    ptr = (this->*step.make_room_and_allocate)(climb);
    const auto now = Clock::now();
    StepCost& cost = parts_.counters.ladder_costs[static_cast<std::size_t>(step.name)];
    cost.nanoseconds += static_cast<std::uint64_t>(std::chrono::nanoseconds(now - last).count());
    cost.pages += pages_so_far() - pages;
    last = now;
    if (ptr != kNull) {
      ++parts_.counters.ended_by(step.name);
    }
    if (ptr != kNull || climb.is_rejected()) {
      break;
    }
  }
  if (ptr != kNull && parts_.store.counts().created == created) {
    ++parts_.counters.late_hits;
  }
  std::uint64_t& slowest = parts_.counters.slowest_nanoseconds;
  slowest =
      std::max(slowest, static_cast<std::uint64_t>(std::chrono::nanoseconds(last - began).count()));
  return ptr;
}

DevicePtr Ladder::collect_pending_frees(Climb& climb) {
  return climb.heap.allocate_collected(climb.request);
}

DevicePtr Ladder::allocate_grown(Climb& climb, GrowFrom from) {
  DevicePtr ptr = kNull;
  climb.grown = climb.heap.allocate_grown(climb.request, from, &ptr);
  if (climb.lacks_addresses() && reclaimer_.release_addresses() != 0) {
    climb.grown = climb.heap.allocate_grown(climb.request, from, &ptr);
  }
  return ptr;
}

Ladder::MovedSize& Ladder::moved_size(const Climb& climb) {
  const std::size_t hash = std::hash<const Heap*>{}(&climb.heap) / 64 + climb.request.size / 512;
  return moved_sizes_[hash % moved_sizes_.size()];
}

DevicePtr Ladder::grow_instead_of_moving(Climb& climb) {
  MovedSize& moved = moved_size(climb);
  // First without the peak, whose sum visits all heaps.
  if (!moved.is_of(climb) || moved.moves < RepeatedMoveRules{}.moves || climb.heap.keeps_pages()) {
    return kNull;
  }
  RepeatedMove move{moved.moves, 0, parts_.held_bytes(), peak_live()};
  if (!prefers_growth(move)) {
    return kNull;
  }
  const std::size_t pages = climb.heap.pages_missing_for(climb.request, GrowFrom::kStore);
  move.missing = pages * parts_.store.page_bytes();
  if (!prefers_growth(move)) {
    return kNull;
  }
  moved = {};
  const DevicePtr ptr = allocate_grown(climb, GrowFrom::kStore);
  climb.grown = GrowResult::kTooFewPages;  // a rejected request may still be served by a move
  return ptr;
}

DevicePtr Ladder::move_pages(Climb& climb) {
  const DevicePtr ptr = allocate_grown(climb, GrowFrom::kOwnPages);
  if (ptr != kNull) {
    MovedSize& moved = moved_size(climb);
    moved = {&climb.heap, climb.request.size, moved.is_of(climb) ? moved.moves + 1 : 1};
  }
  return ptr;
}

DevicePtr Ladder::take_idle_pages(Climb& climb) {
  return parts_.store.counts().idle != 0 ? allocate_grown(climb, GrowFrom::kIdlePages) : kNull;
}

std::vector<Heap*> Ladder::givers_for(const Climb& climb, std::size_t at_most) {
  std::vector<Heap*> givers;
  if (at_most == kAllGivers) {
    for (Heap* giver : parts_.pools.heaps_of(kDefaultPool)) {
      if (giver != &climb.heap) {
        givers.push_back(giver);
      }
    }
    return givers;
  }
  const auto add_givers_of = [&](const PoolId& pool) {
    parts_.pools.for_each_with_free_pages(pool, [&](Heap& giver) {
      if (&giver != &climb.heap && givers.size() < at_most) {
        givers.push_back(&giver);
      }
      return givers.size() < at_most;
    });
  };
  if (takes_from_own_pool(parts_, climb, ReleaseAfter::kPassed)) {
    add_givers_of(climb.heap.pool());
  }
  add_givers_of(kDefaultPool);
  return givers;
}

// Pages that do not suffice stay in the store, so that `grow` creates fewer.
DevicePtr Ladder::take_passed_pages(Climb& climb) {
  const std::vector<Heap*> givers = givers_for(climb, kMaxGivers);
  if (givers.empty() || !may_transfer()) {
    return kNull;
  }
  const std::size_t missing = pages_missing(parts_, climb);
  std::size_t released = 0;
  for (std::size_t i = 0; i < givers.size() && released < missing; ++i) {
    released +=
        givers[i]->release_pages(missing - released, ReleaseAfter::kPassed, climb.request.context);
  }
  released += released < missing ? release_of_own_stream(climb, givers, missing - released) : 0;
  if (released == 0) {
    return kNull;
  }
  const std::uint64_t maps = parts_.driver.calls().map;
  const DevicePtr ptr = allocate_transferred(climb, GrowFrom::kIdlePages);
  handles_transferred_ += parts_.driver.calls().map - maps;
  return ptr;
}

// Takes pages of the same stream's arena for the other size class. The stream's own work precedes
// its next work anyway, and other streams have mostly finished their earlier work by then.
std::size_t Ladder::release_of_own_stream(Climb& climb, const std::vector<Heap*>& givers,
                                          std::size_t wanted) {
  Heap& heap = climb.heap;
  if (heap.pool() != kDefaultPool || !heap.stream_lasts() || heap.is_capturing() ||
      !climb.request.stream_may_wait) {
    return 0;
  }
  const Epoch epoch = parts_.timeline.last_orderable();
  std::size_t released = 0;
  for (Heap* giver : givers) {
    if (giver->stream() == heap.stream() && released < wanted &&
        giver->releasable_pages(1, ReleaseAfter::kStreamWait) != 0 && heap.order_behind(epoch)) {
      released +=
          giver->release_pages(wanted - released, ReleaseAfter::kStreamWait, climb.request.context);
    }
  }
  return released;
}

bool Ladder::may_transfer() {
  return prefers_transfer(handles_transferred_, parts_.stats.allocations(),
                          parts_.config.transfers);
}

DevicePtr Ladder::grow(Climb& climb) {
  const DevicePtr ptr = allocate_grown(climb, GrowFrom::kAnyPages);
  return climb.grown == GrowResult::kGapTooShort ? allocate_grown(climb, GrowFrom::kStore) : ptr;
}

std::size_t Ladder::peak_live() {
  const auto peak = static_cast<std::size_t>(parts_.stats.read()[kBytes][kAll].peak);
  return peak_live_ = std::max(peak_live_, peak);
}

bool Ladder::prefers_stream_wait_for(std::size_t pending, const Request& request) {
  if (!request.stream_may_wait) {
    return false;
  }
  const StreamWaitView view{request.size, pending, parts_.held_bytes(), peak_live()};
  return prefers_stream_wait(view, parts_.config.in_flight_share);
}

DevicePtr Ladder::stream_wait_before_growth(Climb& climb) {
  const std::size_t pending = climb.heap.reclaimable_by_stream_wait();
  return pending != 0 && prefers_stream_wait_for(pending, climb.request)
             ? stream_wait_and_allocate(climb, climb.request.size)
             : kNull;
}

DevicePtr Ladder::transfer_before_growth(Climb& climb) {
  // The search for pages visits other heaps, so it comes last.
  if (climb.heap.pool() != kDefaultPool ||
      !prefers_stream_wait_for(climb.request.size, climb.request) || !may_transfer()) {
    return kNull;
  }
  const std::uint64_t maps = parts_.driver.calls().map;
  const DevicePtr ptr = transfer(climb, kMaxGivers);
  handles_transferred_ += parts_.driver.calls().map - maps;
  return ptr;
}

// Memory can no longer grow, so from here on the stream waits even if the program prefers growth.
DevicePtr Ladder::wait_on_stream(Climb& climb) {
  const bool might_wait = std::exchange(climb.request.stream_may_wait, true);
  const DevicePtr ptr = stream_wait_and_allocate(climb, climb.heap.reclaimable_by_stream_wait());
  if (ptr != kNull) {
    return ptr;
  }
  const bool is_of_capture = climb.heap.pool() != kDefaultPool && climb.heap.is_capturing();
  bool has_joined = false;
  if (is_of_capture) {
    // Memory that the capture has freed may move once the stream comes behind all its streams.
    try {
      parts_.timeline.join_streams(climb.heap.stream(), parts_.pools.lasting_streams());
      has_joined = true;
    } catch (const DriverError&) {
      // The later steps may still help.
    }
  }
  return has_joined || !might_wait ? grow(climb) : kNull;
}

DevicePtr Ladder::stream_wait_and_allocate(Climb& climb, std::size_t at_most) {
  if (const DevicePtr ptr = climb.heap.allocate_after_stream_wait(climb.request, at_most);
      ptr != kNull) {
    return ptr;
  }
  // Memory that these waits free has a later stamp than the last point.
  parts_.timeline.record();
  return move_pages(climb);
}

DevicePtr Ladder::transfer_pages(Climb& climb) {
  // Only in the default pool, as in Heap::reclaimable_by_stream_wait.
  return climb.heap.pool() == kDefaultPool ? transfer(climb, kAllGivers) : kNull;
}

// Takes free pages of other heaps if there are enough; this heap's stream waits for their epochs.
DevicePtr Ladder::transfer(Climb& climb, std::size_t max_givers) {
  if (climb.heap.is_capturing()) {
    return kNull;
  }
  PageRequest wanted = climb.heap.page_request(
      climb.request, climb.heap.pages_missing_for(climb.request, GrowFrom::kAnyPages));
  if (parts_.store.available(wanted) == wanted.pages) {
    return kNull;  // an earlier step had them, and could not use them
  }
  wanted.waits = climb.heap.stream();
  const std::size_t missing = wanted.pages - parts_.store.available(wanted);
  std::vector<Heap*> givers = givers_for(climb, max_givers);
  const auto are_enough = [&] {
    std::size_t pages = 0;
    for (std::size_t i = 0; i < givers.size() && pages < missing; ++i) {
      pages += givers[i]->releasable_pages(missing - pages, ReleaseAfter::kStreamWait);
    }
    return pages >= missing;
  };
  if (!are_enough()) {
    bool has_freed = false;
    parts_.pools.for_each_with_pending([&](Heap& giver) {
      if (giver.pool() == kDefaultPool && &giver != &climb.heap) {
        has_freed |= giver.stream_wait_for_pending();
      }
    });
    if (has_freed) {
      // Memory that these waits free has a later stamp than the last point.
      parts_.timeline.record();
    }
    givers = givers_for(climb, max_givers);
    if (!are_enough()) {
      return kNull;
    }
  }
  std::size_t released = 0;
  for (std::size_t i = 0; i < givers.size() && released < missing; ++i) {
    released += givers[i]->release_pages(missing - released, ReleaseAfter::kStreamWait,
                                         climb.request.context);
  }
  return allocate_transferred(climb, GrowFrom::kWaitedPages);
}

DevicePtr Ladder::allocate_transferred(Climb& climb, GrowFrom from) {
  const std::uint64_t before = parts_.store.counts().transferred;
  const DevicePtr ptr = allocate_grown(climb, from);
  parts_.counters.pages_transferred += parts_.store.counts().transferred - before;
  return ptr;
}

// Pages held beyond a lowered limit, or beyond a headroom that other processes have used. The
// driver must get them back before it creates any.
std::size_t Ladder::pages_beyond_limits() const {
  const std::size_t held = parts_.held_bytes();
  std::size_t beyond = held - std::min(parts_.store.limit(), held);
  if (const std::size_t headroom = parts_.store.headroom(); headroom != 0) {
    const std::size_t left = std::min(parts_.driver.memory_info().free_bytes, headroom);
    beyond = std::max(beyond, headroom - left);
  }
  return ceil_div(beyond, parts_.store.page_bytes());
}

// Collects pages from one heap after the other until the request can be served.
DevicePtr Ladder::grow_from(const std::vector<Heap*>& givers, Climb& climb) {
  for (Heap* giver : givers) {
    PageRequest ready;
    ready.pages = ceil_div(climb.request.size, parts_.store.page_bytes()) + pages_beyond_limits();
    const std::size_t released = reclaimer_.release_pages_of(
        *giver, ready.pages - parts_.store.available(ready), climb.request.context);
    if (released != 0) {
      if (const DevicePtr ptr = grow(climb); ptr != kNull) {
        return ptr;
      }
    }
  }
  return kNull;
}

DevicePtr Ladder::reclaim(Climb& climb) {
  if (parts_.observer.is_within_climb()) {
    return kNull;
  }
  if (parts_.captures.load() == 0 && parts_.graphs != nullptr) {
    parts_.graphs->collect();
  }
  // A callback frees memory through the public interface, so no heap is locked here.
  if (parts_.ask_program_for_memory()) {
    if (const DevicePtr ptr = climb.heap.allocate_collected(climb.request); ptr != kNull) {
      return ptr;
    }
    // The freed memory may have gone to the driver.
    if (const DevicePtr ptr = grow(climb); ptr != kNull) {
      return ptr;
    }
  }
  return grow_from(parts_.pools.reclaimable_heaps(), climb);
}

DevicePtr Ladder::wait_for_memory(Climb& climb) {
  ++parts_.counters.retries;
  ++parts_.counters.synchronisations;
  if (const DevicePtr ptr = climb.heap.allocate_waited(climb.request); ptr != kNull) {
    return ptr;
  }
  if (const DevicePtr ptr = grow(climb); ptr != kNull) {
    return ptr;
  }
  // Without a point, memory freed meanwhile could not leave its place.
  if (!parts_.timeline.record()) {
    const bool has_waited = parts_.timeline.wait_during_captures();
    if (const DevicePtr ptr = has_waited ? grow(climb) : kNull; ptr != kNull) {
      return ptr;
    }
  }
  parts_.imports.collect();
  while (const std::optional<Epoch> freed = parts_.store.epoch_to_wait_for()) {
    if (!parts_.timeline.wait(*freed)) {
      break;
    }
    if (const DevicePtr ptr = grow(climb); ptr != kNull) {
      return ptr;
    }
  }
  // The pages of a graph's pool stay, because graphs replay even on pages without a live block.
  // Free pages come first, then those of blocks that still wait for other streams.
  std::vector<Heap*> givers = parts_.pools.heaps_of(kDefaultPool);
  const PoolId own = climb.heap.pool();
  if (own != kDefaultPool && !climb.heap.keeps_pages()) {
    // Its pages move within the heap now.
    const std::vector<Heap*> of_pool = parts_.pools.heaps_of(own);
    for (Heap* heap : of_pool) {
      heap->wait_for_pending();
    }
    if (parts_.timeline.wait_for_all()) {
      if (const DevicePtr ptr = grow(climb); ptr != kNull) {
        return ptr;
      }
    }
    if (takes_from_own_pool(parts_, climb, ReleaseAfter::kHostWait)) {
      givers.insert(givers.begin(), of_pool.begin(), of_pool.end());
    }
  }
  if (const DevicePtr ptr = grow_from(givers, climb); ptr != kNull) {
    return ptr;
  }
  for (Heap* giver : givers) {
    giver->wait_for_pending();
  }
  if (const DevicePtr ptr = grow_from(givers, climb); ptr != kNull) {
    return ptr;
  }
  // Another process or library may have freed memory since the driver refused at step 5.
  return grow(climb);
}

}  // namespace ferro
