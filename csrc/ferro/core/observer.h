// What happens to the memory of a device, told as it happens: for histories, trace trackers and
// tests.
#pragma once

#include "ferro/core/pool_id.h"
#include "ferro/driver/types.h"

#include <cstddef>
#include <cstdint>
#include <memory>

namespace ferro {

// Where the program was when it asked for something. Opaque to the core, which keeps it with live
// blocks and mapped ranges; null when nobody collects such things.
using CallContext = std::shared_ptr<void>;

enum class MemoryEvent : std::uint8_t {
  kAllocate,
  kFreeRequested,
  kFreeCompleted,   // the memory may be handed out again
  kSegmentCreated,  // memory with addresses of its own, from the driver or a pool's own source
  kSegmentReleased,
  kMapped,  // pages behind a range of addresses
  kUnmapped,
};

struct EventFacts {
  MemoryEvent what{};
  DevicePtr ptr{};
  std::size_t size = 0;  // bytes; of blocks, those that the program asked for
  StreamId stream{};
  PoolId pool{};
  const CallContext& context;  // of the call, or else of the block's allocation
};

class MemoryObserver {
 public:
  // Called under the lock of the heap concerned, after memory came and before it goes. Must not
  // call the allocator, and must not throw: the memory has changed hands already.
  virtual void on_event(const EventFacts& event) noexcept = 0;

 protected:
  ~MemoryObserver() = default;
};

}  // namespace ferro
