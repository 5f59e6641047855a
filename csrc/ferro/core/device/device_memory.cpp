#include "ferro/core/device/device_memory.h"

#include "ferro/base/check.h"
#include "ferro/driver/error.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

namespace ferro {

DeviceMemory::DeviceMemory(const CudaApi& api, DeviceId device, AddressIndex& addresses,
                           const AllocatorConfig& config, MemoryShortageCallback on_shortage)
    : config_(config),
      driver_(api, device),
      total_memory_(driver_.total_memory()),
      events_(driver_),
      timeline_(driver_, events_, captures_of_process(),
                [this](std::span<StreamId> to) { return copy_known_streams(to); }),
      store_(driver_, timeline_, config.page_bytes, config.handles, config.headroom),
      stale_(driver_, timeline_, observer_),
      imports_(driver_, [this] { return timeline_.wait_for_all(); }),
      on_shortage_(std::move(on_shortage)),
      parts_{config_, driver_,  store_,    stale_,       timeline_, pools_,    graphs_,
             stats_,  imports_, captures_, on_shortage_, observer_, addresses, counters_},
      report_(parts_, climb_mutex_),
      reclaimer_(parts_),
      ladder_(parts_, reclaimer_),
      sleeper_(parts_, reclaimer_) {
  store_.set_limit(config.memory_limit);
  pools_.set_context(
      std::make_unique<HeapContext>(HeapContext{
          driver_, store_, stale_, events_, timeline_, exports_, addresses, stats_, captures_,
          observer_, pools_.with_free_pages(), pools_.with_pending(), total_memory_}),
      !config.stream_lasts);
}

DeviceMemory::~DeviceMemory() {
  empty_cache();
  const RecursiveMutexLock lock(climb_mutex_);
  for (Heap* heap : pools_.all_heaps()) {
    reclaimer_.empty_heap(*heap, Reclaimer::kAllPages, nullptr);
  }
  reclaimer_.trim(Reclaimer::kAllPages);
}

void DeviceMemory::set_graphs(GraphPages* graphs) {
  const RecursiveMutexLock lock(climb_mutex_);
  graphs_ = graphs;
  pools_.set_graphs(graphs);
}

void DeviceMemory::set_captures(int running, int announced) {
  if (announced_captures_ == 0 && announced != 0 && driver_.context_if_created() != nullptr) {
    // Memory that is free now may leave its arena while the capture runs. Many captures may be
    // announced before the device passes the first point; a few points suffice.
    constexpr std::size_t kMaxOutstanding = 2;
    try {
      timeline_.update();
      if (timeline_.points() < kMaxOutstanding) {
        timeline_.record();
      }
    } catch (const DriverError&) {
      // Without the point less memory is available.
    }
  }
  if (announced != announced_captures_) {
    timeline_.begin_epoch();
  }
  captures_of_process().add(announced - announced_captures_);
  announced_captures_ = announced;
  captures_.set(running);
}

std::size_t DeviceMemory::copy_known_streams(std::span<StreamId> to) {
  const std::size_t count = pools_.copy_lasting_streams(to);
  return config_.streams_of_others
             ? count + config_.streams_of_others(driver_.device(), to.subspan(count))
             : count;
}

void DeviceMemory::adjust(const AllocatorConfig& wanted) {
  const RecursiveMutexLock lock(climb_mutex_);
  config_.idle_bytes = wanted.idle_bytes;
  config_.in_flight_share = wanted.in_flight_share;
  store_.set_headroom(wanted.headroom);
}

AllocateResult DeviceMemory::allocate_at(const PoolId& id, StreamId stream, DevicePtr ptr,
                                         const Request& request) {
  const RecursiveMutexLock lock(climb_mutex_);
  const ObserverSlot::DeliveryAtEnd delivery(observer_);
  for (Heap* heap : pools_.heaps_of(id)) {
    // Small and large blocks do not share memory.
    const bool may_hold =
        heap->kind() == heap_kind(request.size) || heap->kind() == HeapKind::kKeptPages;
    if (heap->stream() != stream || !may_hold) {
      continue;
    }
    if (const BlockView block = heap->allocate_at(ptr, request); block.ptr != kNull) {
      return {block.ptr, block.size, nullptr};
    }
  }
  // The addresses may have been released with the cache; they are reserved again.
  if (pools_.use_count(id) < 0 || request.size > total_memory_ ||
      address_of(ptr) >> AddressIndex::kAddressBits != 0) {
    return {};
  }
  const Driver::Session session(driver_);
  check_granularity();
  Heap& arena = pools_.arena(id, stream, heap_kind(request.size));
  if (!arena.try_reserve_at(ptr, request.size)) {
    return {};
  }
  const BlockView block = arena.allocate_at(ptr, request);
  if (block.ptr == kNull) {
    arena.release_empty_spans();
  }
  return {block.ptr, block.size, nullptr};
}

void DeviceMemory::check_granularity() {
  if (granularity_checked_) {
    return;
  }
  const std::size_t granularity = driver_.granularity();
  if (config_.page_bytes % granularity != 0) {
    throw DriverError("a page size that is not a multiple of " + std::to_string(granularity),
                      "an unsupported configuration", 0, config_.page_bytes, driver_.device());
  }
  granularity_checked_ = true;
}

AllocateResult DeviceMemory::climb(Heap& heap, const Request& request) {
  const RecursiveMutexLock lock(climb_mutex_);
  const ObserverSlot::DeliveryAtEnd delivery(observer_);
  const Driver::Session session(driver_);
  check_granularity();
  if (!heap.stream_lasts()) {
    const Driver::SessionBreak pause;
    heap.set_stream_lasts(stream_lasts(heap.stream()));
  }
  read_rejection_limit();
  // A callback that empties the cache must not destroy the heap of an unheld pool.
  const ScopedPoolHold hold(pools_, heap.pool());
  Climb climb{heap, request};
  // A request beyond the device's memory fails without emptying the cache.
  if (request.size <= total_memory_) {
    if (const DevicePtr ptr = ladder_.climb(climb); ptr != kNull) {
      return {ptr, request.size, nullptr};
    }
    if (climb.is_rejected()) {
      return reject(request.size);
    }
  } else if (rejection_limit_ < store_.limit()) {
    return reject(request.size);
  }
  return out_of_memory(request.size, climb.lacks_addresses());
}

void DeviceMemory::read_rejection_limit() {
  const Driver::SessionBreak pause;
  rejection_limit_ =
      config_.rejection_limit ? config_.rejection_limit(total_memory_) : PageStore::kNoLimit;
  store_.set_rejection_limit(rejection_limit_);
}

AllocateResult DeviceMemory::out_of_memory(std::size_t wanted, bool no_addresses) {
  ++counters_.ended_by(LadderStep::kOutOfMemory);
  ++counters_.out_of_memory;
  // Releases the gathered memory for other libraries. The facts are collected afterwards, because
  // the message also has the driver's numbers of that moment.
  reclaimer_.trim(Reclaimer::kAllPages);
  auto failure = std::make_unique<OutOfMemoryFacts>(report_.facts_of_failure(wanted));
  failure->no_addresses = no_addresses;
  return {kNull, 0, std::move(failure)};
}

void DeviceMemory::forget_failure(const OutOfMemoryFacts& failure) {
  const RecursiveMutexLock lock(climb_mutex_);
  const auto decrement = [](std::uint64_t& count) { count -= std::min<std::uint64_t>(count, 1); };
  decrement(counters_.ended_by(LadderStep::kOutOfMemory));
  if (failure.rejected_beyond) {
    decrement(counters_.rejected);
    return;
  }
  decrement(counters_.out_of_memory);
  decrement(counters_.retries);
}

AllocateResult DeviceMemory::reject(std::size_t wanted) {
  ++counters_.ended_by(LadderStep::kOutOfMemory);
  ++counters_.rejected;
  auto failure = std::make_unique<OutOfMemoryFacts>(report_.facts_of_failure(wanted));
  failure->rejected_beyond = rejection_limit_;
  return {kNull, 0, std::move(failure)};
}

void DeviceMemory::empty_cache(const CallContext& context) {
  const RecursiveMutexLock lock(climb_mutex_);
  const ObserverSlot::DeliveryAtEnd delivery(observer_);
  ++counters_.synchronisations;
  // An unused device stays untouched.
  std::optional<Driver::Session> session;
  if (driver_.context_if_created() != nullptr) {
    session.emplace(driver_);
  }
  sleeper_.forget_freed();
  reclaimer_.empty_cache(context);
}

void DeviceMemory::empty_pool(const PoolId& id, const CallContext& context) {
  const RecursiveMutexLock lock(climb_mutex_);
  const ObserverSlot::DeliveryAtEnd delivery(observer_);
  if (pools_.use_count(id) == 0) {
    ++counters_.synchronisations;
    sleeper_.forget_freed();
    reclaimer_.empty_pool(id, context);
  }
}

void DeviceMemory::empty_idle_pool(const PoolId& id) {
  if (!climb_mutex_.try_lock()) {
    return;
  }
  const RecursiveMutexLock lock(climb_mutex_, std::adopt_lock);
  const ObserverSlot::DeliveryAtEnd delivery(observer_);
  if (pools_.use_count(id) == 0) {
    sleeper_.forget_freed();
    reclaimer_.empty_idle_pool(id);
  }
}

ExportResult DeviceMemory::export_block(Span& span, DevicePtr ptr, SharedRange* out) {
  const RecursiveMutexLock lock(climb_mutex_);
  return span.heap()->export_block(span, ptr, out);
}

bool DeviceMemory::pin(Span& span, DevicePtr begin, std::size_t bytes) {
  const RecursiveMutexLock lock(climb_mutex_);
  return distance(begin, span.base() + span.bytes()) >= bytes &&
         span.heap()->change_pins(span, begin, bytes, 1);
}

void DeviceMemory::unpin(Span& span, DevicePtr begin, std::size_t bytes) {
  const RecursiveMutexLock lock(climb_mutex_);
  span.heap()->change_pins(span, begin, bytes, -1);
}

SleepOutcome DeviceMemory::sleep(const SleepFilter& which, Sleeper::Contents contents,
                                 Sleeper::Want want) {
  const RecursiveMutexLock lock(climb_mutex_);
  const ObserverSlot::DeliveryAtEnd delivery(observer_);
  if (driver_.context_if_created() == nullptr) {
    return {};  // an unused device stays untouched
  }
  const Driver::Session session(driver_);
  return sleeper_.sleep(which, contents, want);
}

SleepOutcome DeviceMemory::wake(const SleepFilter& which) {
  const RecursiveMutexLock lock(climb_mutex_);
  const ObserverSlot::DeliveryAtEnd delivery(observer_);
  const Driver::Session session(driver_);
  return sleeper_.wake(which);
}

DeviceMemory::SleepView DeviceMemory::sleep_view() {
  const RecursiveMutexLock lock(climb_mutex_);
  HostStore& host = sleeper_.host();
  return {sleeper_.asleep_bytes(), host.used_bytes(), host.held_bytes(), host.locked_bytes()};
}

std::map<PoolId, std::size_t> DeviceMemory::asleep_pools() {
  const RecursiveMutexLock lock(climb_mutex_);
  std::map<PoolId, std::size_t> asleep;
  for (const Heap* heap : pools_.all_heaps()) {
    const PoolId id = heap->pool();
    const bool has_scratch = graphs_ != nullptr && graphs_->is_scratch_asleep(id);
    if (id == kDefaultPool || (heap->asleep_bytes() == 0 && !has_scratch)) {
      continue;
    }
    const auto [entry, is_new] = asleep.try_emplace(id, 0);
    entry->second += heap->asleep_bytes();
    if (is_new && has_scratch) {
      const SleepFilter own{nullptr, [&](const PoolId& each) { return each == id; }};
      entry->second += graphs_->asleep_scratch(own) * store_.page_bytes();
    }
  }
  return asleep;
}

bool DeviceMemory::is_scratch_asleep(const PoolId& id) {
  const RecursiveMutexLock lock(climb_mutex_);
  return graphs_ != nullptr && graphs_->is_scratch_asleep(id);
}

std::size_t DeviceMemory::trim_host_memory() {
  const RecursiveMutexLock lock(climb_mutex_);
  return sleeper_.host().trim();
}

void DeviceMemory::add_peer(DeviceId peer) {
  const RecursiveMutexLock lock(climb_mutex_);
  const bool is_new = driver_.add_peer(peer);
  try {
    for (Heap* heap : pools_.all_heaps()) {
      heap->grant(peer);
    }
    imports_.grant(peer);
  } catch (...) {
    if (is_new) {
      driver_.remove_peer(peer);
    }
    throw;
  }
}

void DeviceMemory::collect_pending() {
  const RecursiveMutexLock lock(climb_mutex_);
  const ObserverSlot::DeliveryAtEnd delivery(observer_);
  pools_.for_each_with_pending([](Heap& heap) { heap.collect_pending(); });
}

}  // namespace ferro
