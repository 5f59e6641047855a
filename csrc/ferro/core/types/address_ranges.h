// A set of addresses, as disjoint ranges. Not thread-safe.
#pragma once

#include "ferro/driver/types.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>

namespace ferro {

class AddressRanges {
 public:
  void add(DevicePtr ptr, std::size_t bytes);
  void remove(DevicePtr ptr, std::size_t bytes);
  std::size_t bytes() const;
  // The addresses that are in both sets.
  AddressRanges intersection(const AddressRanges& other) const;
  void unite(const AddressRanges& other);
  // Calls `visit(DevicePtr, bytes)` for each part of a range that is in the set, in order.
  template <typename Visit>
  void for_each_inside(DevicePtr ptr, std::size_t bytes, Visit visit) const {
    const std::uint64_t begin = address_of(ptr);
    const std::uint64_t end = begin + bytes;
    auto next = ends_.upper_bound(begin);
    if (next != ends_.begin() && std::prev(next)->second > begin) {
      --next;
    }
    for (; next != ends_.end() && next->first < end; ++next) {
      const std::uint64_t first = std::max(begin, next->first);
      visit(DevicePtr{first}, std::min(end, next->second) - first);
    }
  }
  bool overlaps(DevicePtr ptr, std::size_t bytes) const {
    bool found = false;
    for_each_inside(ptr, bytes, [&](DevicePtr, std::size_t) { found = true; });
    return found;
  }
  void clear() { ends_.clear(); }

 private:
  std::map<std::uint64_t, std::uint64_t> ends_;  // by begin; disjoint and not adjacent
};

}  // namespace ferro
