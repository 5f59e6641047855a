// What is free of a line of offsets or addresses: the best fit for a request, neighbours merged.
//
// Not thread-safe. Everything is O(log n) in the number of free ranges; only a `take` whose
// alignment is coarser than that of the ranges may look at more than one of them.
// Invariants: ranges are not empty and neither overlap nor touch; both indices hold the same ranges.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace ferro::sim {

class FreeRanges {
 public:
  // None of the range is free yet.
  void add(std::uint64_t begin, std::size_t bytes);
  // Takes `bytes` at a multiple of `alignment`, a power of two, from the smallest range that has
  // them, the lowest one of that size, as low in it as possible. None when there is no such range.
  std::optional<std::uint64_t> take(std::size_t bytes, std::size_t alignment = 1);
  // Takes out what is free of a range.
  void remove(std::uint64_t begin, std::size_t bytes);

  std::size_t count() const { return by_begin_.size(); }

 private:
  using ByBegin = std::map<std::uint64_t, std::size_t>;
  void insert(std::uint64_t begin, std::size_t bytes);
  ByBegin::iterator erase(ByBegin::iterator range);
  // Takes a part out of one range.
  ByBegin::iterator cut(ByBegin::iterator range, std::uint64_t begin, std::uint64_t end);

  ByBegin by_begin_;
  std::set<std::pair<std::size_t, std::uint64_t>> by_size_;
};

}  // namespace ferro::sim
