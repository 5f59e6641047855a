// What is known about each byte without reading it (`contents.h`): how sure it is, and where it comes
// from. Bytes of which nothing was said are known, and their origin is plain: no contents explain it.
//
// Not thread-safe. Everything is O(log n + k) in the number of ranges n, of which k are touched.
#pragma once

#include "sim/memory/contents.h"
#include "sim/memory/held_ranges.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace ferro::sim {

class Knowledge {
 public:
  // Known, with a plain origin.
  void remove(std::uint64_t begin, std::size_t bytes) { facts_.remove(begin, bytes); }
  // Sets both. The bytes lie `at` bytes into the origin.
  void set(std::uint64_t begin, std::size_t bytes, ferro_sim_certainty certainty,
           const ferro_sim_origin& origin, std::size_t at) {
    facts_.set(begin, bytes, {certainty, origin}, at);
  }
  // Sets one, and leaves the other.
  void set_certainty(std::uint64_t begin, std::size_t bytes, ferro_sim_certainty certainty) {
    change(begin, bytes,
           [&](Fact& fact, std::size_t&, std::uint64_t) { fact.certainty = certainty; });
  }
  void set_origin(std::uint64_t begin, std::size_t bytes, const ferro_sim_origin& origin,
                  std::size_t at) {
    change(begin, bytes, [&](Fact& fact, std::size_t& offset, std::uint64_t from) {
      fact.origin = origin;
      offset = at + static_cast<std::size_t>(from - begin);
    });
  }
  void remove_origin(std::uint64_t begin, std::size_t bytes) {
    change(begin, bytes, [](Fact& fact, std::size_t&, std::uint64_t) { fact.origin = {}; });
  }
  // Makes [to, to + bytes) what [from, from + bytes) of `source` is, which may be this object.
  void copy(std::uint64_t to, const Knowledge& source, std::uint64_t from, std::size_t bytes) {
    facts_.copy(to, source.facts_, from, bytes);
  }

  // That of the least certain byte of the range.
  ferro_sim_certainty least_certainty(std::uint64_t begin, std::size_t bytes) const {
    ferro_sim_certainty least = FERRO_SIM_KNOWN;
    facts_.for_each_held(begin, bytes,
                         [&](std::uint64_t, std::size_t, const Fact& fact, std::size_t) {
                           least = std::min(least, fact.certainty);
                           return least != FERRO_SIM_UNKNOWN;
                         });
    return least;
  }
  bool is_unknown(std::uint64_t begin, std::size_t bytes) const {
    std::uint64_t done = begin;
    facts_.for_each_held(begin, bytes,
                         [&](std::uint64_t at, std::size_t part, const Fact& fact, std::size_t) {
                           const bool goes_on = at == done && fact.certainty == FERRO_SIM_UNKNOWN;
                           done = goes_on ? at + part : done;
                           return goes_on;
                         });
    return done == begin + bytes;
  }
  // Calls `visit(begin, bytes, certainty)` for each part of the range that is not known, in order,
  // until it returns false.
  template <typename Visit>
  void for_each_unsure(std::uint64_t begin, std::size_t bytes, const Visit& visit) const {
    facts_.for_each_held(
        begin, bytes, [&](std::uint64_t at, std::size_t part, const Fact& fact, std::size_t) {
          return fact.certainty == FERRO_SIM_KNOWN || visit(at, part, fact.certainty);
        });
  }
  // Calls `visit(begin, bytes, certainty, origin, offset)` for each part of which something was said,
  // in order, until it returns false. A plain origin is null.
  template <typename Visit>
  void for_each_fact(std::uint64_t begin, std::size_t bytes, const Visit& visit) const {
    facts_.for_each_held(
        begin, bytes,
        [&](std::uint64_t at, std::size_t part, const Fact& fact, std::size_t offset) {
          const bool is_plain = fact.origin.identity == 0;
          return visit(at, part, fact.certainty, is_plain ? nullptr : &fact.origin, offset);
        });
  }
  // Calls `visit(certainty, origin, offset)` if the same was said of the whole range, with an origin.
  template <typename Visit>
  bool visit_whole(std::uint64_t begin, std::size_t bytes, const Visit& visit) const {
    bool is_whole = false;
    facts_.visit_range_at(
        begin, [&](std::uint64_t at, std::size_t part, const Fact& fact, std::size_t offset) {
          const auto skipped = static_cast<std::size_t>(begin - at);
          is_whole = fact.origin.identity != 0 && skipped + bytes <= part;
          if (is_whole) {
            visit(fact.certainty, fact.origin, offset + skipped);
          }
        });
    return is_whole;
  }
  // Was nothing said of any byte of the range?
  bool is_plain(std::uint64_t begin, std::size_t bytes) const {
    return !facts_.holds_any(begin, bytes);
  }
  std::size_t count() const { return facts_.count(); }

 private:
  struct Fact {
    ferro_sim_certainty certainty = FERRO_SIM_KNOWN;
    ferro_sim_origin origin{};
    bool is_positional() const { return origin.identity != 0; }
    bool operator==(const Fact& other) const {
      return certainty == other.certainty && origin.identity == other.origin.identity &&
             origin.infinities == other.origin.infinities &&
             origin.has_lows == other.origin.has_lows &&
             origin.is_positive == other.origin.is_positive &&
             origin.of_masks == other.origin.of_masks && origin.is_unset == other.origin.is_unset;
    }
  };

  struct Part {
    std::uint64_t begin;
    std::size_t bytes;
    Fact fact;
    std::size_t offset;
  };
  // `alter(fact, offset, begin)` changes the fact of each part of the range.
  template <typename Alter>
  void change(std::uint64_t begin, std::size_t bytes, const Alter& alter) {
    parts_.clear();
    const auto add = [&](std::uint64_t at, std::size_t part, const Fact& fact, std::size_t offset) {
      Part altered = {at, part, fact, offset};
      alter(altered.fact, altered.offset, at);
      // Most often few of very many parts change.
      if (!(altered.fact == fact) || altered.offset != offset) {
        parts_.push_back(altered);
      }
    };
    facts_.for_each_part(begin, bytes, add,
                         [&](std::uint64_t at, std::size_t part) { add(at, part, Fact(), 0); });
    for (const Part& part : parts_) {
      if (part.fact == Fact()) {
        facts_.remove(part.begin, part.bytes);
      } else {
        facts_.set(part.begin, part.bytes, part.fact, part.offset);
      }
    }
  }

  HeldRanges<Fact> facts_;
  std::vector<Part> parts_;  // of `change`
};

}  // namespace ferro::sim
