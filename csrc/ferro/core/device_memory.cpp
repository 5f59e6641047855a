#include "ferro/core/device_memory.h"

#include "ferro/base/check.h"

#include <algorithm>
#include <utility>

namespace ferro {
namespace {

constexpr std::size_t kAllPages = ~std::size_t{0};

std::uint64_t next_serial() {
  static std::atomic<std::uint64_t> serial{0};
  return serial.fetch_add(1, std::memory_order_relaxed) + 1;
}

// Which heap of the default pool serves a stream. Heaps of the default pool live as long as their
// allocator, whose serial number is never used again, so an entry cannot go stale.
struct CachedHeap {
  std::uint64_t allocator = 0;
  StreamId stream{};
  Heap* heap = nullptr;
};
constexpr std::size_t kCachedHeaps = 8;
thread_local std::array<CachedHeap, kCachedHeaps> cached_heaps;

CachedHeap& cache_slot(std::uint64_t allocator, StreamId stream) {
  // Stream handles are addresses of objects some hundred bytes apart.
  const auto bits = static_cast<std::uint64_t>(stream);
  return cached_heaps[((bits >> 8) ^ (bits >> 4) ^ allocator) % kCachedHeaps];
}

// Addresses are cheap: a line as long as the memory, with room for the holes in it.
std::size_t default_span_bytes(std::size_t total_memory) {
  return align_up(total_memory + total_memory / 8, kSpanAlignment);
}

}  // namespace

DeviceMemory::DeviceMemory(const CudaApi& api, DeviceId device, AddressIndex& addresses,
                           const AllocatorConfig& config, MemoryShortageCallback on_shortage)
    : serial_(next_serial()),
      config_(config),
      driver_(api, device),
      total_memory_(driver_.total_memory()),
      store_(driver_, config.page_bytes, config.handles, config.headroom),
      events_(driver_),
      driver_segments_(driver_),
      layout_(driver_.has_virtual_memory() ? config.layout : Layout::kSegments),
      imports_(driver_, captures_),
      heap_context_{driver_,
                    store_,
                    events_,
                    exports_,
                    addresses,
                    stats_,
                    captures_,
                    observer_,
                    segment_stats_,
                    searches_,
                    default_span_bytes(total_memory_)},
      on_shortage_(std::move(on_shortage)) {
  store_.set_limit(config.memory_limit);
  pools_[kDefaultPool].use_count = 1;
}

DeviceMemory::~DeviceMemory() {
  empty_cache();
  const RecursiveMutexLock slow(slow_mutex_);
  for (auto& [id, pool] : pools_) {
    for (auto& [key, heap] : pool.heaps) {
      give_back_free_of(*heap, kAllPages, nullptr);
    }
  }
  store_.trim(~std::size_t{0});
}

AllocateResult DeviceMemory::allocate(const PoolId& pool, StreamId stream, Request request) {
  if (layout_ == Layout::kSegments || special_pools_.load(std::memory_order_relaxed) != 0)
      [[unlikely]] {
    return allocate_specially(pool, stream, std::move(request));
  }
  return allocate_in_pages(pool, stream, request);
}

AllocateResult DeviceMemory::allocate_in_pages(const PoolId& pool, StreamId stream,
                                               const Request& request) {
  Heap& heap = heap_for(pool, stream, request);
  const DevicePtr ptr = heap.allocate_hit(request);
  if (ptr != kNull) [[likely]] {
    return {ptr, request.size, nullptr};
  }
  return climb(heap, request);
}

AllocateResult DeviceMemory::allocate_at(const PoolId& id, StreamId stream, DevicePtr ptr,
                                         Request request) {
  const RecursiveMutexLock slow(slow_mutex_);
  std::vector<Heap*> heaps;
  {
    const MutexLock lock(pools_mutex_);
    const auto pool = pools_.find(id);
    if (pool == pools_.end()) {
      return {};
    }
    request.no_split = pool->second.no_split;
    for (auto& [key, heap] : pool->second.heaps) {
      if (key.stream == stream) {
        heaps.push_back(heap.get());
      }
    }
  }
  for (Heap* heap : heaps) {
    // The segments of one size class hold no block of the other.
    const bool may_hold = is_paged(heap->kind()) || heap->kind() == segment_kind(request.size);
    if (may_hold && heap->allocate_at(ptr, request) != kNull) {
      return {ptr, request.size, nullptr};
    }
  }
  return {};
}

AllocateResult DeviceMemory::allocate_specially(const PoolId& id, StreamId stream,
                                                Request request) {
  bool in_segments = layout_ == Layout::kSegments;
  {
    const MutexLock lock(pools_mutex_);
    const auto pool = pools_.find(id);
    if (pool != pools_.end()) {
      request.no_split = pool->second.no_split;
      in_segments = in_segments || pool->second.is_special();
    }
  }
  return in_segments ? allocate_in_segments(id, stream, request)
                     : allocate_in_pages(id, stream, request);
}

Heap& DeviceMemory::heap_for(const PoolId& pool, StreamId stream, const Request& request) {
  if (pool != kDefaultPool) [[unlikely]] {
    // The pages of a graph's pool stay where they are. A small block between two holes would keep
    // them apart for good: eight captures from small to large held 850 MiB instead of 514.
    const bool small = request.size <= kSmallRequest;
    return find_or_make_heap(pool, {stream, small ? HeapKind::kSmallPages : HeapKind::kPages});
  }
  CachedHeap& slot = cache_slot(serial_, stream);
  if (slot.allocator != serial_ || slot.stream != stream) [[unlikely]] {
    slot = {serial_, stream, &find_or_make_heap(pool, {stream, HeapKind::kPages})};
  }
  return *slot.heap;
}

Heap& DeviceMemory::find_or_make_heap(const PoolId& id, const HeapKey& key) {
  const MutexLock lock(pools_mutex_);
  std::unique_ptr<Heap>& heap = pools_[id].heaps[key];
  if (heap == nullptr) {
    PoolBytes* bytes = id == kDefaultPool ? nullptr : &pool_bytes_[id].now;
    heap = std::make_unique<Heap>(heap_context_, id, key.stream, key.kind, bytes);
    heap->set_stream_lasts(!config_.stream_lasts);
  }
  return *heap;
}

bool DeviceMemory::hold_pool(const PoolId& id, std::shared_ptr<SegmentSource> source) {
  const MutexLock lock(pools_mutex_);
  if (source != nullptr && pools_.contains(id)) {
    return false;
  }
  Pool& pool = pools_[id];
  ++pool.use_count;
  if (source != nullptr) {
    pool.source = std::move(source);
    special_pools_.fetch_add(1, std::memory_order_relaxed);
  }
  return true;
}

bool DeviceMemory::release_pool(const PoolId& id) {
  const MutexLock lock(pools_mutex_);
  const auto pool = pools_.find(id);
  if (pool == pools_.end() || pool->second.use_count == 0) {
    return false;
  }
  --pool->second.use_count;
  return true;
}

int DeviceMemory::pool_use_count(const PoolId& id) {
  const MutexLock lock(pools_mutex_);
  const auto pool = pools_.find(id);
  return pool == pools_.end() ? -1 : pool->second.use_count;
}

void DeviceMemory::set_no_split(const PoolId& id) {
  const MutexLock lock(pools_mutex_);
  Pool& pool = pools_[id];
  special_pools_.fetch_add(pool.is_special() ? 0 : 1, std::memory_order_relaxed);
  pool.no_split = true;
}

void DeviceMemory::set_use_on_oom(const PoolId& id, bool use) {
  const MutexLock lock(pools_mutex_);
  const auto pool = pools_.find(id);
  if (pool != pools_.end()) {
    pool->second.use_on_oom = use;
  } else if (use) {
    pools_[id].use_on_oom = true;
  }
}

std::vector<Heap*> DeviceMemory::heaps_that_give(Givers which) {
  const MutexLock lock(pools_mutex_);
  std::vector<Heap*> heaps;
  for (auto& [id, pool] : pools_) {
    const bool unheld = pool.use_count == 0;
    const bool allows = pool.use_on_oom || unheld;
    const bool gives = which == Givers::kAllowing      ? allows
                       : which == Givers::kDefaultPool ? id == kDefaultPool
                                                       : id == kDefaultPool || unheld;
    if (gives) {
      for (auto& [key, heap] : pool.heaps) {
        heaps.push_back(heap.get());
      }
    }
  }
  return heaps;
}

void DeviceMemory::drop_unused_pools() {
  const MutexLock lock(pools_mutex_);
  for (auto it = pools_.begin(); it != pools_.end();) {
    Pool& pool = it->second;
    if (it->first == kDefaultPool || pool.use_count != 0) {
      ++it;
      continue;
    }
    std::erase_if(pool.heaps, [](const auto& entry) {
      return entry.second->is_unused() && entry.second->is_empty();
    });
    if (!pool.heaps.empty()) {
      ++it;
      continue;
    }
    special_pools_.fetch_sub(pool.is_special() ? 1 : 0, std::memory_order_relaxed);
    it = pools_.erase(it);
  }
}

void DeviceMemory::empty_cache(const CallContext& context) {
  const RecursiveMutexLock slow(slow_mutex_);
  ++counters_.synchronisations;
  give_back_everything(context);
}

void DeviceMemory::give_back_everything(const CallContext& context) {
  // In segments the frees of all pools are settled, as in PyTorch's; pools of pages are left alone,
  // because their graphs may run for long.
  if (layout_ == Layout::kSegments && captures_.load(std::memory_order_relaxed) == 0) {
    for (Heap* heap : all_heaps()) {
      heap->wait_for_pending();
    }
  }
  const std::vector<Heap*> givers = heaps_that_give(Givers::kEverything);
  for (Heap* heap : givers) {
    heap->wait_for_pending();
  }
  std::size_t surplus = surplus_pages(givers);
  for (Heap* heap : givers) {
    surplus -= std::min(surplus, give_back_free_of(*heap, surplus, context));
  }
  drop_unused_pools();
  store_.trim(surplus);
  imports_.collect();
}

// To the driver: free segments, or so many pages, whose number is the result.
std::size_t DeviceMemory::give_back_free_of(Heap& heap, std::size_t pages,
                                            const CallContext& context) {
  if (!is_paged(heap.kind())) {
    release_free_segments(heap, context);
    return 0;
  }
  const std::size_t given = heap.give_back_pages(pages, context);
  retire_lent_mappings();
  store_.trim(given);
  return given;
}

// What is free beyond what the settings want to keep; a lot when that is nothing.
std::size_t DeviceMemory::surplus_pages(const std::vector<Heap*>& givers) {
  if (config_.idle_bytes == 0) {
    return kAllPages;
  }
  std::size_t free_pages = store_.counts().idle;
  for (Heap* heap : givers) {
    free_pages += heap->view().whole_free_page_bytes / store_.page_bytes();
  }
  return free_pages - std::min(free_pages, config_.idle_bytes / store_.page_bytes());
}

void DeviceMemory::empty_pool(const PoolId& id, const CallContext& context) {
  const RecursiveMutexLock slow(slow_mutex_);
  if (pool_use_count(id) != 0) {
    return;
  }
  ++counters_.synchronisations;
  for (Heap* heap : heaps_of(id)) {
    heap->wait_for_pending();
    give_back_free_of(*heap, kAllPages, context);
  }
  drop_unused_pools();
}

std::vector<Heap*> DeviceMemory::all_heaps() {
  const MutexLock lock(pools_mutex_);
  std::vector<Heap*> heaps;
  for (auto& [id, pool] : pools_) {
    for (auto& [key, heap] : pool.heaps) {
      heaps.push_back(heap.get());
    }
  }
  return heaps;
}

ExportResult DeviceMemory::export_block(Span& span, DevicePtr ptr, SharedRange* out) {
  const RecursiveMutexLock slow(slow_mutex_);
  return span.heap()->export_block(span, ptr, out);
}

void DeviceMemory::add_peer(DeviceId peer) {
  const RecursiveMutexLock slow(slow_mutex_);
  driver_.add_peer(peer);
  try {
    for (Heap* heap : all_heaps()) {
      heap->grant(peer);
    }
    imports_.grant(peer);
  } catch (...) {
    driver_.remove_peer(peer);
    throw;
  }
}

void DeviceMemory::collect_pending() {
  const RecursiveMutexLock slow(slow_mutex_);
  for (Heap* heap : all_heaps()) {
    heap->collect_pending();
  }
}

std::vector<Heap*> DeviceMemory::heaps_of(const PoolId& id) {
  const MutexLock lock(pools_mutex_);
  std::vector<Heap*> heaps;
  const auto pool = pools_.find(id);
  if (pool != pools_.end()) {
    for (auto& [key, heap] : pool->second.heaps) {
      heaps.push_back(heap.get());
    }
  }
  return heaps;
}

std::vector<SegmentView> DeviceMemory::segments(const PoolId* only) {
  const MutexLock lock(pools_mutex_);
  std::vector<SegmentView> segments;
  for (auto& [id, pool] : pools_) {
    if (only == nullptr || *only == id) {
      for (auto& [key, heap] : pool.heaps) {
        std::ranges::move(heap->segments(), std::back_inserter(segments));
      }
    }
  }
  std::ranges::sort(segments, {}, &SegmentView::ptr);
  return segments;
}

std::size_t DeviceMemory::largest_free_block() {
  const MutexLock lock(pools_mutex_);
  std::size_t largest = 0;
  for (auto& [id, pool] : pools_) {
    for (auto& [key, heap] : pool.heaps) {
      largest = std::max(largest, heap->view().largest_free);
    }
  }
  return largest;
}

DeviceView DeviceMemory::view() {
  const RecursiveMutexLock slow(slow_mutex_);
  DeviceView view;
  for (std::size_t i = 0; i < kLadderSteps; ++i) {
    view.misses += counters_.ladder[i];
  }
  const auto failed = static_cast<std::size_t>(LadderStep::kOutOfMemory);
  view.hits = stats_.allocations() - (view.misses - counters_.ladder[failed]);
  const MutexLock lock(pools_mutex_);
  for (auto& [id, pool] : pools_) {
    for (auto& [key, heap] : pool.heaps) {
      const HeapView part = heap->view();
      view.live_blocks += part.live_blocks;
      view.free_blocks += part.free_blocks;
      view.free_bytes += part.free_bytes;
      view.pages_moved += heap->pages_moved();
    }
  }
  return view;
}

std::size_t DeviceMemory::bytes_from_driver(StreamId stream, const Request& request) {
  const bool in_segments = layout_ == Layout::kSegments;
  const HeapKey key{stream, in_segments ? segment_kind(request.size) : HeapKind::kPages};
  Heap* heap = nullptr;
  std::vector<Heap*> others;
  {
    const MutexLock lock(pools_mutex_);
    for (auto& [other, owned] : pools_[kDefaultPool].heaps) {
      if (other == key) {
        heap = owned.get();
      } else {
        others.push_back(owned.get());
      }
    }
  }
  if (in_segments) {
    const SegmentRules rules = segment_rules();
    const bool hit = heap != nullptr && heap->has_segment_for(request, rules);
    return hit ? 0 : segment_bytes(request.size, rules);
  }
  const std::size_t missing = heap != nullptr ? heap->pages_missing_for(request)
                                              : ceil_div(request.size, store_.page_bytes());
  std::size_t at_hand = store_.counts().idle;
  for (std::size_t i = 0; i < others.size() && at_hand < missing; ++i) {
    at_hand += others[i]->pages_at_rest();
  }
  return (missing - std::min(missing, at_hand)) * store_.page_bytes();
}

DeviceCounters DeviceMemory::counters() {
  const RecursiveMutexLock slow(slow_mutex_);
  DeviceCounters counters = counters_;
  const PageCounts pages = store_.counts();
  counters.pages_created = pages.created - pages_at_reset_.created;
  counters.pages_released = pages.released - pages_at_reset_.released;
  return counters;
}

std::uint64_t DeviceMemory::slowest_nanoseconds() {
  const RecursiveMutexLock slow(slow_mutex_);
  return slowest_nanoseconds_;
}

void DeviceMemory::reset_slowest() {
  const RecursiveMutexLock slow(slow_mutex_);
  slowest_nanoseconds_ = 0;
}

std::size_t DeviceMemory::held_bytes() const {
  const PageCounts pages = store_.counts();
  return pages.held * store_.page_bytes() + pages.charged_bytes;
}

std::array<StatValue, kStatClasses> DeviceMemory::reserved() {
  const RecursiveMutexLock slow(slow_mutex_);
  const PageCounts pages = store_.counts();
  const auto bytes = [this](std::uint64_t count) {
    return static_cast<std::int64_t>(count * store_.page_bytes());
  };
  const std::array<StatValue, kStatClasses> segments = segment_stats_.read().of[kSegmentBytes];
  const auto plus_pages = [&](StatValue value) FERRO_REQUIRES(slow_mutex_) {
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

std::map<PoolId, std::array<StatValue, kStatClasses>> DeviceMemory::reserved_by_pool() {
  const RecursiveMutexLock slow(slow_mutex_);
  const MutexLock lock(pools_mutex_);
  std::map<PoolId, std::array<StatValue, kStatClasses>> reserved;
  for (const auto& [id, pool] : pool_bytes_) {
    // A pool of which memory was asked and none given is not shown.
    if (pool.now.of[kAll].increased.get() == 0) {
      continue;
    }
    for (std::size_t i = 0; i < kStatClasses; ++i) {
      const Gauge& gauge = pool.now.of[i];
      const std::int64_t current = gauge.current.get();
      const std::int64_t increased = gauge.increased.get();
      reserved[id][i] = {current, gauge.peak.get(), increased - pool.increased_at_reset[i],
                         increased - current - pool.decreased_at_reset[i]};
    }
  }
  return reserved;
}

void DeviceMemory::reset_peaks() {
  const RecursiveMutexLock slow(slow_mutex_);
  slowest_nanoseconds_ = 0;
  stats_.reset_peaks();
  store_.reset_peak();
  segment_stats_.reset_peaks();
  const MutexLock lock(pools_mutex_);
  for (auto& [id, pool] : pool_bytes_) {
    for (Gauge& gauge : pool.now.of) {
      gauge.peak.set(gauge.current.get());
    }
  }
}

void DeviceMemory::reset_accumulated_counters() {
  const RecursiveMutexLock slow(slow_mutex_);
  counters_ = {.ladder = counters_.ladder, .ladder_costs = counters_.ladder_costs};
  pages_at_reset_ = store_.counts();
  segment_stats_.reset_accumulated();
  const MutexLock lock(pools_mutex_);
  for (auto& [id, pool] : pool_bytes_) {
    for (std::size_t i = 0; i < kStatClasses; ++i) {
      pool.increased_at_reset[i] = pool.now.of[i].increased.get();
      pool.decreased_at_reset[i] = pool.now.of[i].increased.get() - pool.now.of[i].current.get();
    }
  }
}

void DeviceMemory::check_invariants() {
  const RecursiveMutexLock slow(slow_mutex_);
  const MutexLock lock(pools_mutex_);
  std::size_t backed = 0;
  std::size_t in_segments = 0;
  std::int64_t live = 0;
  for (auto& [id, pool] : pools_) {
    const std::size_t before = backed + in_segments;
    for (auto& [key, heap] : pool.heaps) {
      heap->check_invariants();
      const HeapView view = heap->view();
      (is_paged(heap->kind()) ? backed : in_segments) += view.backed_bytes;
      live += static_cast<std::int64_t>(view.backed_bytes - view.free_bytes - view.pending_bytes);
    }
    if (const auto counted = pool_bytes_.find(id); counted != pool_bytes_.end()) {
      FERRO_CHECK(static_cast<std::size_t>(counted->second.now.of[kAll].current.get()) ==
                  backed + in_segments - before);
    }
  }
  const PageCounts pages = store_.counts();
  FERRO_CHECK(pages.held * store_.page_bytes() == backed + pages.idle * store_.page_bytes());
  FERRO_CHECK(pages.charged_bytes == in_segments);
  const SegmentTable segments = segment_stats_.read();
  FERRO_CHECK(segments.of[kSegmentBytes][kAll].current == static_cast<std::int64_t>(in_segments));
  FERRO_CHECK(pages.created - pages.released == pages.held && pages.peak_held >= pages.held);
  FERRO_CHECK(stats_.read()[kBytes][kAll].current == live);
}

}  // namespace ferro
