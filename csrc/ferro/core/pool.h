// The heaps of one owner. Plain data of DeviceMemory, guarded by its lock.
#pragma once

#include "ferro/core/heap.h"
#include "ferro/core/pool_id.h"

#include <memory>
#include <unordered_map>

namespace ferro {

struct Pool {
  // How many graphs, MemPools and running diversions hold the pool. The default pool is always
  // held; a pool that nobody holds keeps its live blocks and gives back everything else.
  int use_count = 0;
  // Every block of such a pool consists of whole pages that it shares with no other block.
  bool no_split = false;
  // Its free pages may be taken, also while it is held, before a request fails.
  bool use_on_oom = false;
  std::unordered_map<StreamId, std::unique_ptr<Heap>> heaps;
};

}  // namespace ferro
