// Mappings that are left where handles were, until the work before their fence is over: then they
// are removed, in the order of the fences of each stream.
//
// A heap leaves a mapping in the one way that a page can leave a heap; the handles are elsewhere
// meanwhile, in the store or behind other addresses. Removing is the driver's most expensive call
// after mapping (16 us a handle), and nobody waits for it: a thread of the allocator's own does it,
// or whoever calls `remove_passed`.
//
// Thread-safe. The owner is called without a lock of this class but `removal_mutex_`, which is above
// the heaps' locks.
#pragma once

#include "ferro/base/mutex.h"
#include "ferro/core/streams/fence.h"
#include "ferro/core/types/block.h"
#include "ferro/driver/driver.h"

#include <atomic>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace ferro {

// Who left a mapping.
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
  FenceRef fence;
  std::atomic<bool> removed{false};
};
using StaleMappingRef = std::shared_ptr<StaleMapping>;

class StaleMappings {
 public:
  explicit StaleMappings(Driver& driver) : driver_(driver) {}

  void add(StaleMappingRef mapping) FERRO_EXCLUDES(mutex_);
  // Removes what has passed, at most `at_most` mappings. Asks the driver, never waits. What the
  // driver refuses stays for a later call. How many were removed. Throws DriverError.
  std::size_t remove_passed(std::size_t at_most = ~std::size_t{0})
      FERRO_EXCLUDES(mutex_, removal_mutex_);
  // Mappings that are left.
  std::size_t count() const { return count_.load(std::memory_order_relaxed); }
  // Called after `add`, with no lock held: somebody may want to remove them. Null: nobody.
  void set_listener(std::function<void()> on_added) FERRO_EXCLUDES(mutex_);
  // Nothing is being removed while this is held: for fork.
  Mutex& removal_mutex() FERRO_RETURN_CAPABILITY(removal_mutex_) { return removal_mutex_; }

 private:
  // One stream's fences pass in order, so the first that has not passed holds back no other stream.
  struct Queue {
    std::optional<StreamId> stream;
    std::deque<StaleMappingRef> mappings;
  };
  StaleMappingRef take_passed(std::size_t& queue) FERRO_EXCLUDES(mutex_);
  void put_back(StaleMappingRef mapping) FERRO_EXCLUDES(mutex_);
  Queue& queue_of(std::optional<StreamId> stream) FERRO_REQUIRES(mutex_);

  Driver& driver_;
  Mutex removal_mutex_;
  Mutex mutex_;
  std::vector<Queue> queues_ FERRO_GUARDED_BY(mutex_);  // none is empty
  std::function<void()> on_added_ FERRO_GUARDED_BY(mutex_);
  std::atomic<std::size_t> count_{0};
};

}  // namespace ferro
