// Where segments come from: the driver, or the allocator that a user gave to a pool.
#pragma once

#include "ferro/driver/driver.h"
#include "ferro/driver/types.h"

#include <cstddef>

namespace ferro {

// Called without a lock of a heap, one thread of a device at a time.
class SegmentSource {
 public:
  virtual ~SegmentSource() = default;
  // kNull: out of memory. Whatever it throws passes through the allocation, which changed nothing.
  virtual DevicePtr allocate(std::size_t bytes) = 0;
  // False: refused, and the memory is still there.
  virtual bool release(DevicePtr base) = 0;
};

class DriverSegments final : public SegmentSource {
 public:
  explicit DriverSegments(Driver& driver) : driver_(driver) {}
  DevicePtr allocate(std::size_t bytes) override { return driver_.allocate(bytes); }
  bool release(DevicePtr base) override { return driver_.free(base); }

 private:
  Driver& driver_;
};

}  // namespace ferro
