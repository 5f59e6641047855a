// A point of a stream's work: an event recorded there, or one that the host knows to be over. Shared
// by all memory that left a heap at that point; its event goes back to the pool with the last of
// them. Thread-safe.
#pragma once

#include "ferro/core/streams/event_pool.h"
#include "ferro/driver/driver.h"

#include <atomic>
#include <memory>
#include <optional>

namespace ferro {

class Fence {
 public:
  // Behind what `stream` was given so far. Null while the stream captures, where an event would
  // become part of the graph. Throws DriverError.
  static std::shared_ptr<Fence> record(EventPool& events, StreamId stream) {
    const EventId event = events.record(stream);
    return event != kNoEvent ? std::make_shared<Fence>(&events, event, stream) : nullptr;
  }
  // Over: nothing was in flight.
  static std::shared_ptr<Fence> passed() {
    auto fence = std::make_shared<Fence>(nullptr, kNoEvent, std::nullopt);
    fence->mark_passed();
    return fence;
  }

  Fence(EventPool* events, EventId event, std::optional<StreamId> stream)
      : events_(events), event_(event), stream_(stream) {}
  ~Fence() {
    if (event_ != kNoEvent) {
      events_->put(event_);
    }
  }
  Fence(const Fence&) = delete;
  Fence& operator=(const Fence&) = delete;

  // None: of no stream.
  std::optional<StreamId> stream() const { return stream_; }
  // Asks the driver, never waits. Throws DriverError.
  bool has_passed(Driver& driver) {
    if (!passed_.load(std::memory_order_acquire) && driver.is_complete(event_)) {
      mark_passed();
    }
    return passed_.load(std::memory_order_acquire);
  }
  // The host waits.
  void wait(Driver& driver) {
    if (!passed_.load(std::memory_order_acquire)) {
      driver.wait(event_);
      mark_passed();
    }
  }
  // Work that `stream` is given from now on comes behind it; the host does not wait. False: the
  // stream captures.
  bool order_before(Driver& driver, StreamId stream) {
    return passed_.load(std::memory_order_acquire) || stream == stream_ ||
           driver.stream_wait(event_, stream);
  }

 private:
  void mark_passed() { passed_.store(true, std::memory_order_release); }

  EventPool* const events_;
  const EventId event_;
  const std::optional<StreamId> stream_;
  std::atomic<bool> passed_{false};
};

using FenceRef = std::shared_ptr<Fence>;

}  // namespace ferro
