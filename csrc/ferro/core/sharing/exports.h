// What other processes may map: handles that were exported, and their file descriptors.
//
// A unit is one handle: a single page, or a run of pages behind one handle. Its pages stay
// behind their addresses until no live byte is on any of them, and then the whole unit goes back to
// the driver. The descriptor is made once and kept as long as the unit is.
#pragma once

#include "ferro/base/mutex.h"
#include "ferro/core/policy/export_units.h"
#include "ferro/driver/types.h"

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace ferro {

struct ExportedUnit {
  PageHandle handle = kNoPage;
  std::size_t pages = 0;
  std::uint64_t id = 0;  // in the ExportTable; 0: there is no descriptor yet
  int pins = 0;          // how often it was pinned; then its handle stays though nothing lies on it
};

// What one block is shared as: units side by side from `begin` on, in order of address.
struct SharedUnit {
  std::uint64_t id = 0;
  std::size_t bytes = 0;
  int descriptor = -1;  // valid while the unit is exported
};
struct SharedRange {
  DevicePtr begin{};
  std::vector<SharedUnit> units;
};

enum class [[nodiscard]] ExportResult{
    kOk,
    kNotLive,        // no live block is there
    kNotExportable,  // the device's pages have no descriptors
    // The block lies on more handles than `ExportRules::max_units`, and they can't be exchanged for
    // one:
    kCapturing,    // a capture forbids to wait for the device
    kOutOfMemory,  // there is no room for a copy of the block
    kBusy,         // the device does not come to rest
    kKept,         // other processes or libraries know them
};

// What may be done to share a block.
struct ExportRules {
  // Handles, each of which costs a descriptor here and there.
  std::size_t max_units = kMaxExportUnits;
  // May handles be exchanged for one? kOk, or what the result is where that would be needed.
  ExportResult exchange = ExportResult::kOk;
};

enum class [[nodiscard]] DuplicateResult{
    kOk,
    kRetired,        // or never known
    kNoDescriptors,  // this process may open no more of them
};

// The descriptors of one device's units by ids that no unit of the process ever had before.
// Thread-safe.
class ExportTable {
 public:
  ExportTable() = default;
  // Closes what is left.
  ~ExportTable();
  ExportTable(const ExportTable&) = delete;
  ExportTable& operator=(const ExportTable&) = delete;

  // Takes the descriptor over.
  std::uint64_t add(int descriptor) FERRO_EXCLUDES(mutex_);
  // Closes the descriptor; 0 does nothing.
  void retire(std::uint64_t id) FERRO_EXCLUDES(mutex_);
  // -1 for an unknown or retired id.
  int descriptor(std::uint64_t id) FERRO_EXCLUDES(mutex_);
  // With kOk, `*copy` is a descriptor of the caller's own.
  DuplicateResult duplicate(std::uint64_t id, int* copy) FERRO_EXCLUDES(mutex_);
  std::size_t count() FERRO_EXCLUDES(mutex_);

 private:
  Mutex mutex_;
  std::unordered_map<std::uint64_t, int> descriptors_ FERRO_GUARDED_BY(mutex_);
};

}  // namespace ferro
