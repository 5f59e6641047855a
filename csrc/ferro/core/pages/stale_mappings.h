// Mappings left where handles were. A mapping is removed when the epoch in which its memory was
// freed has passed (streams/device_timeline.h), because work before that may still use it.
//
// A heap leaves a mapping when whole free handles leave it or move within it; the handles are then
// in the store or at other addresses. Unmapping is the driver's most expensive call after mapping
// (16 us per handle), so climbs remove mappings whose epochs have passed when they begin.
//
// When a mapping is removed, `removed` shows that its handles may go to the driver. Its addresses
// become a gap: the same call notifies the owner. Until then the heap is not empty.
//
// Thread-safe; `remove_passed` requires the climb lock, and calls owners without this class's lock.
//
// Invariants: mappings are removed in the order of their epochs, so a handle that left several
// addresses has its earlier mappings removed first; count() == mappings still mapped + those whose
// owners are not notified yet.
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
  // The mapping of `block`, which is in transit, is removed.
  virtual void on_mapping_removed(Block* block) = 0;

 protected:
  ~MappingOwner() = default;
};

struct StaleMapping {
  MappingOwner* owner = nullptr;
  Block* block = nullptr;  // covers the mapping
  DevicePtr begin{};
  std::size_t bytes = 0;
  Epoch freed = kUnused;  // the epoch in which the memory was freed
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
  // Removes mappings whose epochs have passed, notifies their owners and returns the number of
  // notifications. Delivers the events about the mappings first. Queries the driver, never waits.
  // Mappings that the driver refuses to remove stay for a later call. Throws DriverError; a later
  // call then notifies the owners.
  std::size_t remove_passed() FERRO_EXCLUDES(mutex_);

  std::size_t count() const { return count_.load(std::memory_order_acquire); }
  Counts counts() const;

 private:
  // Removes the first mapping. False if its epoch has not passed or the driver refuses.
  bool remove_first(Epoch passed) FERRO_EXCLUDES(mutex_);
  std::size_t notify_owners() FERRO_EXCLUDES(mutex_);

  Driver& driver_;
  DeviceTimeline& timeline_;
  ObserverSlot& observer_;
  Mutex mutex_;
  std::multimap<Epoch, StaleMappingRef> mapped_ FERRO_GUARDED_BY(mutex_);  // by `freed`
  std::vector<StaleMappingRef> removed_ FERRO_GUARDED_BY(mutex_);  // owners are not notified yet
  std::atomic<std::size_t> count_{0};
  std::atomic<std::uint64_t> removals_{0};
  std::atomic<std::uint64_t> refusals_{0};
};

}  // namespace ferro
