// What graphs and pools hold, in bytes. Pure.
#pragma once

#include "ferro/core/heap/views.h"
#include "ferro/core/types/address_ranges.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>

namespace ferro {

// Of one graph: private_bytes + shared_bytes == live_bytes + scratch_bytes.
struct GraphSizes {
  std::size_t private_bytes = 0;  // no other graph of the pool was given it
  std::size_t shared_bytes = 0;   // another one was given it too
  std::size_t live_bytes = 0;     // in blocks that are still in use: outputs, state
  std::size_t scratch_bytes = 0;  // freed, and written again by each replay
};

// Of one pool: private_bytes == live_bytes + scratch_bytes.
struct PoolSizes {
  std::size_t private_bytes = 0;  // taken from the device for this pool alone
  std::size_t live_bytes = 0;     // in blocks that are in use
  std::size_t scratch_bytes = 0;  // the rest: for its graphs' replays and for its next captures
  std::size_t shared_bytes = 0;   // of private_bytes, what more than one graph was given
  std::size_t asleep_bytes = 0;   // that `wake` takes for it; not a part of private_bytes
};

// What captures into one pool were given, by the driver's ids of the captures.
using CapturedRanges = std::map<std::uint64_t, AddressRanges>;

// Of the graph of one capture. `live`: the blocks in use of its pool. Zero for a capture that was
// given nothing.
GraphSizes sizes_of_graph(const CapturedRanges& captures, std::uint64_t capture,
                          std::span<const BlockView> live);
// Bytes that more than one capture was given.
std::size_t shared_bytes_of(const CapturedRanges& captures);

}  // namespace ferro
