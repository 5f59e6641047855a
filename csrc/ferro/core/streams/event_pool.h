// Reuses events, because creating one costs more than recording it. An event belongs to one
// context, as a stream does. The pool keeps events of other devices, whose streams may use memory
// of this device, separately. Thread-safe. Events are never destroyed, because at exit the driver
// may shut down before the allocator.
#pragma once

#include "ferro/base/mutex.h"
#include "ferro/driver/driver.h"

#include <map>
#include <vector>

namespace ferro {

class EventPool {
 public:
  explicit EventPool(Driver& driver) : driver_(driver) {}

  // An event of this device. Throws DriverError when the driver refuses a new event.
  EventId take() { return take(driver_.own_context()); }
  // An event of any context.
  EventId take(ContextId context) FERRO_EXCLUDES(mutex_) {
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
  // An event recorded after the work of the stream, which may belong to any device. kNoEvent if the
  // stream captures. Throws DriverError.
  EventId record(StreamId stream) {
    const ContextId own = driver_.own_context();
    ContextId context = own;
    const EventId event = record_in(own, stream, &context);
    return context == own ? event : record_in(context, stream, nullptr);
  }
  void put(EventId event) FERRO_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    const auto foreign = foreign_.find(event);
    unused_[foreign == foreign_.end() ? driver_.own_context() : foreign->second].push_back(event);
  }

 private:
  // `*other` receives the stream's context if that is a different one. An event that is not recorded
  // returns to the pool.
  EventId record_in(ContextId context, StreamId stream, ContextId* other) {
    const EventId event = take(context);
    bool is_recorded = false;
    try {
      is_recorded = driver_.record(event, stream, other);
    } catch (...) {
      put(event);
      throw;
    }
    if (!is_recorded) {
      put(event);
    }
    return is_recorded ? event : kNoEvent;
  }

  Driver& driver_;
  Mutex mutex_;
  std::map<ContextId, std::vector<EventId>> unused_ FERRO_GUARDED_BY(mutex_);
  std::map<EventId, ContextId> foreign_
      FERRO_GUARDED_BY(mutex_);  // events of other devices, in use or not
};

}  // namespace ferro
