// Live bytes that are copied to a handle which comes behind their addresses next (arena_exports.cpp).
#include "ferro/core/heap/heap.h"
#include "ferro/driver/error.h"

#include <optional>

namespace ferro {

// Copies a mapped range into a handle that is mapped nowhere before and after. The host waits for the
// copy.
Status Heap::copy_into(const HandleRange& fresh, const PageRun& from) {
  Driver& driver = context_.driver;
  const std::size_t bytes = fresh.pages * page_bytes_;
  const std::optional<DevicePtr> base = driver.reserve(bytes, 0);
  if (!base) {
    return Status::kOutOfMemory;
  }
  bool mapped = false;
  bool copying = false;
  const auto close = [&] {
    if (mapped && !driver.unmap(*base, bytes)) {
      const HeapLock lock(mutex_);
      leftovers_.push_back({*base, bytes});
    } else {
      driver.unreserve(*base, bytes);
    }
  };
  // What was begun writes to pages that others may have next. A driver that refuses a wait twice has
  // lost its context, and all memory with it.
  const auto await_copy = [&] {
    try {
      driver.wait_for_device();
    } catch (const DriverError&) {
    }
  };
  try {
    mapped = map(*base, {&fresh, 1}) == Status::kOk;
    if (mapped) {
      copying = true;
      driver.copy(*base, from.begin, from.bytes);
      // What other streams were given since need not be over.
      const EventId copied = context_.events.record(kLegacyStream);
      if (copied != kNoEvent) {
        driver.wait(copied);
        context_.events.put(copied);
      } else {
        driver.wait_for_device();
      }
    }
  } catch (const DriverError&) {
    if (copying) {
      await_copy();
    }
    close();
    throw;
  }
  close();
  return mapped ? Status::kOk : Status::kOutOfMemory;
}

}  // namespace ferro
