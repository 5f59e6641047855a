// Mappings that are left where handles were. They are removed when the epoch has passed in which the
// memory was freed (streams/device_timeline.h), because work before that may still use them.
//
// A heap leaves a mapping when whole free handles leave it or move within it; the handles are
// elsewhere meanwhile, in the store or behind other addresses. Removing is the driver's most
// expensive call after mapping (16 us a handle), so climbs remove what has passed when they begin.
//
// When a mapping is gone its handles may go to the driver, which `removed` tells, and its addresses
// are a gap: the owner is notified by the same call. A heap is not empty before.
//
// Thread-safe; `remove_passed` is for one thread at a time, under the climb lock. Owners are called
// without a lock of this class.
//
// Invariants: mappings are removed in the order of their epochs, so a handle that left several
// addresses has its earlier mappings removed first; count() == mappings still mapped + those whose
// owners were not notified yet.
#pragma once

#include "ferro/base/mutex.h"
#include "ferro/core/streams/device_timeline.h"
#include "ferro/core/types/block.h"
#include "ferro/core/types/observer_slot.h"
#include "ferro/driver/driver.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

namespace ferro {

// The heap that left a mapping.
class MappingOwner {
 public:
  // `block`, in transit, has no mapping any more.
  virtual void on_mapping_removed(Block* block) = 0;

 protected:
  ~MappingOwner() = default;
};

struct StaleMapping {
  MappingOwner* owner = nullptr;
  Block* block = nullptr;  // that covers the mapping
  DevicePtr begin{};
  std::size_t bytes = 0;
  Epoch freed = kUnused;  // in which the memory was freed
  std::atomic<bool> removed{false};
};
using StaleMappingRef = std::shared_ptr<StaleMapping>;

class StaleMappings {
 public:
  // Since construction.
  struct Counts {
    std::uint64_t removed = 0;
    std::uint64_t refused = 0;  // by the driver
  };

  StaleMappings(Driver& driver, DeviceTimeline& timeline, ObserverSlot& observer)
      : driver_(driver), timeline_(timeline), observer_(observer) {}

  void add(StaleMappingRef mapping) FERRO_EXCLUDES(mutex_);
  // Removes mappings whose epochs have passed, and notifies their owners; returns for how many. The
  // observer hears of each before it is removed. Asks the driver, never waits. What the driver
  // refuses stays for a later call. Throws DriverError; then owners are notified by a later call.
  std::size_t remove_passed() FERRO_EXCLUDES(mutex_);

  std::size_t count() const { return count_.load(std::memory_order_acquire); }
  Counts counts() const;

 private:
  // Removes the first mapping. False: its epoch has not passed, or the driver refused.
  bool remove_first(Epoch passed) FERRO_EXCLUDES(mutex_);
  std::size_t notify_owners() FERRO_EXCLUDES(mutex_);

  Driver& driver_;
  DeviceTimeline& timeline_;
  ObserverSlot& observer_;
  Mutex mutex_;
  std::multimap<Epoch, StaleMappingRef> mapped_ FERRO_GUARDED_BY(mutex_);  // by `freed`
  std::vector<StaleMappingRef> removed_ FERRO_GUARDED_BY(mutex_);  // owners were not notified yet
  std::atomic<std::size_t> count_{0};
  std::atomic<std::uint64_t> removals_{0};
  std::atomic<std::uint64_t> refusals_{0};
};

}  // namespace ferro
