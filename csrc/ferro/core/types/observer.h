// What happens to the memory of a device, told as it happens: for histories, trace trackers and
// tests.
#pragma once

#include "ferro/core/types/pool_id.h"
#include "ferro/driver/types.h"

#include <cstddef>
#include <cstdint>
#include <memory>

namespace ferro {

// Where the program was when it asked for something. Opaque to the core, which keeps it with live
// blocks and mapped ranges; null when nobody collects such things.
using CallContext = std::shared_ptr<void>;

// What the program calls the memory that it asks for. A number of the observer's, opaque to the core,
// which keeps it with live blocks; 0: none.
using BlockTag = std::uint16_t;

enum class MemoryEvent : std::uint8_t {
  kAllocate,
  kFreeRequested,
  kFreeCompleted,  // the memory may be handed out again
  kMapped,         // pages behind a range of addresses
  kUnmapped,
};

// Of pages that came behind a range or left it.
struct RangeFacts {
  // Static text. Of mapped pages the ladder's step that got them; of unmapped
  // ones what became of them: moved, transferred or released. What a failure put back where it was is
  // "put_back".
  const char* reason = nullptr;
  std::size_t pages_moved = 0;    // of those mapped, from other places of the same heap
  std::uint64_t nanoseconds = 0;  // that it took the host to get and map them
};

struct EventFacts {
  MemoryEvent what{};
  DevicePtr ptr{};
  std::size_t size = 0;  // bytes; of blocks, those that the program asked for
  StreamId stream{};
  PoolId pool{};
  const CallContext& context;  // of the call, or else of the block's allocation
  RangeFacts range = {};
  std::size_t block_bytes = 0;  // of blocks, as they were handed out; else 0
  // Of blocks, else null. An observer that puts a number there with kAllocate takes it away with
  // kFreeRequested, so it observes until the block is freed. Of a block that a checkpoint brings back
  // the number is there already.
  BlockTag* tag = nullptr;
};

class MemoryObserver {
 public:
  // Called under the lock of the heap concerned, after memory came and before it goes. Must not
  // call the allocator, and must not throw: the memory has changed hands already.
  virtual void on_event(const EventFacts& event) noexcept = 0;

  // For an observer that runs code of the program, which may allocate and free. It queues the events
  // of each thread, and `deliver` runs that code for those of the calling thread. Climbs call it
  // (observer_slot.h); the caller of the core delivers what hits and frees left in the queue.
  virtual bool has_undelivered() const noexcept { return false; }
  virtual void deliver() noexcept {}

 protected:
  ~MemoryObserver() = default;
};

}  // namespace ferro
