// What the captures of one device were given from their pools: the memory that their graphs read
// and write at each replay, whatever became of the tensors since.
#pragma once

#include "ferro/base/mutex.h"
#include "ferro/core/heap/heap.h"
#include "ferro/core/types/address_ranges.h"
#include "ferro/core/types/pool_id.h"
#include "ferro/driver/types.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

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
  std::size_t private_bytes = 0;  // taken from the device, and for nobody else
  std::size_t live_bytes = 0;     // in blocks that are in use
  std::size_t scratch_bytes = 0;  // the rest: for its graphs' replays and for its next captures
  std::size_t shared_bytes = 0;   // of private_bytes, what more than one graph was given
};

// Thread-safe. A capture is told from others by the driver's id for it. Those of a graph that is
// gone count until it is forgotten.
class Footprints {
 public:
  void note(const PoolId& pool, std::uint64_t capture, DevicePtr ptr, std::size_t bytes)
      FERRO_EXCLUDES(mutex_);
  // Where the memory of some addresses is now: pages move within captures (scratch_sharing.h).
  using Follow = std::function<AddressRanges(AddressRanges)>;
  static AddressRanges as_given(AddressRanges ranges) { return ranges; }
  // `live` are the blocks in use of the pool. Zero for a capture that was given nothing.
  GraphSizes sizes_of(const PoolId& pool, std::uint64_t capture, const std::vector<BlockView>& live,
                      const Follow& follow = as_given) const FERRO_EXCLUDES(mutex_);
  // What one capture was given; empty for one that was given nothing.
  AddressRanges of_capture(const PoolId& pool, std::uint64_t capture) const FERRO_EXCLUDES(mutex_);
  // Bytes that more than one graph of the pool was given.
  std::size_t shared_bytes(const PoolId& pool, const Follow& follow = as_given) const
      FERRO_EXCLUDES(mutex_);
  void forget_capture(const PoolId& pool, std::uint64_t capture) FERRO_EXCLUDES(mutex_);
  // Nobody holds it any more, so it has no graphs.
  void forget_pool(const PoolId& pool) FERRO_EXCLUDES(mutex_);

 private:
  using ByCapture = std::map<std::uint64_t, AddressRanges>;
  ByCapture of_pool(const PoolId& pool) const FERRO_EXCLUDES(mutex_);

  mutable Mutex mutex_;
  std::map<PoolId, ByCapture> pools_ FERRO_GUARDED_BY(mutex_);
};

}  // namespace ferro
