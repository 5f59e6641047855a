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
#include "ferro/core/passing.h"
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

// How memory is laid out.
enum class Layout : std::uint8_t {
  kPages,     // blocks of all sizes on lines of pages
  kSegments,  // PyTorch's own; also where a device has no virtual memory management
};

struct AllocatorConfig {
  std::size_t page_bytes = 2 * kMiB;               // multiple of the driver's granularity
  HandleRules handles = {};                        // of new memory
  std::size_t memory_limit = PageStore::kNoLimit;  // bytes per device
  std::size_t headroom = 0;    // bytes of the device that are left free for others
  std::size_t idle_bytes = 0;  // that `empty_cache` keeps (pages only)
  Layout layout = Layout::kPages;
  // How much more than its peak of live bytes the program may hold before requests wait for other
  // streams, as a share of that peak (waiting.h); negative: it grows as long as it can.
  double in_flight_share = 0.3;
  PassingRules passing = {};  // of pages between streams, rather than growing
  // Asked on every request in segments, because programs change these settings as they run; null:
  // the defaults.
  std::function<SegmentRules()> segment_rules = nullptr;
  // Does the stream live as long as the process? Asked on every miss, in the thread that has it.
  // A stream that may be gone is touched for its own requests alone, because a driver that is asked
  // about one crashes; what it left free is had by waiting for the device. Null: all do.
  std::function<bool(DeviceId, StreamId)> stream_lasts = nullptr;
  // By the bytes of the device: those beyond which a request is refused at once, before anything is
  // given back or waited for. Asked on every miss; null: no such limit.
  std::function<std::size_t(std::size_t)> rejection_limit = nullptr;
};

// Called when memory is short and no lock of a heap is held. True: something was freed.
using MemoryShortageCallback = std::function<bool()>;

struct [[nodiscard]] AllocateResult {
  DevicePtr ptr = kNull;  // kNull: out of memory, and `failure` says why
  std::size_t size = 0;   // bytes of the block
  std::unique_ptr<OutOfMemoryFacts> failure;
};

// Numbers that are not sums over heaps.
// Since the last reset; of the ladder since construction.
struct DeviceCounters {
  std::uint64_t retries = 0;           // requests that reached the host-side waits of step 8
  std::uint64_t out_of_memory = 0;     // requests that failed, without those that were rejected
  std::uint64_t rejected = 0;          // requests beyond the rejection limit
  std::uint64_t synchronisations = 0;  // empty_cache and step 8
  std::uint64_t pages_created = 0;
  std::uint64_t pages_released = 0;
  std::uint64_t pages_handed_over = 0;  // from heap to heap, without a host wait
  std::uint64_t segments_created = 0;
  std::uint64_t segments_released = 0;
  LadderCounts ladder{};
  LadderCosts ladder_costs{};
};

// What is in the heaps, all pools together, and what became of the requests since construction.
struct DeviceView {
  std::size_t live_blocks = 0;
  std::size_t free_blocks = 0;
  std::size_t free_bytes = 0;     // in free blocks
  std::uint64_t hits = 0;         // requests that found a free block at once
  std::uint64_t misses = 0;       // requests that climbed the ladder
  std::uint64_t pages_moved = 0;  // on the lines of heaps that are still there
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
  SegmentStats& segment_stats() { return segment_stats_; }
  // As configured, unless the device leaves no choice.
  Layout layout() const { return layout_; }
  std::size_t total_memory() const { return total_memory_; }

  // `size` bytes for a request of `requested` <= size: a positive multiple of kBlockAlignment (see
  // block_size). Throws DriverError when the driver refuses; then nothing changed.
  AllocateResult allocate(const PoolId& pool, StreamId stream, Request request);
  // At exactly `ptr`, an address of that pool and stream. kNull without a failure: some byte is in
  // use or lies elsewhere, or there is no memory to put there.
  AllocateResult allocate_at(const PoolId& pool, StreamId stream, DevicePtr ptr, Request request)
      FERRO_EXCLUDES(slow_mutex_);

  // Pools. Ids other than the default pool's.
  // Makes the pool, held once, or holds it once more. `source` is for a new pool only: false, and
  // nothing changed, when the pool is known already.
  bool hold_pool(const PoolId& id, std::shared_ptr<SegmentSource> source = nullptr)
      FERRO_EXCLUDES(pools_mutex_);
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

  // As the configuration says; to be asked while the stream is sure to exist.
  bool stream_lasts(StreamId stream) const {
    return config_.stream_lasts == nullptr || config_.stream_lasts(driver_.device(), stream);
  }

  // How many captures run on this device. While there are any, private pools give nothing back.
  void set_captures(int count) { captures_.store(count, std::memory_order_relaxed); }

  // Whole free pages of the default pool and of pools that nobody holds go to the driver, behind
  // their fences; so do the idle ones. Heaps and pools that are gone leave nothing behind. As many
  // bytes of them as the settings want to keep stay where they are.
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
  // The same before numbers are shown, so that complete frees count as done although no request
  // noticed them. Not in segments, where every request does.
  void collect_for_a_look() {
    if (layout_ == Layout::kPages) {
      collect_pending();
    }
  }

  // Looks. `only`: segments of that pool alone, which may be unknown.
  std::vector<SegmentView> segments(const PoolId* only) FERRO_EXCLUDES(pools_mutex_);
  // Heaps of one pool, in order of creation of their streams' numbers; for checkpoints.
  std::vector<Heap*> heaps_of(const PoolId& id) FERRO_EXCLUDES(pools_mutex_);
  std::size_t largest_free_block() FERRO_EXCLUDES(pools_mutex_);
  DeviceView view() FERRO_EXCLUDES(slow_mutex_);
  // Bytes that a request would take from the driver, if it came now to the default pool.
  std::size_t bytes_from_driver(StreamId stream, const Request& request)
      FERRO_EXCLUDES(pools_mutex_);
  DeviceCounters counters() FERRO_EXCLUDES(slow_mutex_);
  // Host time of the slowest climb, once it had the lock, since its last reset or that of the peaks.
  std::uint64_t slowest_nanoseconds() FERRO_EXCLUDES(slow_mutex_);
  void reset_slowest() FERRO_EXCLUDES(slow_mutex_);
  // Bytes of pages and segments held.
  std::size_t held_bytes() const;
  // The same in PyTorch's form.
  std::array<StatValue, kStatClasses> reserved() FERRO_EXCLUDES(slow_mutex_);
  // The same for every private pool that ever had memory.
  std::map<PoolId, std::array<StatValue, kStatClasses>> reserved_by_pool()
      FERRO_EXCLUDES(slow_mutex_);
  void reset_accumulated_counters() FERRO_EXCLUDES(slow_mutex_);
  void reset_peaks() FERRO_EXCLUDES(slow_mutex_);
  // Recounts and throws InternalError on a mismatch. While nobody allocates or frees: each heap is
  // counted under its own lock, and the sums are compared afterwards.
  void check_invariants() FERRO_EXCLUDES(slow_mutex_);

 private:
  // Of a private pool; kept when the pool is gone.
  struct PoolHistory {
    PoolBytes now;
    std::array<std::int64_t, kStatClasses> increased_at_reset{};
    std::array<std::int64_t, kStatClasses> decreased_at_reset{};
  };
  struct Step;
  static const std::array<Step, 12> kLadder;

  Heap& heap_for(const PoolId& pool, StreamId stream, const Request& request);
  Heap& find_or_make_heap(const PoolId& pool, const HeapKey& key) FERRO_EXCLUDES(pools_mutex_);
  AllocateResult allocate_specially(const PoolId& pool, StreamId stream, Request request);
  AllocateResult allocate_in_pages(const PoolId& pool, StreamId stream, const Request& request);
  AllocateResult climb(Heap& heap, const Request& request) FERRO_EXCLUDES(slow_mutex_);
  DevicePtr climb_steps(Heap& heap, const Request& request) FERRO_REQUIRES(slow_mutex_);
  // `wanted`: bytes that the driver was to give.
  AllocateResult out_of_memory(std::size_t wanted) FERRO_REQUIRES(slow_mutex_);

  // Steps of the ladder (ladder.cpp). kNull: did not help.
  DevicePtr collect_pending_frees(Heap& heap, const Request& request) FERRO_REQUIRES(slow_mutex_);
  DevicePtr merge_unmerged(Heap& heap, const Request& request) FERRO_REQUIRES(slow_mutex_);
  DevicePtr move_pages(Heap& heap, const Request& request) FERRO_REQUIRES(slow_mutex_);
  DevicePtr take_idle_pages(Heap& heap, const Request& request) FERRO_REQUIRES(slow_mutex_);
  DevicePtr take_pages_at_rest(Heap& heap, const Request& request) FERRO_REQUIRES(slow_mutex_);
  DevicePtr wait_rather_than_grow(Heap& heap, const Request& request) FERRO_REQUIRES(slow_mutex_);
  DevicePtr grow(Heap& heap, const Request& request) FERRO_REQUIRES(slow_mutex_);
  DevicePtr borrow_rather_than_grow(Heap& heap, const Request& request) FERRO_REQUIRES(slow_mutex_);
  bool may_pass_pages() FERRO_REQUIRES(slow_mutex_);
  bool prefers_waiting_for(std::size_t pending, const Request& request) FERRO_REQUIRES(slow_mutex_);
  DevicePtr wait_on_stream(Heap& heap, const Request& request) FERRO_REQUIRES(slow_mutex_);
  DevicePtr order_and_allocate(Heap& heap, const Request& request, std::size_t at_most)
      FERRO_REQUIRES(slow_mutex_);
  DevicePtr ask_to_give_back(Heap& heap, const Request& request) FERRO_REQUIRES(slow_mutex_);
  DevicePtr wait_for_memory(Heap& heap, const Request& request) FERRO_REQUIRES(slow_mutex_);
  DevicePtr allocate_grown(Heap& heap, const Request& request, GrowFrom from)
      FERRO_REQUIRES(slow_mutex_);
  // Pages of one heap for another. The order is that of their addresses in the heap that gave them.
  struct Loan {
    Heap* from;
    std::vector<PageHandle> pages;
  };
  DevicePtr hand_over(Heap& heap, const Request& request) FERRO_REQUIRES(slow_mutex_);
  DevicePtr grow_from_loans(Heap& heap, const Request& request, std::vector<Loan>& loans)
      FERRO_REQUIRES(slow_mutex_);
  static void take_back(const std::vector<Loan>& loans);
  // Pages that are given back after they were lent have another mapping where they came from.
  void retire_lent_mappings() FERRO_REQUIRES(slow_mutex_);
  DevicePtr grow_from(const std::vector<Heap*>& givers, Heap& heap, const Request& request)
      FERRO_REQUIRES(slow_mutex_);

  // The classic layout (ladder_segments.cpp).
  AllocateResult allocate_in_segments(const PoolId& pool, StreamId stream, const Request& request)
      FERRO_EXCLUDES(slow_mutex_);
  BlockView allocate_in_new_segment(const PoolId& id, Heap& heap, const Request& request,
                                    const SegmentRules& rules) FERRO_REQUIRES(slow_mutex_);
  BlockView borrow_from_pools(const HeapKey& key, const Request& request, const SegmentRules& rules)
      FERRO_REQUIRES(slow_mutex_);
  SegmentSource& source_of(const PoolId& id) FERRO_EXCLUDES(pools_mutex_);
  bool collects(const SegmentRules& rules) const;
  void collect_old_segments(const SegmentRules& rules, const CallContext& context)
      FERRO_REQUIRES(slow_mutex_);
  bool release_oversize_segments(Heap& heap, const Request& request, const SegmentRules& rules)
      FERRO_REQUIRES(slow_mutex_);
  bool release_segment(Heap& heap, DevicePtr base, const CallContext& context)
      FERRO_REQUIRES(slow_mutex_);
  void release_free_segments(Heap& heap, const CallContext& context) FERRO_REQUIRES(slow_mutex_);
  // Everything that is free and may leave, pages and segments.
  void give_back_everything(const CallContext& context) FERRO_REQUIRES(slow_mutex_);
  std::size_t give_back_free_of(Heap& heap, std::size_t pages, const CallContext& context)
      FERRO_REQUIRES(slow_mutex_);
  std::size_t surplus_pages(const std::vector<Heap*>& givers);
  SegmentRules segment_rules() const {
    return config_.segment_rules ? config_.segment_rules() : SegmentRules{};
  }

  enum class Givers { kAllowing, kDefaultPool, kEverything };
  std::vector<Heap*> heaps_that_give(Givers which) FERRO_EXCLUDES(pools_mutex_);
  std::vector<Heap*> all_heaps() FERRO_EXCLUDES(pools_mutex_);
  void drop_unused_pools() FERRO_REQUIRES(slow_mutex_) FERRO_EXCLUDES(pools_mutex_);
  void read_rejection_limit() FERRO_REQUIRES(slow_mutex_);
  AllocateResult reject(std::size_t wanted) FERRO_REQUIRES(slow_mutex_);
  OutOfMemoryFacts facts_of_failure(std::size_t wanted) FERRO_REQUIRES(slow_mutex_);

  const std::uint64_t serial_;  // distinguishes allocators in thread-local caches
  const AllocatorConfig config_;
  Driver driver_;
  const std::size_t total_memory_;
  PageStore store_;
  EventPool events_;
  ExportTable exports_;
  DeviceStats stats_;
  SegmentStats segment_stats_;
  std::atomic<std::uint32_t> searches_{0};
  DriverSegments driver_segments_;
  const Layout layout_;
  std::atomic<int> captures_{0};
  Imports imports_;
  std::atomic<MemoryObserver*> observer_{nullptr};
  const HeapContext heap_context_;
  const MemoryShortageCallback on_shortage_;

  RecursiveMutex slow_mutex_;
  DeviceCounters counters_ FERRO_GUARDED_BY(slow_mutex_);
  std::uint64_t slowest_nanoseconds_ FERRO_GUARDED_BY(slow_mutex_) = 0;
  PageCounts pages_at_reset_ FERRO_GUARDED_BY(slow_mutex_);
  std::vector<Heap*> lenders_ FERRO_GUARDED_BY(slow_mutex_);        // that may have old mappings
  std::uint64_t handles_passed_ FERRO_GUARDED_BY(slow_mutex_) = 0;  // rather than growing
  std::size_t peak_live_ FERRO_GUARDED_BY(slow_mutex_) = 0;         // as misses saw it
  bool granularity_checked_ FERRO_GUARDED_BY(slow_mutex_) = false;
  std::size_t rejection_limit_ FERRO_GUARDED_BY(slow_mutex_) = PageStore::kNoLimit;
  // Of the last try to grow for the request that climbs.
  bool rejected_ FERRO_GUARDED_BY(slow_mutex_) = false;
  bool gap_too_short_ FERRO_GUARDED_BY(slow_mutex_) = false;

  Mutex pools_mutex_;
  std::map<PoolId, Pool> pools_ FERRO_GUARDED_BY(pools_mutex_);  // the default pool is always there
  std::map<PoolId, PoolHistory> pool_bytes_ FERRO_GUARDED_BY(pools_mutex_);
  std::atomic<int> special_pools_{0};
};

}  // namespace ferro
