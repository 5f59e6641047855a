// Reports what happens to the memory of a device, as it happens, to histories, trace trackers and
// tests.
#pragma once

#include "ferro/core/types/pool_id.h"
#include "ferro/driver/types.h"

#include <cstddef>
#include <cstdint>
#include <memory>

namespace ferro {

// The program's state at a call, such as its stack. Opaque to the core, which keeps it with live
// blocks and mapped ranges; null when no observer collects it.
using CallContext = std::shared_ptr<void>;

// The observer's number for the program's name of the memory. Opaque to the core, which keeps it
// with live blocks; 0: none.
using BlockTag = std::uint16_t;

enum class MemoryEvent : std::uint8_t {
  kAllocate,
  kFreeRequested,
  kFreeCompleted,  // the memory may be handed out again
  kMapped,         // pages were mapped to a range of addresses
  kUnmapped,
};

// Facts about pages that were mapped to a range or unmapped from it.
struct RangeFacts {
  // Static text. For mapped pages, the ladder step that obtained them. For unmapped pages, their
  // fate: moved, transferred or released. "put_back" for pages that a failure put back in their
  // place.
  const char* reason = nullptr;
  std::size_t pages_moved = 0;    // mapped pages that came from elsewhere in the same heap
  std::uint64_t nanoseconds = 0;  // of the host, to obtain and map them
};

struct EventFacts {
  MemoryEvent what{};
  DevicePtr ptr{};
  std::size_t size = 0;  // bytes; of blocks, those that the program requested
  StreamId stream{};
  PoolId pool{};
  const CallContext& context;  // of the call, or else of the block's allocation
  RangeFacts range = {};
  std::size_t block_bytes = 0;  // the size of a block as handed out; else 0
  // A block's tag, else null. An observer that sets it at kAllocate clears it at kFreeRequested, so
  // it must observe until the block is freed. A block restored by a checkpoint has its tag already.
  BlockTag* tag = nullptr;
};

class MemoryObserver {
 public:
  // Called under the heap's lock, after memory arrives and before it leaves. Must not call the
  // allocator, and must not throw, because the memory has changed hands already.
  virtual void on_event(const EventFacts& event) noexcept = 0;

  // For an observer that runs code of the program, which may allocate and free. It queues the
  // events of each thread, and `deliver` runs that code for the events of the calling thread.
  // Climbs call it (observer_slot.h); the core's caller delivers the events of hits and frees.
  virtual bool has_undelivered() const noexcept { return false; }
  virtual void deliver() noexcept {}

 protected:
  ~MemoryObserver() = default;
};

}  // namespace ferro
