// What ranks tell each other: a message for each operation and receiver.
#pragma once

#include "sim/libraries/cuda/transfers.h"

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace ferro::sim::nccl {

enum class Call : std::int32_t {
  kAllReduce,
  kBroadcast,
  kReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kGather,
  kScatter,
  kSend,
  kReceive,
  kSplit,
};

// Which operation a message is of. Operations of a channel are counted where they are called, which
// all ranks do in the same order; one that a graph replays is told by its count in the capture and
// by how often it has run.
struct Place {
  enum Channel : std::int32_t { kCollective, kPointToPoint, kSplitting };
  std::int32_t from = 0;
  std::int32_t channel = kCollective;
  std::uint64_t sequence = 0;
  std::uint64_t repetition = 0;

  auto operator<=>(const Place&) const = default;
};

// What both sides have to agree about. `reduction` and `root` are -1 where there is none.
struct Terms {
  Call call = Call::kSplit;
  std::int32_t type = 0;
  std::int32_t reduction = -1;
  std::int32_t root = -1;
  std::uint64_t count = 0;

  bool operator==(const Terms&) const = default;
};

// "AllReduce of 4 float32".
std::string to_string(const Terms& terms);

// Without bytes, all that it stands for is unknown.
struct Message {
  Place place;
  Terms terms;
  std::vector<std::byte> bytes;
  std::vector<FerroSimRange> unknown;
};

}  // namespace ferro::sim::nccl
