// What is known about the bytes of a host's storage that came from a card.
//
// Used with the machine locked.
#pragma once

#include "sim/control.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>

namespace ferro::values {

// A storage's memory.
struct HostBytes {
  const std::byte* begin = nullptr;
  std::size_t size = 0;
};

class HostFacts {
 public:
  struct Fact {
    std::size_t end = 0;
    ferro_sim_certainty certainty = FERRO_SIM_UNKNOWN;
    ferro_sim_origin origin = {};
    std::size_t offset = 0;  // of the first byte in the origin
    std::uint64_t hash = 0;  // of the first `hashed` bytes
    std::size_t hashed = 0;
  };

  // From `begin` to its end, this is known. `hashed`: how many of its bytes at most tell whether the
  // program changed it, of each part of `kPart` bytes; none of memory that is null.
  void set(std::size_t begin, const Fact& fact, std::size_t hashed, const HostBytes& memory);
  // Forgets what is known about bytes of the range that are others now, and the bytes beside them in
  // the same part.
  void drop_changed(std::size_t begin, std::size_t bytes, const HostBytes& memory);
  void clear() { facts_.clear(); }
  // Calls `visit(begin, bytes, fact, offset)` for each part of the range of which something is known.
  template <typename Visit>
  void for_each(std::size_t begin, std::size_t bytes, const Visit& visit) const {
    const std::size_t end = begin + bytes;
    auto at = facts_.upper_bound(begin);
    at = at != facts_.begin() && std::prev(at)->second.end > begin ? std::prev(at) : at;
    for (; at != facts_.end() && at->first < end; ++at) {
      const std::size_t from = std::max(at->first, begin);
      visit(from, std::min(at->second.end, end) - from, at->second,
            at->second.offset + (from - at->first));
    }
  }

  static constexpr std::size_t kPart = std::size_t{1} << 20;

 private:
  using Facts = std::map<std::size_t, Fact>;  // by the first byte; they do not overlap

  Facts::iterator first_ending_after(std::size_t begin);

  Facts facts_;
};

}  // namespace ferro::values
