// How sure each byte is (`contents.h`): the offsets of unknown and of drawn bytes. All others are
// known.
//
// Not thread-safe. Everything is O(log n + k) in the number of ranges n, of which k are touched.
#pragma once

#include "sim/memory/byte_ranges.h"
#include "sim/memory/contents.h"

#include <cstddef>
#include <cstdint>

namespace ferro::sim {

class Certainties {
 public:
  void set(std::uint64_t begin, std::size_t bytes, ferro_sim_certainty certainty) {
    if (certainty != FERRO_SIM_UNKNOWN) {
      unknown_.remove(begin, bytes);
    } else {
      unknown_.add(begin, bytes);
    }
    if (certainty != FERRO_SIM_DRAWN) {
      drawn_.remove(begin, bytes);
    } else {
      drawn_.add(begin, bytes);
    }
  }
  // That of the least certain byte of the range.
  ferro_sim_certainty least(std::uint64_t begin, std::size_t bytes) const {
    if (unknown_.overlaps(begin, bytes)) {
      return FERRO_SIM_UNKNOWN;
    }
    return drawn_.overlaps(begin, bytes) ? FERRO_SIM_DRAWN : FERRO_SIM_KNOWN;
  }
  // As `ByteRanges::copy`.
  void copy(std::uint64_t to, const Certainties& source, std::uint64_t from, std::size_t bytes) {
    unknown_.copy(to, source.unknown_, from, bytes);
    drawn_.copy(to, source.drawn_, from, bytes);
  }
  // Calls `visit(begin, bytes, certainty)` for each part of the range that is not known.
  template <typename Visit>
  void for_each_within(std::uint64_t begin, std::size_t bytes, const Visit& visit) const {
    unknown_.for_each_within(begin, bytes, [&](std::uint64_t at, std::size_t part) {
      visit(at, part, FERRO_SIM_UNKNOWN);
    });
    drawn_.for_each_within(begin, bytes, [&](std::uint64_t at, std::size_t part) {
      visit(at, part, FERRO_SIM_DRAWN);
    });
  }
  std::size_t count() const { return unknown_.count() + drawn_.count(); }

 private:
  ByteRanges unknown_;
  ByteRanges drawn_;
};

}  // namespace ferro::sim
