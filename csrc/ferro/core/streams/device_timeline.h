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
// blocking stream or a known one. Once the driver has refused a point, a library captures silently on
// streams of its own; from then on, and with drivers before CUDA 12.5, there are no points at all.
// Where there are none, epochs pass by waits of the host alone, which captures survive
// (`wait_beside_captures`).
//
// Thread-safe. Lock order: captures > mutex_ > events. Waits of the host hold no lock.
//
// Invariants: passed() < now(); the points that have not passed are in ascending order of epoch, and
// each covers all epochs up to its own. The event of a point is reused when the point has passed and
// no thread waits for it.
#pragma once

#include "ferro/base/mutex.h"
#include "ferro/core/streams/capture_count.h"
#include "ferro/core/streams/event_pool.h"
#include "ferro/core/types/epoch.h"
#include "ferro/driver/driver.h"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace ferro {

class DeviceTimeline {
 public:
  // Streams of the device that are sure to exist: all that have memory, or some of them, to ask
  // whether they capture.
  enum class Known { kAll, kSome };
  using KnownStreams = std::function<std::vector<StreamId>(Known)>;
  // For who cannot wait for ever: a device that works longer is taken to wait for something.
  static constexpr std::chrono::milliseconds kLongestWait{1000};

  // `captures`: of the process, because a capture may take in streams of several devices.
  DeviceTimeline(Driver& driver, EventPool& events, const CaptureCount& captures,
                 KnownStreams known_streams)
      : driver_(driver),
        events_(events),
        captures_(captures),
        known_streams_(std::move(known_streams)),
        returns_(std::make_shared<Returns>(&events)) {}
  ~DeviceTimeline() {
    const std::lock_guard lock(returns_->mutex);
    returns_->pool = nullptr;
  }
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
  // False: the driver has no points, or has refused one.
  bool has_points() const {
    return !was_refused_.load(std::memory_order_relaxed) && driver_.has_context_points();
  }

  // Ends the current epoch with a point. False: there are no points, or a capture forbids one. Throws
  // DriverError.
  bool record() FERRO_EXCLUDES(mutex_);
  // Asks the driver which points have passed; never waits. Returns passed(). Throws DriverError;
  // then what was found out before counts.
  Epoch update() FERRO_EXCLUDES(mutex_);
  // The host waits until the epoch has passed. False: a capture forbids the point that this needs,
  // and nothing was waited for. Throws DriverError.
  bool wait(Epoch epoch) FERRO_EXCLUDES(mutex_);
  // The same, for `at_most` so long. False: as above, or the epoch has not passed by then.
  bool wait(Epoch epoch, std::chrono::milliseconds at_most) FERRO_EXCLUDES(mutex_);
  // The host waits for all work that the device was given before this call.
  bool wait_for_all() { return wait(now()); }
  bool wait_for_all(std::chrono::milliseconds at_most) { return wait(now(), at_most); }
  // The same without a point: ends the current epoch, which has passed then. Captures live on, so it
  // is the last resort while they run. Throws DriverError; then the epoch has ended, and has not passed.
  void wait_beside_captures() FERRO_EXCLUDES(mutex_);
  // Work that `stream` is given from now on comes behind an epoch that was `recorded`; the host does
  // not wait. False: the stream captures, or there is no such point yet. Throws DriverError. May be
  // called under the store's lock.
  bool order_before(Epoch epoch, StreamId stream) FERRO_EXCLUDES(mutex_);

  // Ends the current epoch without a point: a later point covers it. Called at the begin and the end
  // of a capture, so that stamps tell whether memory was handed out within it.
  void begin_epoch() { current_.fetch_add(1, std::memory_order_seq_cst); }
  // Within a capture: the next work of `stream` comes behind the work of all known streams that are in
  // its capture. Throws DriverError.
  void join_streams(StreamId stream) FERRO_EXCLUDES(mutex_);

  // Points that have not passed, as of the last `update`.
  std::size_t points() const FERRO_EXCLUDES(mutex_);

 private:
  using Events = std::shared_ptr<const Driver::Events>;  // the last holder puts them back
  // Where events go back to; a thread that waits for some may outlive this object.
  struct Returns {
    explicit Returns(EventPool* events) : pool(events) {}
    std::mutex mutex;
    EventPool* pool;
  };
  struct Point {
    Epoch epoch = kUnused;  // the last that it covers
    Events events;          // one
  };
  // More are not kept: the last one is moved instead.
  static constexpr std::size_t kMaxPoints = 256;

  bool record_point(const std::vector<StreamId>& known) FERRO_EXCLUDES(mutex_);
  bool any_captures(const std::vector<StreamId>& streams);
  std::vector<StreamId> known(Known which) const {
    return known_streams_ ? known_streams_(which) : std::vector<StreamId>();
  }
  Events owned(EventId event);
  // The first that covers the epoch; none: it has passed or is not recorded.
  std::optional<Point> point_behind(Epoch epoch) const FERRO_REQUIRES(mutex_);
  // The same; and false where no point can be had.
  bool make_point_behind(Epoch epoch, std::optional<Point>& point) FERRO_EXCLUDES(mutex_);
  void note_passed(Epoch epoch) FERRO_REQUIRES(mutex_);

  Driver& driver_;
  EventPool& events_;
  const CaptureCount& captures_;
  const KnownStreams known_streams_;
  const std::shared_ptr<Returns> returns_;
  std::atomic<bool> was_refused_{false};
  std::atomic<Epoch> current_{kFirstEpoch};
  std::atomic<Epoch> recorded_{kFirstEpoch - 1};  // of the last point
  std::atomic<Epoch> passed_{kFirstEpoch - 1};
  mutable Mutex mutex_;
  std::deque<Point> points_ FERRO_GUARDED_BY(mutex_);
};

}  // namespace ferro
