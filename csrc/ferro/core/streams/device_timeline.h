// The points of a device's work, and which of them have passed.
//
// Programs rely on the native allocator's rule of reuse: at its own addresses, free memory serves
// later requests of its arena at once; anywhere else, only after all work that any stream of the
// device had received when the memory was freed. So a free is stamped with the current epoch, and
// recording a point ends the epoch: the point comes after all work submitted before any free of its
// epoch. Memory whose stamp has passed may go anywhere.
//
// A point is an event of the whole context (cuCtxRecordEvent), which also covers streams that the
// allocator does not know. While a stream of the context captures, the driver refuses a point and
// invalidates the capture. So none is recorded while a capture of the process is announced, or is
// detected on a blocking or a known stream. A refused point shows that a library captures
// unannounced on its own streams; from then on, and with drivers before CUDA 12.5, there are no
// points. Then epochs pass only by waits of the host, which captures survive
// (`wait_during_captures`).
//
// Thread-safe. Lock order: captures > mutex_ > events. Waits of the host hold no lock.
//
// Invariants: passed() < now(); the points that have not passed are in ascending order of epoch,
// and each covers all epochs up to its own. The events of passed points are reused while no thread
// waits for a point.
#pragma once

#include "ferro/base/mutex.h"
#include "ferro/core/streams/capture_count.h"
#include "ferro/core/streams/event_pool.h"
#include "ferro/core/types/epoch.h"
#include "ferro/driver/driver.h"

#include <atomic>
#include <cstddef>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace ferro {

class DeviceTimeline {
 public:
  // Copies some streams of the device that are sure to exist, to query whether they capture, and
  // returns their number.
  using KnownStreams = std::function<std::size_t(std::span<StreamId> to)>;

  // `captures`: of the process, because a capture may include streams of several devices.
  DeviceTimeline(Driver& driver, EventPool& events, const CaptureCount& captures,
                 KnownStreams known_streams)
      : driver_(driver),
        events_(events),
        captures_(captures),
        known_streams_(std::move(known_streams)) {}
  DeviceTimeline(const DeviceTimeline&) = delete;
  DeviceTimeline& operator=(const DeviceTimeline&) = delete;

  // The stamp of memory that is freed now. One load, for the free path.
  Epoch now() const { return current_.load(std::memory_order_acquire); }
  // The latest epoch that has passed, as of the last `update`.
  Epoch passed() const { return passed_.load(std::memory_order_acquire); }
  bool has_passed(Epoch epoch) const { return epoch <= passed(); }
  // The epoch of the last point.
  Epoch recorded() const { return recorded_.load(std::memory_order_acquire); }
  // The last epoch that the host could wait for now.
  Epoch last_waitable() const { return captures_.load() == 0 ? now() : recorded(); }
  // False if the driver lacks points or has refused one.
  bool has_points() const {
    return !was_refused_.load(std::memory_order_relaxed) && driver_.has_context_points();
  }

  // Ends the epoch with a point. False if none exists or a capture forbids it. Throws DriverError.
  bool record() FERRO_EXCLUDES(mutex_);
  // Queries which points have passed, never waits, and returns passed(). Throws DriverError;
  // passed() then has the results so far.
  Epoch update() FERRO_EXCLUDES(mutex_);
  // The host waits until the epoch has passed. False, without a wait, if a capture forbids the
  // point that this needs. Throws DriverError.
  bool wait(Epoch epoch) FERRO_EXCLUDES(mutex_);
  // The host waits for all work that the device received before this call.
  bool wait_for_all() { return wait(now()); }
  // The same without a point: ends the current epoch and waits until it has passed. Captures
  // survive this last resort. Throws DriverError; the epoch has then ended but not passed.
  void wait_during_captures() FERRO_EXCLUDES(mutex_);
  // Later work of `stream` waits for a `recorded` epoch; the host does not. False if the stream
  // captures or no point covers the epoch. Throws DriverError. Callable under the store's lock.
  bool order_before(Epoch epoch, StreamId stream) FERRO_EXCLUDES(mutex_);

  // Ends the current epoch without a point; a later point covers it. Called at the beginning and
  // the end of a capture, so that stamps show whether memory was handed out within it.
  void begin_epoch() { current_.fetch_add(1, std::memory_order_seq_cst); }
  // Within a capture: orders the next work of `stream` after the work of those of `others` that are
  // in its capture. Throws DriverError.
  void join_streams(StreamId stream, const std::vector<StreamId>& others) FERRO_EXCLUDES(mutex_);

  // The number of points that have not passed, as of the last `update`.
  std::size_t points() const FERRO_EXCLUDES(mutex_);

 private:
  struct Point {
    Epoch epoch = kUnused;  // the last one that the point covers
    EventId event = kNoEvent;
  };
  // Before it records a point, the timeline queries whether these many streams capture, 27 ns each.
  static constexpr std::size_t kMaxQueried = 128;
  // If there are this many, a new point replaces the last one.
  static constexpr std::size_t kMaxPoints = 256;

  bool record_point(std::span<const StreamId> known) FERRO_EXCLUDES(mutex_);
  bool any_captures(std::span<const StreamId> streams);
  void wait_for(const Point& point) FERRO_EXCLUDES(mutex_);
  // The first point that covers the epoch; none if the epoch has passed or is not recorded.
  std::optional<Point> point_behind(Epoch epoch) const FERRO_REQUIRES(mutex_);
  void note_passed(Epoch epoch) FERRO_REQUIRES(mutex_);

  Driver& driver_;
  EventPool& events_;
  const CaptureCount& captures_;
  const KnownStreams known_streams_;
  std::atomic<bool> was_refused_{false};
  std::atomic<Epoch> current_{kFirstEpoch};
  std::atomic<Epoch> recorded_{kFirstEpoch - 1};  // of the last point
  std::atomic<Epoch> passed_{kFirstEpoch - 1};
  mutable Mutex mutex_;
  std::deque<Point> points_ FERRO_GUARDED_BY(mutex_);
  std::vector<EventId> unused_ FERRO_GUARDED_BY(mutex_);
  int waiting_ FERRO_GUARDED_BY(mutex_) = 0;  // threads in `wait_for`
};

}  // namespace ferro
