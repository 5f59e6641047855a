// The observer of a device, and the moments at which it may run code of the program.
//
// An observer queues events for code of the program, because events happen under the lock of a heap
// (MemoryObserver). Climbs deliver them without such a lock: when they end, and before memory that
// was told as going is unmapped. Both are under the climb lock. So no other thread unmaps what this
// thread has told and not delivered.
//
// `set` and `get` are thread-safe; all else is called under the climb lock.
#pragma once

#include "ferro/core/types/observer.h"

#include <atomic>

namespace ferro {

class ObserverSlot {
 public:
  // Delivers when the scope ends. Belongs behind the climb lock, before all else of the climb.
  class DeliveryAtEnd {
   public:
    explicit DeliveryAtEnd(ObserverSlot& slot) : slot_(slot) {}
    ~DeliveryAtEnd() { slot_.deliver(); }
    DeliveryAtEnd(const DeliveryAtEnd&) = delete;
    DeliveryAtEnd& operator=(const DeliveryAtEnd&) = delete;

   private:
    ObserverSlot& slot_;
  };

  // Null: none.
  void set(MemoryObserver* observer) { observer_.store(observer, std::memory_order_release); }
  MemoryObserver* get() const { return observer_.load(std::memory_order_relaxed); }

  // In the middle of a climb, whose steps must allow other climbs of this thread meanwhile. Those
  // leave heaps, private pools and scratch as they are, which the outer climb may be walking through.
  void deliver_within_climb() {
    ++within_climb_;
    deliver();
    --within_climb_;
  }
  bool is_within_climb() const { return within_climb_ != 0; }

 private:
  void deliver() noexcept;

  std::atomic<MemoryObserver*> observer_{nullptr};
  int within_climb_ = 0;
};

}  // namespace ferro
