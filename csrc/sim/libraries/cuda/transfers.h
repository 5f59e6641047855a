// Functions for libraries that move bytes between ranks: a host function in stream order that may
// wait, and its access to device memory.
//
// In libcuda.so.1. Thread-safe, also within a function that waits. Bytes that a GPU would have
// computed are unknown or drawn (`ferro_sim_certainty`).
#pragma once

#include "sim/memory/contents.h"

#include <cstddef>
#include <cstdint>

// An offset from an address, a size, and how sure the bytes are.
struct FerroSimRange {
  std::uint64_t begin;
  std::uint64_t bytes;
  std::uint64_t certainty;  // a ferro_sim_certainty
};

extern "C" {
// Like cuLaunchHostFunc, for a function that may wait for other processes or threads, in a stream
// of the current context. In eager time it has ended when this returns. Returns a CUresult.
int ferro_sim_wait_in_order(void* stream, void (*function)(void*), void* argument);
// Does device memory keep its contents?
int ferro_sim_has_contents();
// Writes at most `room` ranges that are not known and returns their number, or -1 if a byte is not
// mapped.
std::int64_t ferro_sim_uncertain(std::uint64_t address, std::size_t bytes, FerroSimRange* ranges,
                                 std::size_t room);
// Both return 0, or -1 if a byte is not mapped. A null source writes zeros, or with `keep` leaves
// the bytes. Afterwards all bytes are known, except those in `uncertain`, which
// may overlap: the least certain range counts. `identity` is that of the unknown ones.
int ferro_sim_take(std::uint64_t address, void* destination, std::size_t bytes);
int ferro_sim_put(std::uint64_t address, const void* source, std::size_t bytes, int keep,
                  const FerroSimRange* uncertain, std::size_t ranges, std::uint64_t identity);
// The identity of what the bytes hold (`ferro_sim_origin`), or 0 if a byte is not mapped.
std::uint64_t ferro_sim_identity(std::uint64_t address, std::size_t bytes);
// Counts a library operation of this thread that reports which of its results are known.
void ferro_sim_note_transfer();
}
