// An operation of a communicator: what this rank gives to whom, and what it makes of what it gets.
//
// It runs in two parts, each in the order of its stream. Of a group all first parts come before all
// second ones, so ranks that one thread serves do not wait for each other.
#pragma once

#include "sim/libraries/nccl/communicator.h"

#include <cuda.h>

namespace ferro::sim::nccl {

// Up to so many bytes for each receiver move whatever they are, and up to so many if all of them are
// known. What is larger is unknown at the receiver (ADR 29).
constexpr std::size_t kMovedBytes = std::size_t{4} << 20;
constexpr std::size_t kMovedKnownBytes = std::size_t{32} << 20;

struct Transfer {
  Terms terms;
  // For the operations between two ranks.
  int peer = -1;
  std::uint64_t from = 0;
  std::uint64_t to = 0;
  std::optional<Scaling> scaling;
  CUstream stream = nullptr;
  // Set where it is called, and counted where it runs.
  std::uint64_t sequence = 0;
  std::uint64_t contributed = 0;
  std::uint64_t completed = 0;
};

bool gives(const Transfer& transfer);
bool takes(const Transfer& transfer);
// A failure becomes the communicator's.
void contribute(Communicator& communicator, Transfer& transfer);
void complete(Communicator& communicator, Transfer& transfer);

}  // namespace ferro::sim::nccl
