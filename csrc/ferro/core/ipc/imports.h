// Memory of other processes that is mapped on one device.
//
// Thread-safe. Invariant: every open range is mapped wholly and accessible to the device and all
// its peers. A range is closed after all work of the device. While a capture forbids that wait, it
// stays mapped, and a later call closes it.
#pragma once

#include "ferro/base/mutex.h"
#include "ferro/driver/driver.h"

#include <cstddef>
#include <functional>
#include <map>
#include <utility>
#include <vector>

namespace ferro {

// Handles of other processes, in the order in which they are mapped. Only the import needs the
// descriptor. The destructor releases the handles; mappings keep the memory. Not thread-safe.
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
  // `wait_for_device`: the host waits for all work of the device; false: a capture forbids that.
  Imports(Driver& driver, std::function<bool()> wait_for_device)
      : driver_(driver), wait_for_device_(std::move(wait_for_device)) {}
  // Only tests destroy one, without open ranges.
  ~Imports() { collect(); }
  Imports(const Imports&) = delete;
  Imports& operator=(const Imports&) = delete;

  // Maps the handles one after the other and returns their first address; kNull if device memory or
  // addresses are exhausted. DriverError: nothing changed.
  DevicePtr open(const ForeignHandles& handles) FERRO_EXCLUDES(mutex_);
  void close(DevicePtr base) noexcept FERRO_EXCLUDES(mutex_);
  // Closes ranges whose close had to wait for the end of captures.
  void collect() noexcept FERRO_EXCLUDES(mutex_);
  // Grants a peer access to all open ranges.
  void grant(DeviceId to) FERRO_EXCLUDES(mutex_);
  std::size_t count() FERRO_EXCLUDES(mutex_);

 private:
  Status map_all(DevicePtr base, const ForeignHandles& handles, std::size_t* mapped);
  void close_waiting() noexcept FERRO_REQUIRES(mutex_);

  Driver& driver_;
  const std::function<bool()> wait_for_device_;
  Mutex mutex_;
  // The bytes of each handle, by the range's first address.
  std::map<DevicePtr, std::vector<std::size_t>> open_ FERRO_GUARDED_BY(mutex_);
  std::vector<DevicePtr> waiting_ FERRO_GUARDED_BY(mutex_);  // ranges of open_ to close
};

}  // namespace ferro
