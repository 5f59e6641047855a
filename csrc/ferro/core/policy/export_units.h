// Policy: as how many handles a block is shared with another process. Pure.
//
// Each handle costs the importer a call and both sides a descriptor, of which a process may have a
// thousand; each handle that another process has opened must stay as it is. So a block that lies on
// many handles, or on such as differ, is joined behind one first, unless its handles must stay: all
// were exported before, or some are pinned.
#pragma once

#include "ferro/base/bytes.h"

#include <cstddef>

namespace ferro {

// One call of the importer and one descriptor for each.
inline constexpr std::size_t kMaxExportUnits = 16;
// What lies on more pages is joined behind one handle also where it lies on a few large ones,
// because each costs the importer as much as a whole block.
inline constexpr std::size_t kMaxExportPages = 16;

struct ExportView {
  std::size_t units = 0;      // handles behind the block
  std::size_t own_pages = 0;  // of the handles on which nothing else is in use
  bool same_size = true;      // PyTorch's own allocator opens units of one size alone
  bool all_exported = false;  // who has opened them would not see what is written to others
  bool some_pinned = false;   // other libraries know them
};

enum class Join { kNo, kShould, kMust };

constexpr Join plan_export(const ExportView& view) {
  if (view.all_exported || view.some_pinned) {
    return Join::kNo;
  }
  if (view.units > kMaxExportUnits) {
    return Join::kMust;
  }
  return !view.same_size || view.own_pages > kMaxExportPages ? Join::kShould : Join::kNo;
}

// Where there is no room to join all at once: so many at a time, and few enough handles remain.
constexpr std::size_t units_of_a_part(std::size_t own_units) {
  return ceil_div(own_units, kMaxExportUnits - 2);
}

}  // namespace ferro
