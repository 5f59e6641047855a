// Points of everything that a device was given, and which of them it has passed.
//
// Programs rely on the native allocator's rule of reuse: in its place free memory serves later requests
// of its own arena at once, and anywhere else only behind all work that the device had been given, by
// any stream, when the memory was freed. So a free is stamped with the current epoch, and recording a
// point ends the epoch: the point comes behind all work that was given before any free of its epoch.
// Memory whose stamp has passed may go anywhere.
//
// A point is an event of the whole context (cuCtxRecordEvent), which also covers streams that the
// allocator does not know. The driver refuses one, and invalidates the capture, while a stream of the
// context captures. So none is recorded while a capture of the process is announced, or is seen on a
// blocking stream or a known one; what is freed meanwhile waits for the end of the capture. Once the
// driver has refused a point, a library captures silently on streams of its own. From then on, and
// with drivers before CUDA 12.5, a point is an event on each known stream.
//
// Thread-safe. Lock order: captures > mutex_ > events. Waits of the host hold no lock.
//
// Invariants: passed() < now(); the points that have not passed are in ascending order of epoch, and
// each covers the epochs after the one before it up to its own. Events of a point are reused when it
// has passed and no thread waits for it.
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
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace ferro {

class DeviceTimeline {
 public:
  // Streams of the device that are sure to exist: all of them, for events on each, or some of them, to
  // ask whether they capture.
  enum class Known { kAll, kSome };
  using KnownStreams = std::function<std::vector<StreamId>(Known)>;

  // `captures`: of the process, because a capture may take in streams of several devices.
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
  // All work of this epoch and those before it is over, as of the last `update`.
  Epoch passed() const { return passed_.load(std::memory_order_acquire); }
  bool has_passed(Epoch epoch) const { return epoch <= passed(); }
  // The epoch of the last point.
  Epoch recorded() const { return recorded_.load(std::memory_order_acquire); }
  // The last epoch that the host could wait for now.
  Epoch last_waitable() const { return captures_.load() == 0 ? now() : recorded(); }
  // Is a point an event on each known stream?
  bool uses_known_streams() const {
    return by_streams_.load(std::memory_order_relaxed) || !driver_.has_context_points();
  }

  // Ends the current epoch with a point. False: a capture forbids it. Throws DriverError.
  bool record() FERRO_EXCLUDES(mutex_);
  // Asks the driver which points have passed; never waits. Returns passed(). Throws DriverError;
  // then what was found out before counts.
  Epoch update() FERRO_EXCLUDES(mutex_);
  // The host waits until the epoch has passed. False: a capture forbids the point that this needs,
  // and nothing was waited for. Throws DriverError.
  bool wait(Epoch epoch) FERRO_EXCLUDES(mutex_);
  // The host waits for all work that the device was given before this call.
  bool wait_for_all() { return wait(now()); }
  // Work that `stream` is given from now on comes behind an epoch that was `recorded`; the host does
  // not wait. False: the stream captures, or there is no such point yet. Throws DriverError. May be
  // called under the store's lock.
  bool order_before(Epoch epoch, StreamId stream) FERRO_EXCLUDES(mutex_);

  // Ends the current epoch without a point: a later point covers it. Called at the begin and the end
  // of a capture, so that stamps tell whether memory was handed out within it. `is_covered`: a single
  // capture is announced, and a point was recorded right before.
  void begin_epoch(bool is_covered) {
    is_capture_covered_.store(is_covered, std::memory_order_relaxed);
    current_.fetch_add(1, std::memory_order_seq_cst);
  }
  // While a capture forbids points: `stream` waits for the last point and for all known streams that do
  // not capture. Ends the current epoch and returns it: later work of `stream` runs behind it, except
  // for work on unknown streams. None: `stream` captures, or streams capture whose earlier work may not
  // be behind the last point. Throws DriverError.
  std::optional<Epoch> order_behind_streams(StreamId stream) FERRO_EXCLUDES(mutex_);
  // The same within a capture: the next work of `stream` comes behind the work of all known streams
  // that are in its capture. Throws DriverError.
  void join_streams(StreamId stream) FERRO_EXCLUDES(mutex_);

  // Points that have not passed, as of the last `update`.
  std::size_t points() const FERRO_EXCLUDES(mutex_);

 private:
  using EventList = std::vector<EventId>;
  using Events = std::shared_ptr<const EventList>;  // the last holder puts them back
  struct Point {
    Epoch epoch = kUnused;  // the last that it covers
    Events events;
    bool of_context = true;
  };
  // More are not kept: the last one is moved instead.
  static constexpr std::size_t kMaxPoints = 256;

  bool record_point(const std::vector<StreamId>& known) FERRO_EXCLUDES(mutex_);
  void add(Epoch epoch, EventList recorded, bool of_context) FERRO_REQUIRES(mutex_);
  EventList record_on_context();
  EventList record_on(const std::vector<StreamId>& streams);
  bool any_captures(const std::vector<StreamId>& streams);
  std::vector<StreamId> known(Known which) const {
    return known_streams_ ? known_streams_(which) : std::vector<StreamId>();
  }
  Events owned(EventList events, Events earlier);
  // The first that covers the epoch; null: there is none, because it has passed or is not recorded.
  const Point* point_behind(Epoch epoch) const FERRO_REQUIRES(mutex_);
  Point first_point() const FERRO_EXCLUDES(mutex_);
  // The first point has passed.
  void remove_first_point() FERRO_REQUIRES(mutex_);
  void note_passed(const Point& point) FERRO_EXCLUDES(mutex_);
  // False: a capture forbids the point.
  bool make_point_behind(Epoch epoch) FERRO_EXCLUDES(mutex_);

  Driver& driver_;
  EventPool& events_;
  const CaptureCount& captures_;
  const KnownStreams known_streams_;
  std::atomic<bool> by_streams_{false};
  std::atomic<bool> is_capture_covered_{false};
  std::atomic<Epoch> current_{kFirstEpoch};
  std::atomic<Epoch> recorded_{kFirstEpoch - 1};  // of the last point
  std::atomic<Epoch> passed_{kFirstEpoch - 1};
  mutable Mutex mutex_;
  std::deque<Point> points_ FERRO_GUARDED_BY(mutex_);
};

}  // namespace ferro
