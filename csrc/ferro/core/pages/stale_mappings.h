// Mappings that are left where handles were, until the work before their fence is over: then they
// are removed, in the order of the fences of each stream.
//
// A heap leaves a mapping in the one way that a page can leave a heap; the handles are elsewhere
// meanwhile, in the store or behind other addresses. Removing is the driver's most expensive call
// after mapping (16 us a handle), and nobody waits for it: whoever calls `remove_passed` does it.
//
// Two things follow when a mapping is gone. Its handles may go to the driver: that is known at
// once, through `removed`. Its addresses are a gap: `remove_passed` tells the owner. A heap that was
// not told of all its mappings is not empty.
//
// Thread-safe; `remove_passed` is for one thread at a time, under the climb lock. The owner is
// called without a lock of this class.
//
// Invariant: count() == mappings still mapped + those whose owners are to be told.
#pragma once

#include "ferro/base/mutex.h"
#include "ferro/core/streams/fence.h"
#include "ferro/core/types/block.h"
#include "ferro/driver/driver.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
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
  // What is still mapped.
  DevicePtr begin{};
  std::size_t bytes = 0;
  FenceRef fence;
  std::atomic<bool> removed{false};
};
using StaleMappingRef = std::shared_ptr<StaleMapping>;

class StaleMappings {
 public:
  // Since construction.
  struct Counts {
    std::uint64_t by_requests = 0;  // removed by `remove_passed`
    std::uint64_t refused = 0;      // by the driver, or not answered
  };

  explicit StaleMappings(Driver& driver) : driver_(driver) {}

  void add(StaleMappingRef mapping) FERRO_EXCLUDES(mutex_);
  // Removes what has passed and tells the owners. Asks the driver, never waits. What the driver
  // refuses stays for a later call. For how many mappings the owners were told. Throws DriverError;
  // then they are told later.
  std::size_t remove_passed() FERRO_EXCLUDES(mutex_);

  std::size_t count() const { return count_.load(std::memory_order_acquire); }
  Counts counts() const;
  // The driver did not say whether a fence has passed.
  void count_unanswered() { refused_.fetch_add(1, std::memory_order_relaxed); }

 private:
  // One stream's fences pass in order, so the first that has not passed holds back no other stream.
  struct Queue {
    std::optional<StreamId> stream;
    std::deque<StaleMappingRef> mappings;
  };
  // Removes one mapping that has passed. False: none has, or the driver refused.
  bool unmap_from(std::size_t& queue) FERRO_EXCLUDES(mutex_);
  // Tells the owners of mappings that are gone; how many.
  std::size_t notify_owners() FERRO_EXCLUDES(mutex_);
  Queue& queue_of(std::optional<StreamId> stream) FERRO_REQUIRES(mutex_);

  Driver& driver_;
  Mutex mutex_;
  std::vector<Queue> queues_ FERRO_GUARDED_BY(mutex_);  // none is empty
  std::vector<StaleMappingRef> untold_ FERRO_GUARDED_BY(mutex_);
  std::atomic<std::size_t> count_{0};
  std::atomic<std::uint64_t> by_requests_{0};
  std::atomic<std::uint64_t> refused_{0};
};

}  // namespace ferro
