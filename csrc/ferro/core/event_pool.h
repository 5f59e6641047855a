// Events of one device, reused because a driver event costs more to make than to record.
// Thread-safe. Events are never returned to the driver: at exit the driver may be gone before the
// allocator.
#pragma once

#include "ferro/base/mutex.h"
#include "ferro/driver/driver.h"

#include <vector>

namespace ferro {

class EventPool {
 public:
  explicit EventPool(Driver& driver) : driver_(driver) {}

  // Throws DriverError when the driver refuses a new event.
  EventId take() FERRO_EXCLUDES(mutex_) {
    {
      const MutexLock lock(mutex_);
      if (!unused_.empty()) {
        const EventId event = unused_.back();
        unused_.pop_back();
        return event;
      }
    }
    return driver_.create_event();
  }
  void put(EventId event) FERRO_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    unused_.push_back(event);
  }

 private:
  Driver& driver_;
  Mutex mutex_;
  std::vector<EventId> unused_ FERRO_GUARDED_BY(mutex_);
};

}  // namespace ferro
