// Memory of other processes that is mapped on one device.
//
// Thread-safe. Invariant: every open range is mapped wholly, and accessible for the device and all
// its peers. A range is closed behind all work of the device; while captures run, which forbid to
// wait, it stays mapped and is closed by a later call.
#pragma once

#include "ferro/base/mutex.h"
#include "ferro/driver/driver.h"

#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <utility>
#include <vector>

namespace ferro {

// One handle of another process.
struct ForeignUnit {
  ForeignKind kind = ForeignKind::kDescriptor;
  const void* shared = nullptr;  // see Driver::import_page
  std::size_t bytes = 0;
};

class Imports {
 public:
  // `wait_for_device`: the host waits for all work that the device was given; false: a capture forbids
  // that.
  Imports(Driver& driver, std::function<bool()> wait_for_device)
      : driver_(driver), wait_for_device_(std::move(wait_for_device)) {}
  // Only tests destroy one, with nothing open.
  ~Imports() { collect(); }
  Imports(const Imports&) = delete;
  Imports& operator=(const Imports&) = delete;

  // Maps the units one after the other at the address that is the result; kNull when device
  // memory or addresses are exhausted. DriverError: nothing changed.
  DevicePtr open(std::span<const ForeignUnit> units) FERRO_EXCLUDES(mutex_);
  void close(DevicePtr base) noexcept FERRO_EXCLUDES(mutex_);
  // Closes what had to wait for the end of captures.
  void collect() noexcept FERRO_EXCLUDES(mutex_);
  // Access for a peer to all that is open.
  void grant(DeviceId to) FERRO_EXCLUDES(mutex_);
  std::size_t count() FERRO_EXCLUDES(mutex_);

 private:
  Status map_all(DevicePtr base, std::span<const ForeignUnit> units, std::size_t* mapped);
  void close_waiting() noexcept FERRO_REQUIRES(mutex_);

  Driver& driver_;
  const std::function<bool()> wait_for_device_;
  Mutex mutex_;
  std::map<DevicePtr, std::size_t> open_ FERRO_GUARDED_BY(mutex_);  // bytes by address
  std::vector<DevicePtr> waiting_ FERRO_GUARDED_BY(mutex_);         // a part of open_
};

}  // namespace ferro
