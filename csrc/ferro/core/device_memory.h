// The memory of one device: its pools, its heaps, its page store, and the ladder that a request
// climbs when it misses.
//
// Thread-safe. Lock order: slow_mutex_ > pools_mutex_ > a heap's lock > locks of store, events and
// statistics. On a hit a thread takes one heap's lock and nothing else. A miss releases it, takes
// slow_mutex_, and climbs; so at most one thread of a device talks to the driver at a time, which
// costs nothing because the driver serialises these calls anyway.
//
// Invariants: held pages == sum over heaps of pages behind their spans + idle pages; counters of
// the device == sums over the heaps, of those that are gone too.
#pragma once

#include "ferro/base/mutex.h"
#include "ferro/core/imports.h"
#include "ferro/core/ladder.h"
#include "ferro/core/pool.h"
#include "ferro/core/report.h"
#include "ferro/core/stats.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

namespace ferro {

struct AllocatorConfig {
  std::size_t page_bytes = 2 * kMiB;               // multiple of the driver's granularity
  std::size_t memory_limit = PageStore::kNoLimit;  // bytes per device
};

// Called when memory is short and no lock of a heap is held. True: something was freed.
using MemoryShortageCallback = std::function<bool()>;

struct [[nodiscard]] AllocateResult {
  DevicePtr ptr = kNull;  // kNull: out of memory, and `failure` says why
  std::size_t size = 0;   // bytes of the block
  std::unique_ptr<OutOfMemoryFacts> failure;
};

// Numbers that are not sums over heaps.
// Since the last reset; `ladder` since construction.
struct DeviceCounters {
  std::uint64_t retries = 0;           // requests that reached the host-side waits of step 8
  std::uint64_t out_of_memory = 0;     // requests that failed
  std::uint64_t synchronisations = 0;  // empty_cache and step 8
  std::uint64_t pages_created = 0;
  std::uint64_t pages_released = 0;
  LadderCounts ladder{};
};

class DeviceMemory {
 public:
  DeviceMemory(const CudaApi& api, DeviceId device, AddressIndex& addresses,
               const AllocatorConfig& config, MemoryShortageCallback on_shortage);
  // Nothing may be live. Only tests destroy one: a process keeps its allocators to the end.
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  Driver& driver() { return driver_; }
  PageStore& store() { return store_; }
  DeviceStats& stats() { return stats_; }
  std::size_t total_memory() const { return total_memory_; }

  // `size` bytes for a request of `requested` <= size: a positive multiple of kBlockAlignment (see
  // block_size). Throws DriverError when the driver refuses; then nothing changed.
  AllocateResult allocate(const PoolId& pool, StreamId stream, Request request);

  // Pools. Ids other than the default pool's.
  // Makes the pool, held once, or holds it once more.
  void hold_pool(const PoolId& id) FERRO_EXCLUDES(pools_mutex_);
  // False: unknown, or held by nobody.
  bool release_pool(const PoolId& id) FERRO_EXCLUDES(pools_mutex_);
  // -1: unknown.
  int pool_use_count(const PoolId& id) FERRO_EXCLUDES(pools_mutex_);
  // Flags may be set before the pool exists.
  void set_no_split(const PoolId& id) FERRO_EXCLUDES(pools_mutex_);
  void set_use_on_oom(const PoolId& id, bool use) FERRO_EXCLUDES(pools_mutex_);

  // Who is told of everything that happens from now on; null: nobody. It must outlive this object.
  void set_observer(MemoryObserver* observer) {
    observer_.store(observer, std::memory_order_release);
  }

  // How many captures run on this device. While there are any, private pools give nothing back.
  void set_captures(int count) { captures_.store(count, std::memory_order_relaxed); }

  // Whole free pages of the default pool and of pools that nobody holds go to the driver, behind
  // their fences; so do the idle ones. Heaps and pools that are gone leave nothing behind.
  void empty_cache(const CallContext& context = nullptr) FERRO_EXCLUDES(slow_mutex_);
  // The same for one pool, if nobody holds it; else nothing.
  void empty_pool(const PoolId& id, const CallContext& context = nullptr)
      FERRO_EXCLUDES(slow_mutex_);
  // Sharing with other processes (exports.h). `ptr` lies in `span`, a span of this device.
  ExportResult export_block(Span& span, DevicePtr ptr, SharedRange* out)
      FERRO_EXCLUDES(slow_mutex_);
  ExportTable& exports() { return exports_; }
  Imports& imports() { return imports_; }
  // Another device may access all memory of this one, present and future. DriverError: it may not
  // access what comes later, and perhaps some of what there is.
  void add_peer(DeviceId peer) FERRO_EXCLUDES(slow_mutex_);

  // Notices frees that are complete without waiting for a miss.
  void collect_pending() FERRO_EXCLUDES(slow_mutex_);

  // Looks. `only`: segments of that pool alone, which may be unknown.
  std::vector<SegmentView> segments(const PoolId* only) FERRO_EXCLUDES(pools_mutex_);
  // Heaps of one pool, in order of creation of their streams' numbers; for checkpoints.
  std::vector<Heap*> heaps_of(const PoolId& id) FERRO_EXCLUDES(pools_mutex_);
  std::size_t largest_free_block() FERRO_EXCLUDES(pools_mutex_);
  DeviceCounters counters() FERRO_EXCLUDES(slow_mutex_);
  // Bytes of the pages held, in PyTorch's form.
  StatValue reserved() FERRO_EXCLUDES(slow_mutex_);
  void reset_accumulated_counters() FERRO_EXCLUDES(slow_mutex_);
  // Recounts and throws InternalError on a mismatch. While nobody allocates or frees: each heap is
  // counted under its own lock, and the sums are compared afterwards.
  void check_invariants() FERRO_EXCLUDES(slow_mutex_);

 private:
  struct Step;
  static const std::array<Step, 7> kLadder;

  Heap& heap_for(const PoolId& pool, StreamId stream);
  Heap& find_or_make_heap(const PoolId& pool, StreamId stream) FERRO_EXCLUDES(pools_mutex_);
  bool is_no_split(const PoolId& id) FERRO_EXCLUDES(pools_mutex_);
  AllocateResult climb(Heap& heap, const Request& request) FERRO_EXCLUDES(slow_mutex_);

  // Steps of the ladder (ladder.cpp). kNull: did not help.
  DevicePtr collect_pending_frees(Heap& heap, const Request& request) FERRO_REQUIRES(slow_mutex_);
  DevicePtr merge_unmerged(Heap& heap, const Request& request) FERRO_REQUIRES(slow_mutex_);
  DevicePtr move_pages(Heap& heap, const Request& request) FERRO_REQUIRES(slow_mutex_);
  DevicePtr take_idle_pages(Heap& heap, const Request& request) FERRO_REQUIRES(slow_mutex_);
  DevicePtr grow(Heap& heap, const Request& request) FERRO_REQUIRES(slow_mutex_);
  DevicePtr ask_to_give_back(Heap& heap, const Request& request) FERRO_REQUIRES(slow_mutex_);
  DevicePtr wait_for_memory(Heap& heap, const Request& request) FERRO_REQUIRES(slow_mutex_);
  DevicePtr grow_from(const std::vector<Heap*>& givers, Heap& heap, const Request& request)
      FERRO_REQUIRES(slow_mutex_);

  enum class Givers { kAllowing, kDefaultPool, kEverything };
  std::vector<Heap*> heaps_that_give(Givers which) FERRO_EXCLUDES(pools_mutex_);
  std::vector<Heap*> all_heaps() FERRO_EXCLUDES(pools_mutex_);
  void drop_unused_pools() FERRO_REQUIRES(slow_mutex_) FERRO_EXCLUDES(pools_mutex_);
  OutOfMemoryFacts facts_of_failure(const Request& request) FERRO_REQUIRES(slow_mutex_);

  const std::uint64_t serial_;  // distinguishes allocators in thread-local caches
  const AllocatorConfig config_;
  Driver driver_;
  const std::size_t total_memory_;
  PageStore store_;
  EventPool events_;
  ExportTable exports_;
  DeviceStats stats_;
  std::atomic<int> captures_{0};
  Imports imports_;
  std::atomic<MemoryObserver*> observer_{nullptr};
  const HeapContext heap_context_;
  const MemoryShortageCallback on_shortage_;

  RecursiveMutex slow_mutex_;
  DeviceCounters counters_ FERRO_GUARDED_BY(slow_mutex_);
  PageCounts pages_at_reset_ FERRO_GUARDED_BY(slow_mutex_);
  bool granularity_checked_ FERRO_GUARDED_BY(slow_mutex_) = false;

  Mutex pools_mutex_;
  std::map<PoolId, Pool> pools_ FERRO_GUARDED_BY(pools_mutex_);  // the default pool is always there
  std::atomic<int> no_split_pools_{0};
};

}  // namespace ferro
