#include "ferro/core/types/observer_slot.h"

#include "ferro/driver/driver.h"

namespace ferro {

void ObserverSlot::deliver() noexcept {
  MemoryObserver* observer = get();
  if (observer != nullptr && observer->has_undelivered()) {
    const Driver::SessionBreak pause;
    observer->deliver();
  }
}

}  // namespace ferro
