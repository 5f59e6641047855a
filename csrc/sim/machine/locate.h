// Shared by the control functions: lookup of memory by address, and text for C.
#pragma once

#include "sim/machine/machine.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace ferro::sim {

// Appends the pieces of physical memory behind a range, regardless of access rights; false if a
// byte is not mapped. Guarded by the machine's lock.
bool locate(Machine& machine, CUdeviceptr at, std::size_t bytes, std::vector<Segment>& segments);

// Calls `visit(offset, bytes, certainty)` for each part of these pieces that is not known, in order,
// until it returns false. Offsets begin with the first piece.
template <typename Segments, typename Visit>
void for_each_unsure(const Segments& segments, const Visit& visit) {
  std::size_t before = 0;
  for (const Segment& segment : segments) {
    bool goes_on = true;
    segment.memory->knowledge().for_each_unsure(
        segment.offset, segment.bytes,
        [&](std::uint64_t at, std::size_t part, ferro_sim_certainty certainty) {
          return goes_on = visit(before + (at - segment.offset), part, certainty);
        });
    if (!goes_on) {
      return;
    }
    before += segment.bytes;
  }
}

// Writes at most `size` bytes, including the terminator; returns the length of the whole text.
std::size_t copy_text(const std::string& text, char* buffer, std::size_t size);

}  // namespace ferro::sim
