// The memory of one device: its pools, its page store, and the ladder that a request climbs when it
// misses. An owner of parts: PoolTable, Ladder, Reclaimer and DeviceReport do the work.
//
// Thread-safe. Lock order: climb_mutex_ > the pool table's > a heap's > locks of store, events and
// statistics. On a hit a thread takes one heap's lock and nothing else. A miss releases it, takes
// climb_mutex_, and climbs; so at most one thread of a device maps memory at a time, which costs
// nothing because the driver serialises these calls anyway. The host may wait under climb_mutex_,
// and under no other lock.
//
// Invariants: held pages == pages that heaps own + pages of scratch sets + pages of the store;
// counters of the device == sums over all heaps, including destroyed ones.
#pragma once

#include "ferro/base/mutex.h"
#include "ferro/core/device/config.h"
#include "ferro/core/device/device_parts.h"
#include "ferro/core/device/device_report.h"
#include "ferro/core/device/ladder.h"
#include "ferro/core/device/reclaimer.h"
#include "ferro/core/device/sleeper.h"
#include "ferro/core/stats/stats.h"
#include "ferro/core/streams/capture_count.h"
#include "ferro/core/streams/device_timeline.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace ferro {

struct [[nodiscard]] AllocateResult {
  DevicePtr ptr = kNull;  // kNull: out of memory, and `failure` says why
  std::size_t size = 0;   // bytes of the block
  std::unique_ptr<OutOfMemoryFacts> failure;
};

class DeviceMemory {
 public:
  DeviceMemory(const CudaApi& api, DeviceId device, AddressIndex& addresses,
               const AllocatorConfig& config, MemoryShortageCallback on_shortage);
  // No block may be live. Only tests destroy one: a process keeps its allocators to the end.
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  Driver& driver() { return driver_; }
  PageStore& store() { return store_; }
  StaleMappings& stale() { return stale_; }
  DeviceStats& stats() { return stats_; }
  std::size_t total_memory() const { return total_memory_; }

  // `size` bytes for a request of `requested` <= size: a positive multiple of kBlockAlignment (see
  // block_size). Throws DriverError when the driver refuses; then nothing changed.
  AllocateResult allocate(const PoolId& pool, StreamId stream, const Request& request) {
    return allocate(pool, stream, heap_kind(request.size), request);
  }
  // The same from the arena of this kind.
  AllocateResult allocate(const PoolId& pool, StreamId stream, HeapKind kind,
                          const Request& request) {
    Heap& heap = pools_.arena(pool, stream, kind);
    const DevicePtr ptr = heap.allocate_hit(request);
    if (ptr != kNull) [[likely]] {
      return {ptr, request.size, nullptr};
    }
    return climb(heap, request);
  }
  // The previous allocator served the request that failed so, and it does not count as a failure.
  void forget_failure(const OutOfMemoryFacts& failure) FERRO_EXCLUDES(climb_mutex_);
  // Allocates at exactly `ptr`, an address of that pool and stream. kNull without a failure: some
  // byte is in use or of another arena, or memory is short.
  AllocateResult allocate_at(const PoolId& pool, StreamId stream, DevicePtr ptr,
                             const Request& request) FERRO_EXCLUDES(climb_mutex_);

  // Holds, flags and heaps of pools.
  PoolTable& pools() { return pools_; }
  DeviceReport& report() { return report_; }
  // Attaches the pages that graphs share (graph/graph_memory.h), before the first heap of a private
  // pool is created. Null: detaches them; private pools may then only release memory.
  void set_graphs(GraphPages* graphs) FERRO_EXCLUDES(climb_mutex_);
  // For GraphMemory. The climb lock guards the reclaimer.
  RecursiveMutex& climb_mutex() FERRO_RETURN_CAPABILITY(climb_mutex_) { return climb_mutex_; }
  const DeviceParts& parts() const { return parts_; }
  Reclaimer& reclaimer() FERRO_NO_THREAD_SAFETY_ANALYSIS { return reclaimer_; }

  // Applies the settings that may change while memory exists: headroom, idle bytes and the share in
  // flight. The store has the limit; the other settings do not change.
  void adjust(const AllocatorConfig& wanted) FERRO_EXCLUDES(climb_mutex_);

  // The observer of later events, which must outlive this object; null: none.
  void set_observer(MemoryObserver* observer) { observer_.set(observer); }

  // Calls `stream_lasts` of the configuration. The stream must exist.
  bool stream_lasts(StreamId stream) const {
    return config_.stream_lasts == nullptr || config_.stream_lasts(driver_.device(), stream);
  }

  // Sets the numbers of running and of announced captures on this device; an announcement precedes
  // the capture (capture_count.h). While there are any, pools that graphs use release nothing, and
  // freed memory stays in its arena. For one thread at a time.
  void set_captures(int running, int announced);
  void set_captures(int count) { set_captures(count, count); }

  // Releases idle pages, and whole free pages of the default pool and of unheld pools, to the
  // driver, after the host has waited for the epochs in which they were freed. Keeps as many bytes
  // as the settings say. Destroys unused heaps and pools.
  void empty_cache(const CallContext& context = nullptr) FERRO_EXCLUDES(climb_mutex_);
  // The same for one pool. No-op if it is held.
  void empty_pool(const PoolId& id, const CallContext& context = nullptr)
      FERRO_EXCLUDES(climb_mutex_);
  // The same without any wait, for destructors: does nothing while the device works, another thread
  // climbs or a capture runs.
  void empty_idle_pool(const PoolId& id) FERRO_EXCLUDES(climb_mutex_);
  // Exports the handles behind a block to other processes (exports.h). `ptr` lies in `span`, a span
  // of this device, and its block stays live meanwhile. Does not wait for the device.
  ExportResult export_block(Span& span, DevicePtr ptr, SharedRange* out)
      FERRO_EXCLUDES(climb_mutex_);
  // Pins the handles behind a range of a span until they are unpinned as often: they do not leave
  // or move, even without blocks. False: some of the range has no memory.
  bool pin(Span& span, DevicePtr begin, std::size_t bytes) FERRO_EXCLUDES(climb_mutex_);
  void unpin(Span& span, DevicePtr begin, std::size_t bytes) FERRO_EXCLUDES(climb_mutex_);
  ExportTable& exports() { return exports_; }
  Imports& imports() { return imports_; }
  // Sleep (sleeper.h).
  SleepOutcome sleep(const SleepFilter& which, Sleeper::Contents contents, Sleeper::Want want)
      FERRO_EXCLUDES(climb_mutex_);
  SleepOutcome wake(const SleepFilter& which) FERRO_EXCLUDES(climb_mutex_);
  struct SleepView {
    std::size_t asleep_bytes = 0;  // of memory that is asleep
    std::size_t saved_bytes = 0;   // of the host, that contents take
    std::size_t host_bytes = 0;    // of the host, held for contents
    std::size_t locked_bytes = 0;  // of host_bytes
  };
  SleepView sleep_view() FERRO_EXCLUDES(climb_mutex_);
  // The private pools that have memory asleep, with its bytes. Scratch that a group shares counts
  // for each of its pools.
  std::map<PoolId, std::size_t> asleep_pools() FERRO_EXCLUDES(climb_mutex_);
  bool is_scratch_asleep(const PoolId& id) FERRO_EXCLUDES(climb_mutex_);
  // Returns host memory that keeps no contents to the system. The result are its bytes.
  std::size_t trim_host_memory() FERRO_EXCLUDES(climb_mutex_);
  // Grants another device access to all present and future memory of this one; pages then leave
  // their arena after its work too (device_timeline.h). DriverError: it has no access to future
  // memory, and perhaps not to all present memory.
  void add_peer(DeviceId peer) FERRO_EXCLUDES(climb_mutex_);

  // Calls `function` under the climb lock. False: another thread holds the lock; no call was made.
  template <typename Function>
  bool try_under_climb_lock(Function function) FERRO_NO_THREAD_SAFETY_ANALYSIS {
    const std::unique_lock lock(climb_mutex_, std::try_to_lock);
    if (lock.owns_lock()) {
      function();
    }
    return lock.owns_lock();
  }

  // Completes pending frees without a miss.
  void collect_pending() FERRO_EXCLUDES(climb_mutex_);

 private:
  AllocateResult climb(Heap& heap, const Request& request) FERRO_EXCLUDES(climb_mutex_);
  CaptureCount& captures_of_process() {
    return config_.captures_of_process != nullptr ? *config_.captures_of_process : own_captures_;
  }
  // DeviceTimeline::KnownStreams.
  std::size_t copy_known_streams(std::span<StreamId> to);
  void check_granularity() FERRO_REQUIRES(climb_mutex_);
  void read_rejection_limit() FERRO_REQUIRES(climb_mutex_);
  // `wanted`: the bytes requested from the driver.
  AllocateResult out_of_memory(std::size_t wanted, bool no_addresses) FERRO_REQUIRES(climb_mutex_);
  AllocateResult reject(std::size_t wanted) FERRO_REQUIRES(climb_mutex_);

  AllocatorConfig config_;  // the climb lock guards what `adjust` changes
  Driver driver_;
  const std::size_t total_memory_;
  EventPool events_;
  CaptureCount captures_;
  CaptureCount own_captures_;  // if the configuration has no count of the process
  int announced_captures_ = 0;
  DeviceTimeline timeline_;
  PageStore store_;
  StaleMappings stale_;
  ExportTable exports_{driver_};
  DeviceStats stats_;
  Imports imports_;
  ObserverSlot observer_;
  PoolTable pools_;
  GraphPages* graphs_ = nullptr;  // under the climb lock
  const MemoryShortageCallback on_shortage_;

  RecursiveMutex climb_mutex_;
  DeviceCounters counters_ FERRO_GUARDED_BY(climb_mutex_);
  const DeviceParts parts_;
  DeviceReport report_;
  Reclaimer reclaimer_ FERRO_GUARDED_BY(climb_mutex_);
  Ladder ladder_ FERRO_GUARDED_BY(climb_mutex_);
  Sleeper sleeper_ FERRO_GUARDED_BY(climb_mutex_);
  bool granularity_checked_ FERRO_GUARDED_BY(climb_mutex_) = false;
  std::size_t rejection_limit_ FERRO_GUARDED_BY(climb_mutex_) = PageStore::kNoLimit;
};

}  // namespace ferro
