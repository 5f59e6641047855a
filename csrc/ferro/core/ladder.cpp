// The steps that a request climbs when no free block fits (ladder.h).
#include "ferro/base/check.h"
#include "ferro/core/device_memory.h"
#include "ferro/core/waiting.h"
#include "ferro/driver/error.h"

#include <algorithm>
#include <chrono>
#include <string>

namespace ferro {

struct DeviceMemory::Step {
  LadderStep name;
  DevicePtr (DeviceMemory::*make_room_and_allocate)(Heap&, const Request&);
};

const std::array<DeviceMemory::Step, 12> DeviceMemory::kLadder = {{
    {LadderStep::kCollectPending, &DeviceMemory::collect_pending_frees},
    {LadderStep::kMergeUnmerged, &DeviceMemory::merge_unmerged},
    {LadderStep::kMovePages, &DeviceMemory::move_pages},
    {LadderStep::kIdlePages, &DeviceMemory::take_idle_pages},
    {LadderStep::kPagesAtRest, &DeviceMemory::take_pages_at_rest},
    {LadderStep::kStreamWait, &DeviceMemory::wait_rather_than_grow},
    {LadderStep::kHandOver, &DeviceMemory::borrow_rather_than_grow},
    {LadderStep::kGrow, &DeviceMemory::grow},
    {LadderStep::kStreamWait, &DeviceMemory::wait_on_stream},
    {LadderStep::kHandOver, &DeviceMemory::hand_over},
    {LadderStep::kGiveBack, &DeviceMemory::ask_to_give_back},
    {LadderStep::kWait, &DeviceMemory::wait_for_memory},
}};

AllocateResult DeviceMemory::climb(Heap& heap, const Request& request) {
  const RecursiveMutexLock slow(slow_mutex_);
  if (!granularity_checked_) {
    const std::size_t granularity = driver_.granularity();
    if (config_.page_bytes % granularity != 0) {
      throw DriverError("a page size that is not a multiple of " + std::to_string(granularity),
                        "an unsupported configuration", config_.page_bytes, driver_.device());
    }
    granularity_checked_ = true;
  }
  if (!heap.stream_lasts()) {
    heap.set_stream_lasts(stream_lasts(heap.stream()));
  }
  read_rejection_limit();
  // More than the device has cannot be had, and should not cost the cached memory either.
  if (request.size <= total_memory_) {
    if (const DevicePtr ptr = climb_steps(heap, request); ptr != kNull) {
      return {ptr, request.size, nullptr};
    }
    if (rejected_) {
      return reject(request.size);
    }
  } else if (rejection_limit_ < store_.limit()) {
    return reject(request.size);
  }
  return out_of_memory(request.size);
}

DevicePtr DeviceMemory::climb_steps(Heap& heap, const Request& request) {
  using Clock = std::chrono::steady_clock;
  const auto began = Clock::now();
  Clock::time_point last = began;
  DevicePtr ptr = kNull;
  Request asking = request;
  for (const Step& step : kLadder) {
    const std::uint64_t pages = heap.pages_moved() + counters_.pages_handed_over;
    asking.step = step.name;
    ptr = (this->*step.make_room_and_allocate)(heap, asking);
    const auto now = Clock::now();
    StepCost& cost = counters_.ladder_costs[static_cast<std::size_t>(step.name)];
    cost.nanoseconds += static_cast<std::uint64_t>(std::chrono::nanoseconds(now - last).count());
    cost.pages += heap.pages_moved() + counters_.pages_handed_over - pages;
    last = now;
    if (ptr != kNull) {
      ++counters_.ladder[static_cast<std::size_t>(step.name)];
    }
    if (ptr != kNull || rejected_) {
      break;
    }
  }
  slowest_nanoseconds_ =
      std::max(slowest_nanoseconds_,
               static_cast<std::uint64_t>(std::chrono::nanoseconds(last - began).count()));
  return ptr;
}

AllocateResult DeviceMemory::out_of_memory(std::size_t wanted) {
  ++counters_.ladder[static_cast<std::size_t>(LadderStep::kOutOfMemory)];
  ++counters_.out_of_memory;
  auto failure = std::make_unique<OutOfMemoryFacts>(facts_of_failure(wanted));
  // What was gathered in vain is of more use to the other libraries of the process.
  store_.trim(~std::size_t{0});
  return {kNull, 0, std::move(failure)};
}

void DeviceMemory::read_rejection_limit() {
  rejected_ = false;
  rejection_limit_ =
      config_.rejection_limit ? config_.rejection_limit(total_memory_) : PageStore::kNoLimit;
  store_.set_rejection_limit(rejection_limit_);
}

AllocateResult DeviceMemory::reject(std::size_t wanted) {
  ++counters_.ladder[static_cast<std::size_t>(LadderStep::kOutOfMemory)];
  ++counters_.rejected;
  auto failure = std::make_unique<OutOfMemoryFacts>(facts_of_failure(wanted));
  failure->rejected_beyond = rejection_limit_;
  return {kNull, 0, std::move(failure)};
}

DevicePtr DeviceMemory::collect_pending_frees(Heap& heap, const Request& request) {
  return heap.allocate_collected(request);
}

DevicePtr DeviceMemory::merge_unmerged(Heap& heap, const Request& request) {
  return heap.allocate_merged(request);
}

DevicePtr DeviceMemory::allocate_grown(Heap& heap, const Request& request, GrowFrom from) {
  DevicePtr ptr = kNull;
  const GrowResult result = heap.allocate_grown(request, from, &ptr);
  rejected_ = result == GrowResult::kRejected;
  gap_too_short_ = result == GrowResult::kGapTooShort;
  return ptr;
}

DevicePtr DeviceMemory::move_pages(Heap& heap, const Request& request) {
  return allocate_grown(heap, request, GrowFrom::kOwnPages);
}

DevicePtr DeviceMemory::take_idle_pages(Heap& heap, const Request& request) {
  return store_.counts().idle != 0 ? allocate_grown(heap, request, GrowFrom::kIdlePages) : kNull;
}

// Where they are not enough they are idle afterwards, and fewer are created.
DevicePtr DeviceMemory::take_pages_at_rest(Heap& heap, const Request& request) {
  std::vector<Heap*> givers = heaps_that_give(Givers::kDefaultPool);
  std::erase(givers, &heap);
  if (givers.empty() || !may_pass_pages()) {
    return kNull;
  }
  const std::size_t pages = heap.pages_missing_for(request);
  const std::size_t missing = pages - std::min(pages, store_.takeable());
  std::size_t given = 0;
  for (std::size_t i = 0; i < givers.size() && given < missing; ++i) {
    given += givers[i]->give_back_at_rest(missing - given, request.context);
  }
  if (given == 0) {
    return kNull;
  }
  counters_.pages_handed_over += given;
  retire_lent_mappings();
  const std::uint64_t maps = driver_.calls().map;
  const DevicePtr ptr = allocate_grown(heap, request, GrowFrom::kIdlePages);
  handles_passed_ += driver_.calls().map - maps;
  return ptr;
}

bool DeviceMemory::may_pass_pages() {
  return prefers_passing(handles_passed_, stats_.allocations(), config_.passing);
}

DevicePtr DeviceMemory::grow(Heap& heap, const Request& request) {
  const DevicePtr ptr = allocate_grown(heap, request, GrowFrom::kAnyPages);
  return gap_too_short_ ? allocate_grown(heap, request, GrowFrom::kStore) : ptr;
}

bool DeviceMemory::prefers_waiting_for(std::size_t pending, const Request& request) {
  const auto peak = static_cast<std::size_t>(stats_.read()[kBytes][kAll].peak);
  peak_live_ = std::max(peak_live_, peak);
  const WaitingView view{request.size, pending, held_bytes(), peak_live_};
  return prefers_waiting(view, config_.in_flight_share);
}

DevicePtr DeviceMemory::wait_rather_than_grow(Heap& heap, const Request& request) {
  const std::size_t pending = heap.orderable_bytes();
  return pending != 0 && prefers_waiting_for(pending, request)
             ? order_and_allocate(heap, request, request.size)
             : kNull;
}

DevicePtr DeviceMemory::borrow_rather_than_grow(Heap& heap, const Request& request) {
  // Looking for pages walks over blocks, so whether there are enough is asked last.
  if (heap.pool() != kDefaultPool || !prefers_waiting_for(request.size, request) ||
      !may_pass_pages()) {
    return kNull;
  }
  std::size_t pages = 0;
  for (Heap* giver : heaps_that_give(Givers::kDefaultPool)) {
    pages += giver != &heap ? giver->lendable_pages() : 0;
  }
  if (!prefers_waiting_for(pages * store_.page_bytes(), request)) {
    return kNull;
  }
  const std::uint64_t maps = driver_.calls().map;
  const DevicePtr ptr = hand_over(heap, request);
  handles_passed_ += driver_.calls().map - maps;
  return ptr;
}

DevicePtr DeviceMemory::wait_on_stream(Heap& heap, const Request& request) {
  return order_and_allocate(heap, request, heap.orderable_bytes());
}

DevicePtr DeviceMemory::order_and_allocate(Heap& heap, const Request& request,
                                           std::size_t at_most) {
  if (at_most == 0) {
    return kNull;
  }
  if (const DevicePtr ptr = heap.allocate_ordered(request, at_most); ptr != kNull) {
    return ptr;
  }
  return move_pages(heap, request);
}

// As in Heap::orderable_bytes, in the default pool alone.
DevicePtr DeviceMemory::hand_over(Heap& heap, const Request& request) {
  if (heap.pool() != kDefaultPool) {
    return kNull;
  }
  retire_lent_mappings();
  const std::size_t missing = heap.pages_missing_for(request);
  std::size_t wanted = missing - std::min(missing, store_.takeable());
  std::vector<Loan> loans;
  const auto borrow = [&](Heap& from) {
    std::vector<PageHandle> pages = from.lend_pages(wanted, heap.stream(), request.context);
    if (!pages.empty()) {
      wanted -= std::min(wanted, pages.size());
      loans.push_back({&from, std::move(pages)});
    }
  };
  std::vector<Heap*> givers = heaps_that_give(Givers::kDefaultPool);
  std::erase(givers, &heap);
  DevicePtr ptr = kNull;
  try {
    for (std::size_t i = 0; i < givers.size() && wanted != 0; ++i) {
      borrow(*givers[i]);
    }
    for (std::size_t i = 0; i < givers.size() && wanted != 0; ++i) {
      if (givers[i]->orderable_bytes() != 0) {
        givers[i]->order_pending();
        borrow(*givers[i]);
      }
    }
    if (wanted == 0 && !loans.empty()) {
      ptr = grow_from_loans(heap, request, loans);
    }
  } catch (const InternalError&) {
    throw;
  } catch (...) {
    take_back(loans);
    throw;
  }
  take_back(loans);
  return ptr;
}

// The lent pages count as idle meanwhile; nobody else takes any, because only one request climbs.
// What was not needed is still in `loans` afterwards.
DevicePtr DeviceMemory::grow_from_loans(Heap& heap, const Request& request,
                                        std::vector<Loan>& loans) {
  const std::size_t idle = store_.takeable();
  // The store takes the last pages first, so those of the first loan come last.
  for (auto loan = loans.rbegin(); loan != loans.rend(); ++loan) {
    std::ranges::reverse(loan->pages);
    store_.put(loan->pages);
    std::ranges::reverse(loan->pages);
    if (std::ranges::find(lenders_, loan->from) == lenders_.end()) {
      lenders_.push_back(loan->from);
    }
  }
  const auto keep_unused = [&]() FERRO_REQUIRES(slow_mutex_) {
    const std::size_t now = store_.takeable();
    std::size_t unused = now - std::min(now, idle);
    std::vector<PageHandle> taken;
    FERRO_CHECK(store_.take_idle(unused, taken));
    for (auto loan = loans.rbegin(); loan != loans.rend(); ++loan) {
      const std::size_t count = std::min(unused, loan->pages.size());
      counters_.pages_handed_over += loan->pages.size() - count;
      loan->pages.erase(loan->pages.begin(),
                        loan->pages.end() - static_cast<std::ptrdiff_t>(count));
      unused -= count;
    }
  };
  DevicePtr ptr = kNull;
  try {
    ptr = allocate_grown(heap, request, GrowFrom::kAnyPages);
  } catch (const InternalError&) {
    throw;
  } catch (...) {
    keep_unused();
    throw;
  }
  keep_unused();
  return ptr;
}

void DeviceMemory::take_back(const std::vector<Loan>& loans) {
  for (auto loan = loans.rbegin(); loan != loans.rend(); ++loan) {
    if (!loan->pages.empty()) {
      loan->from->take_back(loan->pages);
    }
  }
}

void DeviceMemory::retire_lent_mappings() {
  std::erase_if(lenders_, [](Heap* heap) { return heap->retire_mappings(); });
}

// Collects pages from one heap after the other until the request can be served.
DevicePtr DeviceMemory::grow_from(const std::vector<Heap*>& givers, Heap& heap,
                                  const Request& request) {
  for (Heap* giver : givers) {
    const std::size_t wanted = ceil_div(request.size, store_.page_bytes());
    const std::size_t idle = store_.counts().idle;
    const std::size_t given =
        giver->give_back_pages(wanted - std::min(wanted, idle), request.context);
    retire_lent_mappings();
    if (given != 0) {
      if (const DevicePtr ptr = grow(heap, request); ptr != kNull) {
        return ptr;
      }
    }
  }
  return kNull;
}

DevicePtr DeviceMemory::ask_to_give_back(Heap& heap, const Request& request) {
  // A callback frees memory through the ordinary way in; no heap is locked here.
  if (on_shortage_ && on_shortage_()) {
    if (const DevicePtr ptr = heap.allocate_collected(request); ptr != kNull) {
      return ptr;
    }
    if (const DevicePtr ptr = heap.allocate_merged(request); ptr != kNull) {
      return ptr;
    }
    // What was freed may have gone to the driver.
    if (const DevicePtr ptr = grow(heap, request); ptr != kNull) {
      return ptr;
    }
  }
  if (heap.pool() == kDefaultPool && special_pools_.load(std::memory_order_relaxed) != 0) {
    const HeapKey key{heap.stream(), segment_kind(request.size)};
    if (const BlockView block = borrow_from_pools(key, request, {}); block.ptr != kNull) {
      return block.ptr;
    }
  }
  const std::vector<Heap*> givers = heaps_that_give(Givers::kAllowing);
  for (Heap* giver : givers) {
    release_free_segments(*giver, request.context);
  }
  return grow_from(givers, heap, request);
}

DevicePtr DeviceMemory::wait_for_memory(Heap& heap, const Request& request) {
  ++counters_.retries;
  ++counters_.synchronisations;
  if (const DevicePtr ptr = heap.allocate_waited(request); ptr != kNull) {
    return ptr;
  }
  if (const DevicePtr ptr = grow(heap, request); ptr != kNull) {
    return ptr;
  }
  // The pages of a private pool that is held stay: graphs replay on them, also on those that carry
  // no live block. Free pages first, then those of blocks that still wait for other streams.
  const std::vector<Heap*> givers = heaps_that_give(Givers::kDefaultPool);
  if (const DevicePtr ptr = grow_from(givers, heap, request); ptr != kNull) {
    return ptr;
  }
  for (Heap* giver : givers) {
    giver->wait_for_pending();
  }
  if (const DevicePtr ptr = grow_from(givers, heap, request); ptr != kNull) {
    return ptr;
  }
  // What the driver refused at step 6 it may grant now: another process or library may have freed.
  return grow(heap, request);
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
  const MutexLock lock(pools_mutex_);
  for (auto& [id, pool] : pools_) {
    for (auto& [key, heap] : pool.heaps) {
      const HeapView view = heap->view();
      const std::size_t live = view.backed_bytes - view.free_bytes - view.pending_bytes;
      facts.live += live;
      facts.pending += view.pending_bytes;
      (id == kDefaultPool ? facts.free_default : facts.free_private) += view.free_bytes;
      facts.live_private += id == kDefaultPool ? 0 : live;
    }
  }
  return facts;
}

}  // namespace ferro
