// The points of a device's work, and which of them have passed.
//
// Programs rely on the native allocator's rule of reuse: at its own addresses, free memory serves
// later requests of its arena at once; anywhere else, only after all work that any stream of the
// process, on any device, had received when the memory was freed: a copy between devices uses memory
// of another device without peer access. So a free is stamped with the current epoch, and
// recording a point ends the epoch: the point comes after all work submitted before any free of its
// epoch. Memory whose stamp has passed may go anywhere.
//
// A point is an event of the whole context (cuCtxRecordEvent), which also covers streams that the
// allocator does not know, and one such event for each other device that has a primary context.
// While a stream of a context captures, the driver refuses its event and invalidates the capture. So
// no point is recorded while a capture of the process is announced, or is detected on a blocking or
// a known stream of any device. A refused point shows that a library captures unannounced on its own
// streams; from then on, and with drivers before CUDA 12.5, no device has points. Then epochs pass
// only by waits of the host, which captures survive (`wait_during_captures`).
//
// A stream waits only for the device's part of an epoch, once the others have finished theirs.
// Collectives may run between devices of one process. A stream that waits for another device's part
// of one would hold up its own device's part, for which the other waits.
//
// Thread-safe. Lock order: captures > mutex_ > events. Waits of the host hold no lock.
//
// Invariants: passed() <= last_orderable() <= recorded() < now(); the points that have not passed
// are in ascending order of epoch, and each covers all epochs up to its own. A point has an event of
// the device and of each other device that had a primary context. The events of passed points are
// reused while no thread waits for a point.
#pragma once

#include "ferro/base/mutex.h"
#include "ferro/core/streams/capture_count.h"
#include "ferro/core/streams/event_pool.h"
#include "ferro/core/streams/limited_wait.h"
#include "ferro/core/types/epoch.h"
#include "ferro/driver/driver.h"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace ferro {

class DeviceTimeline {
 public:
  // Copies some streams of all devices that are sure to exist, to query whether they capture, and
  // returns their number.
  using KnownStreams = std::function<std::size_t(std::span<StreamId> to)>;

  // `captures`: of the process, because a capture may include streams of several devices.
  // `patience`: the longest time for which the host waits for other devices.
  DeviceTimeline(Driver& driver, EventPool& events, CaptureCount& captures,
                 KnownStreams known_streams,
                 std::chrono::nanoseconds patience = std::chrono::seconds(10))
      : driver_(driver),
        events_(events),
        captures_(captures),
        known_streams_(std::move(known_streams)),
        patience_(patience) {}
  DeviceTimeline(const DeviceTimeline&) = delete;
  DeviceTimeline& operator=(const DeviceTimeline&) = delete;

  // The stamp of memory that is freed now. One load, for the free path.
  Epoch now() const { return current_.load(std::memory_order_acquire); }
  // The latest epoch that has passed, as of the last `update`.
  Epoch passed() const { return passed_.load(std::memory_order_acquire); }
  bool has_passed(Epoch epoch) const { return epoch <= passed(); }
  // The epoch of the last point.
  Epoch recorded() const { return recorded_.load(std::memory_order_acquire); }
  // The last epoch that a stream could wait for now: it is recorded, and the other devices have
  // finished their part, as of the last `record` or `update`.
  Epoch last_orderable() const { return orderable_.load(std::memory_order_acquire); }
  // The last epoch that the host could wait for now.
  Epoch last_waitable() const { return captures_.load() == 0 ? now() : recorded(); }
  // False if the driver lacks points or has refused one of any device.
  bool has_points() const {
    return !captures_.has_refused_points() && driver_.has_context_points();
  }

  // Ends the epoch with a point. False if none exists or a capture forbids it; a later point then
  // covers the epoch, as after an exception. Throws DriverError.
  bool record() FERRO_EXCLUDES(mutex_);
  // Queries which points have passed, never waits, and returns passed(). Throws DriverError;
  // passed() then has the results so far.
  Epoch update() FERRO_EXCLUDES(mutex_);
  // The host waits until the epoch has passed. False, without a wait, if a capture forbids the
  // point that this needs, and if other devices take longer than `patience`: a kernel there may
  // wait for what this thread gives its own device next. Waits in the `patience` after that wait
  // briefly for other devices. Throws DriverError.
  bool wait(Epoch epoch) FERRO_EXCLUDES(mutex_);
  // The host waits for all work that the devices received before this call.
  bool wait_for_all() { return wait(now()); }
  // The same without a point: ends the current epoch and waits until it has passed. Captures
  // survive this last resort. False if other devices take longer than `patience`, with kLimited.
  // Then, and when it throws DriverError, the epoch has ended but not passed.
  enum class OfOthers : std::uint8_t { kLimited, kUnlimited };
  bool wait_during_captures(OfOthers others = OfOthers::kLimited) FERRO_EXCLUDES(mutex_);
  // Later work of `stream` waits for an epoch up to `last_orderable`; the host does not. False if
  // the stream captures, or for a later epoch. Throws DriverError. Callable under the store's lock.
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
  // The first is the device's, the next are in the order of `others_`. A set that was last recorded
  // before a context was found is shorter.
  using Events = std::vector<EventId>;
  struct Point {
    Epoch epoch = kUnused;  // the last one that the point covers
    Events events;
  };
  // Before it records a point, the timeline queries whether these many streams capture, 27 ns each.
  static constexpr std::size_t kMaxQueried = 128;
  // Between two queries of another device.
  static constexpr std::chrono::microseconds kPause{50};
  // The part of `patience` for which the host waits again soon after it gave up.
  static constexpr int kBrief = 200;
  // If there are this many, a new point replaces the last one.
  static constexpr std::size_t kMaxPoints = 256;

  // Adds the contexts that other devices have got. A process with one device makes no call.
  void find_contexts() FERRO_REQUIRES(mutex_);
  bool record_point(std::span<const StreamId> known) FERRO_EXCLUDES(mutex_);
  bool any_captures(std::span<const StreamId> known) FERRO_REQUIRES(mutex_);
  bool wait_for(const Point& point) FERRO_EXCLUDES(mutex_);
  bool wait_for_others(const Point& point);
  // How long the host waits for other devices now.
  std::chrono::nanoseconds limit() const;
  // The first point that covers the epoch; null if the epoch has passed or is not recorded.
  const Point* point_behind(Epoch epoch) const FERRO_REQUIRES(mutex_);
  void note_orderable() FERRO_REQUIRES(mutex_);
  void note_passed(Epoch epoch) FERRO_REQUIRES(mutex_);

  Driver& driver_;
  EventPool& events_;
  CaptureCount& captures_;
  const KnownStreams known_streams_;
  const std::chrono::nanoseconds patience_;
  // When a thread last gave up waiting for other devices.
  std::atomic<std::chrono::steady_clock::time_point> gave_up_{
      std::chrono::steady_clock::time_point::min()};
  std::atomic<Epoch> current_{kFirstEpoch};
  std::atomic<Epoch> recorded_{kFirstEpoch - 1};  // of the last point
  std::atomic<Epoch> orderable_{kFirstEpoch - 1};
  std::atomic<Epoch> passed_{kFirstEpoch - 1};
  mutable Mutex mutex_;
  std::deque<Point> points_ FERRO_GUARDED_BY(mutex_);
  std::vector<Events> unused_ FERRO_GUARDED_BY(mutex_);
  std::vector<ContextId> others_ FERRO_GUARDED_BY(mutex_);
  // The other devices; none before the first point.
  std::optional<std::vector<DeviceId>> without_context_ FERRO_GUARDED_BY(mutex_);
  int waiting_ FERRO_GUARDED_BY(mutex_) = 0;  // threads in `wait_for`
  LimitedWait for_others_;
};

}  // namespace ferro
