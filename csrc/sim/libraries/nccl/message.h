// The messages between ranks: one for each operation and receiver.
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

// Identifies the operation of a message. Operations of a channel are numbered by their calls, which
// all ranks make in the same order. A replayed operation has its number in the capture and the
// number of its earlier runs.
struct Place {
  enum Channel : std::int32_t { kCollective, kPointToPoint, kSplitting };
  std::int32_t from = 0;
  std::int32_t channel = kCollective;
  std::uint64_t sequence = 0;
  std::uint64_t repetition = 0;

  auto operator<=>(const Place&) const = default;
};

// The terms that both sides must agree on. `reduction` and `root` are -1 if there is none.
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

// A message without bytes means that all bytes are unknown.
struct Message {
  Place place;
  Terms terms;
  std::vector<std::byte> bytes;
  std::vector<FerroSimRange> uncertain;
  std::uint64_t identity = 0;  // of what the sender's memory held
};

}  // namespace ferro::sim::nccl
