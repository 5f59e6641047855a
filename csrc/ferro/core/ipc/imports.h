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
#include <utility>
#include <vector>

namespace ferro {

// Handles of other processes, in the order in which they are mapped side by side. A handle needs its
// descriptor only while it is imported. Releases them in the end: mappings keep the memory. Not
// thread-safe.
class ForeignHandles {
 public:
  explicit ForeignHandles(Driver& driver) : driver_(driver) {}
  ~ForeignHandles();
  ForeignHandles(const ForeignHandles&) = delete;
  ForeignHandles& operator=(const ForeignHandles&) = delete;

  // `shared`: see Driver::import_page. DriverError: nothing changed.
  void import(ForeignKind kind, const void* shared, std::size_t bytes);

 private:
  friend class Imports;
  struct Handle {
    PageHandle page = kNoPage;
    std::size_t bytes = 0;
  };

  Driver& driver_;
  std::vector<Handle> handles_;
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

  // Maps the handles one after the other at the address that is the result; kNull when device
  // memory or addresses are exhausted. DriverError: nothing changed.
  DevicePtr open(const ForeignHandles& handles) FERRO_EXCLUDES(mutex_);
  void close(DevicePtr base) noexcept FERRO_EXCLUDES(mutex_);
  // Closes what had to wait for the end of captures.
  void collect() noexcept FERRO_EXCLUDES(mutex_);
  // Access for a peer to all that is open.
  void grant(DeviceId to) FERRO_EXCLUDES(mutex_);
  std::size_t count() FERRO_EXCLUDES(mutex_);

 private:
  Status map_all(DevicePtr base, const ForeignHandles& handles, std::size_t* mapped);
  void close_waiting() noexcept FERRO_REQUIRES(mutex_);

  Driver& driver_;
  const std::function<bool()> wait_for_device_;
  Mutex mutex_;
  std::map<DevicePtr, std::size_t> open_ FERRO_GUARDED_BY(mutex_);  // bytes by address
  std::vector<DevicePtr> waiting_ FERRO_GUARDED_BY(mutex_);         // a part of open_
};

}  // namespace ferro
