// The observer of a device, and the moments at which it may run code of the program.
//
// An observer queues events for code of the program, because events happen under the lock of a heap
// (MemoryObserver). Climbs deliver them without such a lock: at their end, and before they unmap
// memory that an event reports as leaving. Both happen under the climb lock, so no other thread
// unmaps memory while this thread's event about it is undelivered.
//
// `set` and `get` are thread-safe; all else requires the climb lock.
#pragma once

#include "ferro/core/types/observer.h"
#include "ferro/driver/driver.h"

#include <atomic>

namespace ferro {

class ObserverSlot {
 public:
  // Delivers when the scope ends. A climb creates it right after taking the climb lock.
  class DeliveryAtEnd {
   public:
    explicit DeliveryAtEnd(ObserverSlot& slot) : slot_(slot) {}
    ~DeliveryAtEnd() { slot_.deliver(); }
    DeliveryAtEnd(const DeliveryAtEnd&) = delete;
    DeliveryAtEnd& operator=(const DeliveryAtEnd&) = delete;

   private:
    ObserverSlot& slot_;
  };

  // Null removes the observer.
  void set(MemoryObserver* observer) { observer_.store(observer, std::memory_order_release); }
  MemoryObserver* get() const { return observer_.load(std::memory_order_relaxed); }

  // Delivers in the middle of a climb, whose steps must tolerate nested climbs of this thread. The
  // outer climb may be iterating over heaps, private pools and scratch, so nested climbs remove no
  // heap and take nothing from pools of graphs or scratch.
  void deliver_within_climb() {
    ++within_climb_;
    deliver();
    --within_climb_;
  }
  bool is_within_climb() const { return within_climb_ != 0; }

 private:
  void deliver() noexcept {
    MemoryObserver* observer = get();
    if (observer != nullptr && observer->has_undelivered()) {
      const Driver::SessionBreak pause;
      observer->deliver();
    }
  }

  std::atomic<MemoryObserver*> observer_{nullptr};
  int within_climb_ = 0;
};

}  // namespace ferro
