// One value in device memory, at an address that never changes: kernels of a graph read it, and a
// program writes another before the next launch.
#pragma once

#include "ferro/driver/driver.h"

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace ferro {

// The memory belongs to the caller and outlives what was written. Thread-safe.
class DeviceScalar {
 public:
  // `bytes` is 1, 2, 4 or 8, and `at` a multiple of it.
  DeviceScalar(Driver& driver, DevicePtr at, std::size_t bytes)
      : driver_(driver), at_(at), bytes_(bytes) {}

  DevicePtr at() const { return at_; }
  std::size_t bytes() const { return bytes_; }

  // Behind all work of the stream so far and before its later work. The host neither waits nor
  // keeps anything, however far the device is behind. In a capture it becomes part of the graph,
  // with this value. Throws DriverError.
  void update(std::uint64_t bits, StreamId stream) { driver_.write(at_, bits, bytes_, stream); }

  // `T` is as large as the value.
  template <typename T>
  void update(T value, StreamId stream) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(std::uint64_t));
    std::uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof(T));
    update(bits, stream);
  }

 private:
  Driver& driver_;
  const DevicePtr at_;
  const std::size_t bytes_;
};

}  // namespace ferro
