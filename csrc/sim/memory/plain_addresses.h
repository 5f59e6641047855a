// Where cuMemAlloc's memory lies, as on a GPU: native's order of equal blocks follows addresses.
//
// A device begins with the addresses of its context. Where no range of the device is free that is
// large enough, it takes another of a multiple of 32 MiB, below all others; a request gets the
// lowest place. Seen on an H100, where other mappings of the process leave further gaps.
//
// Not thread-safe; O(log n) but for the search among the n free ranges of a device.
// Memory may lie in several ranges that follow each other. Invariants: each range of a device has
// memory in it, except for the first; `used` of a range is the number of its bytes that are taken.
#pragma once

#include "sim/memory/free_ranges.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

namespace ferro::sim {

class PlainAddresses {
 public:
  // Takes ranges from `gaps` and puts them back.
  explicit PlainAddresses(FreeRanges& gaps) : gaps_(gaps) {}

  // None when no addresses are left.
  std::optional<std::uint64_t> take(int device, std::size_t bytes);
  // False if they were not taken here.
  bool put(std::uint64_t at, std::size_t bytes);

 private:
  struct Range {
    int device = 0;
    std::size_t bytes = 0;
    std::size_t used = 0;
    bool is_first = false;
  };
  std::map<std::uint64_t, Range>::iterator range_of(std::uint64_t at);
  // Calls `visit(range, bytes)` for each range with a part of what was taken, in order. It may erase
  // the range.
  template <typename Visit>
  void for_each_range(std::uint64_t at, std::size_t bytes, const Visit& visit);
  // Its addresses are not free yet. None when there are none left.
  std::optional<std::uint64_t> add_range(int device, std::size_t bytes, bool is_first);

  FreeRanges& gaps_;
  std::map<std::uint64_t, Range> ranges_;
  std::map<int, FreeRanges> free_;  // by device
};

}  // namespace ferro::sim
