// A set of bytes, as ranges.
//
// Not thread-safe. Everything is O(log n + k) in the number of ranges n, of which k are touched.
// Invariant: ranges are not empty and neither overlap nor touch.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>

namespace ferro::sim {

class ByteRanges {
 public:
  void add(std::uint64_t begin, std::size_t bytes);
  void remove(std::uint64_t begin, std::size_t bytes);
  // Is any byte of the range in the set?
  bool overlaps(std::uint64_t begin, std::size_t bytes) const;
  // Makes [to, to + bytes) of this set equal to [from, from + bytes) of `source`, which may be this
  // set.
  void copy(std::uint64_t to, const ByteRanges& source, std::uint64_t from, std::size_t bytes);

  // Calls `visit(begin, bytes)` for each part of the range that is in the set, in order.
  template <typename Visit>
  void for_each_within(std::uint64_t begin, std::size_t bytes, const Visit& visit) const {
    const std::uint64_t end = begin + bytes;
    for (auto at = first_ending_after(begin); at != ends_.end() && at->first < end; ++at) {
      const std::uint64_t from = std::max(at->first, begin);
      visit(from, static_cast<std::size_t>(std::min(at->second, end) - from));
    }
  }

  std::size_t count() const { return ends_.size(); }

 private:
  using Ends = std::map<std::uint64_t, std::uint64_t>;
  // The first range that ends after `begin`.
  Ends::const_iterator first_ending_after(std::uint64_t begin) const;

  bool is_in_last(std::uint64_t begin, std::uint64_t end) const {
    return begin >= last_begin_ && end <= last_end_;
  }

  Ends ends_;  // by begin
  // A part of the set, the last one that was found: the same range is asked for again and again.
  mutable std::uint64_t last_begin_ = 0;
  mutable std::uint64_t last_end_ = 0;
};

}  // namespace ferro::sim
