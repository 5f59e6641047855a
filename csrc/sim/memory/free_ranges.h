// The free ranges of offsets or addresses: neighbours are merged, and a request gets the best fit.
//
// Not thread-safe. Everything is O(log n) in the number of free ranges; only `take_first` and
// `take_last`, and a `take` whose alignment is coarser than that of the ranges, may look at more
// than one of them.
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
  // Adds a range, of which no part is free yet.
  void add(std::uint64_t begin, std::size_t bytes);
  // Takes `bytes` at a multiple of `alignment`, a power of two, from the smallest range that has
  // room, the lowest of that size, at the lowest place in it. None if there is no such range.
  std::optional<std::uint64_t> take(std::size_t bytes, std::size_t alignment = 1);
  // From the lowest range that has room, at its begin.
  std::optional<std::uint64_t> take_first(std::size_t bytes);
  // From the highest range that has room, at the highest multiple of `alignment` in it.
  std::optional<std::uint64_t> take_last(std::size_t bytes, std::size_t alignment);
  // Removes the free parts of a range.
  void remove(std::uint64_t begin, std::size_t bytes);

  std::size_t count() const { return by_begin_.size(); }

 private:
  using ByBegin = std::map<std::uint64_t, std::size_t>;
  void insert(std::uint64_t begin, std::size_t bytes);
  ByBegin::iterator erase(ByBegin::iterator range);
  // Removes a part of one range.
  ByBegin::iterator cut(ByBegin::iterator range, std::uint64_t begin, std::uint64_t end);

  ByBegin by_begin_;
  std::set<std::pair<std::size_t, std::uint64_t>> by_size_;
};

}  // namespace ferro::sim
