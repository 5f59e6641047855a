// An operation of a communicator: the messages that this rank sends, and its result from those that
// it receives.
//
// It runs in two parts, each in the order of its stream. In a group all first parts precede all
// second parts, so ranks of one thread do not wait for each other.
#pragma once

#include "sim/libraries/nccl/communicator.h"

#include <cuda.h>

namespace ferro::sim::nccl {

// The largest message that always has its bytes, and the largest that has them if all are known.
// Larger messages are unknown at the receiver (ADR 29).
constexpr std::size_t kMovedBytes = std::size_t{4} << 20;
constexpr std::size_t kMovedKnownBytes = std::size_t{32} << 20;

struct Transfer {
  Terms terms;
  // For operations between two ranks; else -1.
  int peer = -1;
  std::uint64_t from = 0;
  std::uint64_t to = 0;
  std::optional<Scaling> scaling;
  CUstream stream = nullptr;
  // `sequence` is set by the call; the others count runs.
  std::uint64_t sequence = 0;
  std::uint64_t contributed = 0;
  std::uint64_t completed = 0;
};

bool gives(const Transfer& transfer);
bool takes(const Transfer& transfer);
// The two parts. A failure becomes the communicator's.
void contribute(Communicator& communicator, Transfer& transfer);
void complete(Communicator& communicator, Transfer& transfer);

}  // namespace ferro::sim::nccl
