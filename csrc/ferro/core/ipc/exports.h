// The exported units of a device: the handles behind blocks that other processes may map, by id.
//
// A unit is one handle of one or more pages. Its pages keep their addresses while any live byte
// lies on them. Afterwards the whole unit is released to the driver.
//
// Another process maps a unit by a file descriptor, of which a process may open 1,024 by default.
// So the table keeps descriptors only for the units shared first, up to half of the limit (`ulimit
// -n`). PyTorch's own allocator can open only these, because it uses their numbers. The descriptor
// of every other unit is made on request.
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
  std::uint64_t id = 0;  // in the ExportTable; 0: pinned but not shared
  int descriptor = -1;   // -1: none is kept
  int pins = 0;          // number of pins; a pinned handle stays even without live bytes
};

// A shared block: adjacent units from `begin` on, in order of address.
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
    kAsleep,         // its handles are asleep
    kBorrowed,       // its handles are borrowed for a capture, whose end may replace them
};

enum class [[nodiscard]] DuplicateResult{
    kOk,
    kRetired,        // or unknown
    kNoDescriptors,  // this process may open no more descriptors
    kRefused,        // by the driver
};

// The units of one device, by ids that are never reused within the process. Thread-safe; its lock
// is held while the driver makes a descriptor.
class ExportTable {
 public:
  struct Entry {
    std::uint64_t id = 0;
    int descriptor = -1;  // -1: none is kept
  };

  explicit ExportTable(Driver& driver) : driver_(driver) {}
  // Closes the kept descriptors.
  ~ExportTable();
  ExportTable(const ExportTable&) = delete;
  ExportTable& operator=(const ExportTable&) = delete;

  // Adds the handles and returns their entries in that order. Keeps descriptors for all of them or
  // for none. DriverError: nothing changed.
  std::vector<Entry> add(std::span<const PageHandle> handles) FERRO_EXCLUDES(mutex_);
  // Called before the handle is released; no descriptor of it is made afterwards. Closes the kept
  // one. No-op for 0.
  void retire(std::uint64_t id) FERRO_EXCLUDES(mutex_);
  // With kOk the caller owns the descriptor `*copy`.
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
