// Mappings that are left where handles were, until the work before their fence is over: then they
// are removed, in the order of the fences of each stream.
//
// A heap leaves a mapping in the one way that a page can leave a heap; the handles are elsewhere
// meanwhile, in the store or behind other addresses. Removing is the driver's most expensive call
// after mapping (16 us a handle), and nobody waits for it: whoever calls `remove_passed` does it,
// or a thread of the allocator's own (UnmapThread) one by one with `unmap_next`.
//
// Two things follow when a mapping is gone. Its handles may go to the driver: that is known at
// once, through `removed`. Its addresses are a gap: the owner is told by the next `notify_owners`
// or `remove_passed`, so that whoever unmaps beside requests never touches a heap, its lock or its
// life. A heap that was not told of all its mappings is not empty.
//
// Thread-safe; `notify_owners` and `remove_passed` are for one thread at a time, under the climb
// lock. The owner is called without a lock of this class.
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
  // Bytes of the parts in which a remover may unmap it, the first one last; empty: it is one.
  std::vector<std::size_t> parts;
  FenceRef fence;
  std::atomic<bool> removed{false};
};
using StaleMappingRef = std::shared_ptr<StaleMapping>;

class StaleMappings {
 public:
  // Who removes mappings beside the requests.
  class Remover {
   public:
    // There is one more. With no lock of StaleMappings held.
    virtual void on_added() noexcept = 0;

   protected:
    ~Remover() = default;
  };
  // The driver makes calls wait for one another, and unmapping takes as long as there are handles.
  static constexpr std::size_t kHandlesAtOnce = 16;

  enum class [[nodiscard]] Unmapped{kSome, kNonePassed, kNoneLeft, kRefused};
  // Since construction.
  struct Counts {
    std::uint64_t by_requests = 0;  // removed by `remove_passed`
    std::uint64_t by_remover = 0;   // by `unmap_next`
    std::uint64_t refused = 0;      // by the driver, to either, or not answered
  };

  explicit StaleMappings(Driver& driver) : driver_(driver) {}

  void add(StaleMappingRef mapping) FERRO_EXCLUDES(mutex_);
  // Removes what has passed and tells the owners. Asks the driver, never waits but for an
  // `unmap_next` that has begun. What the driver refuses stays for a later call. For how many
  // mappings the owners were told. Throws DriverError; then they are told later.
  std::size_t remove_passed() FERRO_EXCLUDES(mutex_, removal_mutex_);
  // Tells the owners of mappings that `unmap_next` removed; how many. Calls no driver but to give
  // addresses back.
  std::size_t notify_owners() FERRO_EXCLUDES(mutex_);
  // Removes one mapping that has passed, or a part of one, with one call, from any thread.
  // kRefused: it stays for a later call. Throws DriverError when an event cannot be asked; nothing
  // changed.
  Unmapped unmap_next() FERRO_EXCLUDES(mutex_, removal_mutex_);

  std::size_t count() const { return count_.load(std::memory_order_acquire); }
  Counts counts() const;
  // The driver did not say whether a fence has passed.
  void count_unanswered() { refused_.fetch_add(1, std::memory_order_relaxed); }

  // Null: nobody. Neither waits nor locks, as it is called in a child of fork().
  void set_remover(Remover* remover) { remover_.store(remover, std::memory_order_release); }
  bool has_remover() const { return remover_.load(std::memory_order_relaxed) != nullptr; }
  // Nothing is being removed while this is held: for fork().
  Mutex& removal_mutex() FERRO_RETURN_CAPABILITY(removal_mutex_) { return removal_mutex_; }

 private:
  // One stream's fences pass in order, so the first that has not passed holds back no other stream.
  struct Queue {
    std::optional<StreamId> stream;
    std::deque<StaleMappingRef> mappings;
  };
  enum class Extent { kWhole, kPart };
  Unmapped unmap_from(std::size_t& queue, Extent extent, std::atomic<std::uint64_t>& counter)
      FERRO_REQUIRES(removal_mutex_) FERRO_EXCLUDES(mutex_);
  Queue& queue_of(std::optional<StreamId> stream) FERRO_REQUIRES(mutex_);

  Driver& driver_;
  Mutex removal_mutex_;  // who holds it alone takes from the queues
  Mutex mutex_;
  std::vector<Queue> queues_ FERRO_GUARDED_BY(mutex_);  // none is empty
  std::vector<StaleMappingRef> untold_ FERRO_GUARDED_BY(mutex_);
  std::atomic<Remover*> remover_{nullptr};
  std::atomic<std::size_t> count_{0};
  std::atomic<std::uint64_t> by_requests_{0};
  std::atomic<std::uint64_t> by_remover_{0};
  std::atomic<std::uint64_t> refused_{0};
};

}  // namespace ferro
