// How sure each byte is (`contents.h`): the ranges of unknown and of drawn bytes. All others are
// known.
//
// Not thread-safe. Everything is O(log n + k) in the number of ranges n, of which k are touched.
#pragma once

#include "sim/memory/contents.h"
#include "sim/memory/held_ranges.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace ferro::sim {

class Certainties {
 public:
  void set(std::uint64_t begin, std::size_t bytes, ferro_sim_certainty certainty) {
    if (certainty == FERRO_SIM_KNOWN) {
      unsure_.remove(begin, bytes);
    } else if (bytes > 0) {
      unsure_.set(begin, bytes, {certainty}, 0);
    }
  }
  // That of the least certain byte of the range.
  ferro_sim_certainty least(std::uint64_t begin, std::size_t bytes) const {
    ferro_sim_certainty least = FERRO_SIM_KNOWN;
    unsure_.for_each_held(begin, bytes, [&](std::uint64_t, std::size_t, Mark mark, std::size_t) {
      least = std::min(least, mark.certainty);
      return least != FERRO_SIM_UNKNOWN;
    });
    return least;
  }
  // Makes [to, to + bytes) as certain as [from, from + bytes) of `source`, which may be this object.
  void copy(std::uint64_t to, const Certainties& source, std::uint64_t from, std::size_t bytes) {
    unsure_.copy(to, source.unsure_, from, bytes);
  }
  // Calls `visit(begin, bytes, certainty)` for each part of the range that is not known.
  template <typename Visit>
  void for_each_within(std::uint64_t begin, std::size_t bytes, const Visit& visit) const {
    unsure_.for_each_held(begin, bytes,
                          [&](std::uint64_t at, std::size_t part, Mark mark, std::size_t) {
                            visit(at, part, mark.certainty);
                            return true;
                          });
  }
  std::size_t count() const { return unsure_.count(); }

 private:
  struct Mark {
    ferro_sim_certainty certainty = FERRO_SIM_UNKNOWN;
    bool is_positional() const { return false; }
    bool operator==(const Mark&) const = default;
  };
  HeldRanges<Mark> unsure_;
};

}  // namespace ferro::sim
