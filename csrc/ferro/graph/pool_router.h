// Chooses the pool of an allocation from the diversions of one device, innermost first.
//
// A diversion sends the allocations that its filter accepts to a pool. There are two kinds: those
// of graph captures, whose filter accepts the streams of the capture, and those of threads and
// streams (`use_mem_pool`, warm-up of cudagraph trees), under which nothing is captured. The
// program does not announce the kind; `begin` detects it, because the filter of a capture rejects
// the current stream until the capture begins. A capture counts while its diversion lasts, or, if
// the program marks captures, while it is marked.
//
// Thread-safe. Filters are called under this object's lock and must not call it. A graph object whose
// capture has failed may be destroyed while its diversion stays, and other captures run on. So with
// FailedGraphs::kForget, captures are compared by the driver's ids instead of by such a filter, which
// is called only before the id is known, on a stream that captures.
#pragma once

#include "ferro/base/mutex.h"
#include "ferro/core/device/device_memory.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace ferro {

// Whether the pool is held here or in another allocator.
enum class PoolHold : std::uint8_t { kHere, kElsewhere };
// The owner of a filter: a graph object of PyTorch, which does not end its diversion if the capture
// fails, or the program.
enum class FilterOwner : std::uint8_t { kGraph, kProgram };

// Whether the destructor of a graph object whose capture failed ends its diversion and releases its
// pool.
enum class FailedGraphs : std::uint8_t { kForget, kCleanUp };

// The result of the capture whose diversion ends, if it was one.
enum class EndOfCapture : std::uint8_t { kSucceeded, kFailed };

class PoolRouter {
 public:
  using Filter = std::function<bool(StreamId)>;
  using Clock = std::chrono::steady_clock;

  // `grace`: the longest time in which a thread that has ended a capture notes that. `patience`:
  // in which it then ends the diversion.
  explicit PoolRouter(DeviceMemory& device, FailedGraphs failed = FailedGraphs::kForget,
                      Clock::duration patience = std::chrono::seconds(1),
                      Clock::duration grace = std::chrono::milliseconds(10))
      : device_(device), failed_graphs_(failed), patience_(patience), grace_(grace) {}

  // Adds a hold to the pool and diverts to it the allocations that `filter` accepts. `current` is
  // the current stream of this thread. First calls release_failed_captures(). A diversion that was
  // handed over gets the new filter. If a graph object left a diversion to this pool and its stream
  // does not capture, waits up to `patience` for its end or for its capture, then releases it.
  // False: another diversion to this pool exists; nothing else changed.
  bool begin(const PoolId& pool, Filter filter, StreamId current, PoolHold hold = PoolHold::kHere,
             FilterOwner owner = FilterOwner::kGraph) FERRO_EXCLUDES(mutex_);
  // Instead of `end`, if the capture of this diversion goes on: a graph of PyTorch 2.15 ends and
  // begins it, with another filter, where the body of a conditional node begins and ends. True: the
  // diversion stays as it is until the next `begin`. No-op with FailedGraphs::kForget.
  bool hand_over(const PoolId& pool) FERRO_EXCLUDES(mutex_);
  bool is_handed_over(const PoolId& pool) FERRO_EXCLUDES(mutex_);
  // Notes that the capture of this diversion has ended and does not count any more. The diversion
  // stays until its end or until release_failed_captures().
  void note_capture_over(const PoolId& pool) FERRO_EXCLUDES(mutex_);
  // Ends the diversion to `pool`. The pool stays held, unless the capture of a graph object failed.
  // False: there is no such diversion.
  bool end(const PoolId& pool, EndOfCapture how = EndOfCapture::kSucceeded) FERRO_EXCLUDES(mutex_);

  // Mark that a capture on this device has begun or ended. After the first mark, unmarked captures
  // do not count.
  void mark_capture_begin() FERRO_EXCLUDES(mutex_);
  void mark_capture_end() FERRO_EXCLUDES(mutex_);

  bool any() const { return count_.load(std::memory_order_relaxed) != 0; }
  bool is_diverting_to(const PoolId& pool) FERRO_EXCLUDES(mutex_);
  // The number of marked captures.
  int marked() FERRO_EXCLUDES(mutex_);
  // The number of captures, with failed ones that were not detected yet.
  int captures() const { return captures_.load(std::memory_order_relaxed); }
  bool has_captures() const { return captures() != 0; }
  // Unless the stream captures, first releases the failed captures that this thread began.
  PoolId pool_for(StreamId stream) FERRO_EXCLUDES(mutex_);
  // Ends the diversions of failed captures and releases their pools, if this thread or one that has
  // ended began them. One that another thread worked in or has noted as over is released only some
  // time after it was first seen here or in pool_for: that thread may be ending it. Each failed
  // capture makes one call wait for `grace`. No-op with FailedGraphs::kCleanUp.
  void release_failed_captures() FERRO_EXCLUDES(mutex_);
  // Returns the failed captures that were released since the last call, so that the caller releases
  // what it keeps of their pools: the hold too, if it is elsewhere.
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
    bool begun_on_lasts;                 // else the stream may be destroyed, and is not queried
    std::uint64_t other_capture;         // that ran on the stream before; 0: none
    std::weak_ptr<const void> begun_by;  // a thread; expires when it ends
    std::uint64_t capture = 0;           // the driver's id of its own capture, once it is known
    bool over = false;                   // its capture has ended
    bool handed_over = false;            // the next `begin` replaces the filter
    bool is_shared = false;              // served or ended by a thread that did not begin it
    std::optional<Clock::time_point> seen_over = {};  // the capture is over, the diversion is not
    std::optional<Clock::time_point> awaited_since = {};  // by a `begin` of another thread
    bool may_outlive_its_graph() const { return of_capture && owner == FilterOwner::kGraph; }
  };

  // Between two looks of `begin` at a diversion that may end or become a capture's.
  static constexpr Clock::duration kPause = std::chrono::milliseconds(5);

  void publish_counts() FERRO_REQUIRES(mutex_);
  using Position = std::vector<Diversion>::iterator;
  // Ends the diversion of a failed capture. The position of the next one.
  Position release(Position diversion, bool is_ended) FERRO_REQUIRES(mutex_);
  // `existing`: a stream that is known to exist, if any. The diversion is of a graph's capture that
  // has failed, has ended or has not begun.
  bool has_no_capture(const Diversion& diversion, std::optional<StreamId> existing)
      FERRO_REQUIRES(mutex_);
  bool may_end_soon(Diversion& diversion) FERRO_REQUIRES(mutex_);
  enum class Threads : std::uint8_t { kThis, kThisAndEnded };
  // False: the end of one may be noted soon. A call after `grace_` drops it.
  bool drop_abandoned(std::optional<StreamId> existing, Threads threads) FERRO_REQUIRES(mutex_);
  void drop_all_abandoned(std::optional<StreamId> existing) FERRO_EXCLUDES(mutex_);
  PoolId chosen_for(StreamId stream, const CaptureInfo& capture) FERRO_REQUIRES(mutex_);
  // Whether the diversion serves a stream in this state. Notes the id of its capture.
  bool accepts(Diversion& diversion, StreamId stream, const CaptureInfo& capture)
      FERRO_REQUIRES(mutex_);
  bool may_be_ending(Diversion& diversion) FERRO_REQUIRES(mutex_);
  CaptureInfo capture_of(StreamId stream) { return device_.driver().capture_info(stream); }
  bool is_capturing(StreamId stream) { return capture_of(stream).status != CaptureStatus::kNone; }

  DeviceMemory& device_;
  const FailedGraphs failed_graphs_;
  const Clock::duration patience_;
  const Clock::duration grace_;
  Mutex mutex_;
  std::condition_variable_any noted_;  // the end of a capture or of a diversion
  std::vector<Diversion> diversions_ FERRO_GUARDED_BY(mutex_);
  std::vector<Released> released_ FERRO_GUARDED_BY(mutex_);
  std::optional<int> marked_ FERRO_GUARDED_BY(mutex_);  // running ones; none before the first mark
  std::atomic<int> count_{0};
  std::atomic<int> captures_{0};
};

}  // namespace ferro
