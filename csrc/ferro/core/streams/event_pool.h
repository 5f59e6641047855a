// Events, reused because a driver event costs more to make than to record. An event is of one
// context, as streams are. The pool keeps those of other devices, whose streams may use memory of
// this one, apart. Thread-safe. Events are never returned to the driver: at exit the driver may be
// gone before the allocator.
#pragma once

#include "ferro/base/mutex.h"
#include "ferro/driver/driver.h"

#include <map>
#include <vector>

namespace ferro {

class EventPool {
 public:
  explicit EventPool(Driver& driver) : driver_(driver) {}

  // One of this device. Throws DriverError when the driver refuses a new event.
  EventId take() { return take_from(driver_.own_context()); }
  // One that was recorded behind the work of the stream, which may be of any device. kNoEvent: the
  // stream captures. Throws DriverError.
  EventId record(StreamId stream) {
    const ContextId own = driver_.own_context();
    ContextId context = own;
    const EventId event = record_in(own, stream, &context);
    return context == own ? event : record_in(context, stream, nullptr);
  }
  // One that was recorded behind all work of this device's context (Driver::record_context).
  // kNoEvent: a capture refused it. Throws DriverError.
  EventId record_context() {
    const EventId event = take();
    return keep_if(event, [&] { return driver_.record_context(event); });
  }
  void put(EventId event) FERRO_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    const auto foreign = foreign_.find(event);
    unused_[foreign == foreign_.end() ? driver_.own_context() : foreign->second].push_back(event);
  }

 private:
  // `*other`: the stream's context, where it is another.
  EventId record_in(ContextId context, StreamId stream, ContextId* other) {
    const EventId event = take_from(context);
    return keep_if(event, [&] { return driver_.record(event, stream, other); });
  }
  // kNoEvent, and the event goes back, unless `is_recorded()`.
  template <typename Record>
  EventId keep_if(EventId event, Record is_recorded) {
    bool keep = false;
    try {
      keep = is_recorded();
    } catch (...) {
      put(event);
      throw;
    }
    if (!keep) {
      put(event);
    }
    return keep ? event : kNoEvent;
  }
  EventId take_from(ContextId context) FERRO_EXCLUDES(mutex_) {
    {
      const MutexLock lock(mutex_);
      std::vector<EventId>& unused = unused_[context];
      if (!unused.empty()) {
        const EventId event = unused.back();
        unused.pop_back();
        return event;
      }
    }
    const EventId event = driver_.create_event(context);
    if (context != driver_.own_context()) {
      const MutexLock lock(mutex_);
      foreign_.emplace(event, context);
    }
    return event;
  }

  Driver& driver_;
  Mutex mutex_;
  std::map<ContextId, std::vector<EventId>> unused_ FERRO_GUARDED_BY(mutex_);
  std::map<EventId, ContextId> foreign_
      FERRO_GUARDED_BY(mutex_);  // of other devices, in use or not
};

}  // namespace ferro
