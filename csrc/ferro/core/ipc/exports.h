// What other processes may map: the handles behind shared blocks, each under an id.
//
// A unit is one handle: a single page, or a run of pages behind one handle. Its pages stay behind
// their addresses until no live byte is on any of them. Then the whole unit goes back to the driver.
//
// Another process maps a unit by a file descriptor, of which this one may open 1,024 by default. So
// the table keeps the descriptors of only as many units as half of the limit (`ulimit -n`) allows, in
// the order in which they are shared. PyTorch's own allocator opens only these, because it knows them
// by their numbers. The descriptor of every other unit is made when a process asks for it.
#pragma once

#include "ferro/base/mutex.h"
#include "ferro/driver/driver.h"
#include "ferro/driver/types.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace ferro {

struct ExportedUnit {
  PageHandle handle = kNoPage;
  std::size_t pages = 0;
  std::uint64_t id = 0;  // in the ExportTable; 0: the unit is pinned, and was not shared
  int descriptor = -1;   // -1: none is kept
  int pins = 0;          // how often it was pinned; then its handle stays though nothing lies on it
};

// What one block is shared as: units side by side from `begin` on, in order of address.
struct SharedUnit {
  std::uint64_t id = 0;
  std::size_t bytes = 0;
  int descriptor = -1;  // valid while the unit is exported; -1: none is kept
};
struct SharedRange {
  DevicePtr begin{};
  std::vector<SharedUnit> units;
};

enum class [[nodiscard]] ExportResult{
    kOk,
    kNotLive,        // no live block is there
    kNotExportable,  // the device's pages have no descriptors
    kBorrowed,       // a capture lends the block its handles, and may take them back at its end
};

enum class [[nodiscard]] DuplicateResult{
    kOk,
    kRetired,        // or never known
    kNoDescriptors,  // this process may open no more of them
    kRefused,        // the driver makes none
};

// The units of one device, by ids that no unit of the process ever had before. Thread-safe; its lock
// is held while the driver makes one descriptor.
class ExportTable {
 public:
  struct Entry {
    std::uint64_t id = 0;
    int descriptor = -1;  // -1: none is kept
  };

  explicit ExportTable(Driver& driver) : driver_(driver) {}
  // Closes what is left.
  ~ExportTable();
  ExportTable(const ExportTable&) = delete;
  ExportTable& operator=(const ExportTable&) = delete;

  // One entry for each handle, in that order. Descriptors are kept for all of them or for none.
  // DriverError: nothing changed.
  std::vector<Entry> add(std::span<const PageHandle> handles) FERRO_EXCLUDES(mutex_);
  // Comes before the handle is released: no descriptor of it is made afterwards. Closes the one that
  // is kept. 0 does nothing.
  void retire(std::uint64_t id) FERRO_EXCLUDES(mutex_);
  // With kOk, `*copy` is a descriptor of the caller's own.
  DuplicateResult duplicate(std::uint64_t id, int* copy) FERRO_EXCLUDES(mutex_);
  bool contains(std::uint64_t id) FERRO_EXCLUDES(mutex_);
  std::size_t count() FERRO_EXCLUDES(mutex_);

 private:
  struct Unit {
    PageHandle handle = kNoPage;
    int descriptor = -1;
  };

  Driver& driver_;
  Mutex mutex_;
  std::unordered_map<std::uint64_t, Unit> units_ FERRO_GUARDED_BY(mutex_);
};

}  // namespace ferro
