// Which pool serves an allocation: the diversions of one device, innermost first.
//
// A diversion sends the allocations that its filter accepts to a pool. There are two kinds, and
// they are kept apart: that of a graph capture, whose filter accepts the streams of that capture,
// and those of threads and streams (`use_mem_pool`, warm-up of cudagraph trees), under which
// nothing is captured. Programs do not say which kind they begin; it shows, because the filter of a
// capture refuses the current stream as long as the capture has not begun. A capture counts as
// running while its diversion lasts; where the program marks when captures really begin and end,
// while it is marked.
//
// Thread-safe. Filters are called under this object's lock and must not come back here. The filter
// of a graph object is called only while the stream in question captures: that object may be gone
// when its capture failed.
#pragma once

#include "ferro/base/mutex.h"
#include "ferro/core/device/device_memory.h"

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace ferro {

// A pool of another allocator is held there, not in this device's memory.
enum class PoolHold : std::uint8_t { kHere, kElsewhere };
// Whose filter it is: PyTorch's graph object's, which nobody ends when its capture fails, or a
// program's own.
enum class FilterOwner : std::uint8_t { kGraph, kProgram };

// Whether a graph object whose capture failed ends its diversion and releases its pool when it
// goes.
enum class FailedGraphs : std::uint8_t { kForget, kCleanUp };

// How the capture ended whose diversion ends, if it was one.
enum class EndOfCapture : std::uint8_t { kSucceeded, kFailed };

class PoolRouter {
 public:
  using Filter = std::function<bool(StreamId)>;

  explicit PoolRouter(DeviceMemory& device, FailedGraphs failed = FailedGraphs::kForget)
      : device_(device), failed_graphs_(failed) {}

  // Holds the pool once more and sends to it what `filter` accepts. `current` is the stream current
  // in this thread. Lets go of captures that failed first, as release_failed_captures() does.
  // False: this pool is being diverted to already; then nothing else changed.
  bool begin(const PoolId& pool, Filter filter, StreamId current, PoolHold hold = PoolHold::kHere,
             FilterOwner owner = FilterOwner::kGraph) FERRO_EXCLUDES(mutex_);
  // The capture that this diversion is of runs no more, and does not count. The diversion itself
  // stays until its end, or goes as that of a capture that failed.
  void note_capture_over(const PoolId& pool) FERRO_EXCLUDES(mutex_);
  // Ends the diversion to `pool`, which stays held, unless it was that of a graph object's capture
  // and the capture failed. False: there is none.
  bool end(const PoolId& pool, EndOfCapture how = EndOfCapture::kSucceeded) FERRO_EXCLUDES(mutex_);

  // A capture on this device has begun, or has ended. From the first mark on, a capture that is not
  // marked does not count.
  void mark_capture_begin() FERRO_EXCLUDES(mutex_);
  void mark_capture_end() FERRO_EXCLUDES(mutex_);

  bool any() const { return count_.load(std::memory_order_relaxed) != 0; }
  bool is_diverting_to(const PoolId& pool) FERRO_EXCLUDES(mutex_);
  // Captures that are marked.
  int marked() FERRO_EXCLUDES(mutex_);
  // Captures, also those that failed and were not noticed yet.
  int captures() const { return captures_.load(std::memory_order_relaxed); }
  bool has_captures() const { return captures() != 0; }
  // Lets go of captures that failed first, as below, unless the stream captures.
  PoolId pool_for(StreamId stream) FERRO_EXCLUDES(mutex_);
  // Ends the diversions of captures that failed and that nobody ends (FailedGraphs::kForget), and
  // releases their pools, where this thread began them or one that is gone.
  void release_failed_captures() FERRO_EXCLUDES(mutex_);
  // The captures that failed since the last call and released their pools: here, or for the caller to
  // do, where the pool is held elsewhere. The caller keeps more about a pool than its memory.
  struct Released {
    PoolId pool;
    PoolHold hold;
    bool is_ended = false;  // by its own `end`

    friend bool operator==(const Released&, const Released&) = default;
  };
  std::vector<Released> take_released() FERRO_EXCLUDES(mutex_);

 private:
  struct Diversion {
    PoolId pool;
    PoolHold hold;
    Filter filter;
    FilterOwner owner;
    bool of_capture;
    StreamId begun_on;
    bool begun_on_lasts;                 // or may be gone, and then no driver may be asked about it
    std::weak_ptr<const void> begun_by;  // a thread, gone when it is
    bool over = false;                   // the capture, if it is of one
    bool may_outlive_its_graph() const { return of_capture && owner == FilterOwner::kGraph; }
  };

  void publish_counts() FERRO_REQUIRES(mutex_);
  void release(const Diversion& diversion, bool is_ended) FERRO_REQUIRES(mutex_);
  // `existing`: a stream that certainly does, if there is one.
  enum class Threads : std::uint8_t { kThis, kThisAndEnded };
  void drop_abandoned(std::optional<StreamId> existing, Threads threads) FERRO_REQUIRES(mutex_);
  bool is_capturing(StreamId stream) {
    return device_.driver().capture_info(stream).status != CaptureStatus::kNone;
  }

  DeviceMemory& device_;
  const FailedGraphs failed_graphs_;
  Mutex mutex_;
  std::vector<Diversion> diversions_ FERRO_GUARDED_BY(mutex_);
  std::vector<Released> released_ FERRO_GUARDED_BY(mutex_);
  std::optional<int> marked_ FERRO_GUARDED_BY(mutex_);  // captures that run, once any was marked
  std::atomic<int> count_{0};
  std::atomic<int> captures_{0};
};

}  // namespace ferro
