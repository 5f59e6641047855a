// The handles of an arena that stay behind their addresses: those that other processes may map
// (ipc/exports.h), and those that the program pinned. Belongs to the heap's lock.
#pragma once

#include "ferro/base/bytes.h"
#include "ferro/core/ipc/exports.h"
#include "ferro/core/policy/whole_pages.h"
#include "ferro/driver/types.h"

#include <cstddef>
#include <iterator>
#include <map>

namespace ferro {

class ExportedUnits {
 public:
  using Units = std::map<DevicePtr, ExportedUnit>;  // by their first address

  explicit ExportedUnits(std::size_t page_bytes) : page_bytes_(page_bytes) {}

  bool empty() const { return units_.empty(); }
  const Units& all() const { return units_; }
  void put(DevicePtr begin, const ExportedUnit& unit) { units_[begin] = unit; }
  void erase(DevicePtr begin) { units_.erase(begin); }
  const ExportedUnit* find(DevicePtr begin) const {
    const auto unit = units_.find(begin);
    return unit == units_.end() ? nullptr : &unit->second;
  }
  // The unit that contains an address, or the end.
  Units::const_iterator around(DevicePtr ptr) const {
    auto unit = units_.upper_bound(ptr);
    if (unit == units_.begin()) {
      return units_.end();
    }
    --unit;
    return ptr < end_of(unit) ? unit : units_.end();
  }
  // Calls `visit(PageRun)` for the parts of a run of whole handles outside all units, in order of
  // address.
  template <typename Visit>
  void for_each_unpinned(const PageRun& run, Visit visit) const {
    DevicePtr begin = run.begin;
    const DevicePtr end = begin + run.bytes;
    for (auto unit = units_.lower_bound(begin); unit != units_.end() && unit->first < end; ++unit) {
      if (begin < unit->first) {
        visit(PageRun{begin, distance(begin, unit->first)});
      }
      begin = end_of(unit);
    }
    if (begin < end) {
      visit(PageRun{begin, distance(begin, end)});
    }
  }
  // Calls `visit(PageRun)` for the unpinned units that lie wholly in a range.
  template <typename Visit>
  void for_each_inside(DevicePtr begin, DevicePtr end, Visit visit) const {
    for (auto unit = units_.lower_bound(begin); unit != units_.end() && end_of(unit) <= end;
         ++unit) {
      if (unit->second.pins == 0) {
        visit(PageRun{unit->first, unit->second.pages * page_bytes_});
      }
    }
  }

 private:
  DevicePtr end_of(Units::const_iterator unit) const {
    return unit->first + unit->second.pages * page_bytes_;
  }

  const std::size_t page_bytes_;
  Units units_;
};

}  // namespace ferro
