// Points of everything that a device was given, and which of them it has passed.
//
// Programs rely on the native allocator's rule of reuse: free memory serves later requests of its own
// arena at once, and anything else only behind all work that the device had been given, by any
// stream, when the memory was freed. So a free is stamped with the current epoch, and recording a
// point ends the epoch: the point comes behind all work that was given before any free of its epoch.
// Memory whose stamp has passed may go anywhere.
//
// A point is an event of the whole context (cuCtxRecordEvent), which also covers streams that the
// allocator does not know. The driver refuses one, and invalidates the capture, while a stream of the
// context captures. So none is recorded while a capture is announced, and what is freed meanwhile
// waits for the end of the capture. Where a library captures silently (capture_ledger.h), and with
// drivers before CUDA 12.5, a point is an event on each known stream instead, and there is none while
// one of them captures.
//
// Thread-safe. Lock order: captures > mutex_ > ledger, events. Waits of the host hold no lock.
//
// Invariants: passed() < now(); the points that have not passed are in ascending order of epoch, and
// each covers the epochs after the one before it up to its own.
#pragma once

#include "ferro/base/mutex.h"
#include "ferro/core/streams/capture_count.h"
#include "ferro/core/streams/capture_ledger.h"
#include "ferro/core/streams/event_pool.h"
#include "ferro/core/types/epoch.h"
#include "ferro/driver/driver.h"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

namespace ferro {

class DeviceTimeline {
 public:
  // Streams of the device that last as long as the process; asked where a library captures silently.
  using KnownStreams = std::function<std::vector<StreamId>()>;

  DeviceTimeline(Driver& driver, EventPool& events, const CaptureCount& captures,
                 CaptureLedger& ledger, KnownStreams known_streams)
      : driver_(driver),
        events_(events),
        captures_(captures),
        ledger_(ledger),
        known_streams_(std::move(known_streams)) {}

  // The stamp of memory that is freed now. One load, for the free path.
  Epoch now() const { return current_.load(std::memory_order_acquire); }
  // All work of this epoch and those before it is over, as of the last `update`.
  Epoch passed() const { return passed_.load(std::memory_order_acquire); }
  bool has_passed(Epoch epoch) const { return epoch <= passed(); }
  // The last epoch that a stream could be ordered behind now.
  Epoch last_orderable() const { return captures_.load() == 0 ? now() : recorded(); }

  // The epoch of the last point.
  Epoch recorded() const { return recorded_.load(std::memory_order_acquire); }

  // Ends the current epoch with a point. False: a capture forbids it. Throws DriverError.
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
  // Work that `stream` is given from now on comes behind the epoch; the host does not wait. False:
  // the stream captures, or a capture forbids the point. Throws DriverError.
  bool order_before(Epoch epoch, StreamId stream) FERRO_EXCLUDES(mutex_);

  // Points that have not passed, as of the last `update`.
  std::size_t points() const FERRO_EXCLUDES(mutex_);

 private:
  struct Point {
    Epoch epoch = kUnused;  // the last that it covers
    std::vector<EventId> events;
  };
  // More are not kept: the last one is moved instead.
  static constexpr std::size_t kMaxPoints = 256;

  bool uses_known_streams() const {
    return ledger_.has_seen_silent_capture() || !driver_.has_context_points();
  }
  bool record_point(const std::vector<StreamId>& known) FERRO_EXCLUDES(mutex_);
  bool any_captures(const std::vector<StreamId>& streams);
  std::vector<EventId> record_on_context();
  std::vector<EventId> record_on(const std::vector<StreamId>& streams);
  void put(const std::vector<EventId>& events);
  // The first that covers the epoch; null: there is none, because it has passed or is not recorded.
  const Point* point_behind(Epoch epoch) const FERRO_REQUIRES(mutex_);
  void note_passed(const Point& point) FERRO_EXCLUDES(mutex_);
  // False: a capture forbids the point.
  bool make_point_behind(Epoch epoch) FERRO_EXCLUDES(mutex_);

  Driver& driver_;
  EventPool& events_;
  const CaptureCount& captures_;
  CaptureLedger& ledger_;
  const KnownStreams known_streams_;
  std::atomic<Epoch> current_{1};
  std::atomic<Epoch> recorded_{kUnused};  // of the last point
  std::atomic<Epoch> passed_{kUnused};
  mutable Mutex mutex_;
  std::deque<Point> points_ FERRO_GUARDED_BY(mutex_);
};

}  // namespace ferro
