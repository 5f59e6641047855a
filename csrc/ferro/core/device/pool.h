// The heaps of one owner. Plain data of PoolTable, guarded by its lock.
#pragma once

#include "ferro/core/heap/heap.h"
#include "ferro/core/stats/pool_bytes.h"
#include "ferro/core/types/pool_id.h"

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <memory>

namespace ferro {

// One heap of a pool.
struct HeapKey {
  StreamId stream{};
  HeapKind kind = HeapKind::kPages;

  friend auto operator<=>(const HeapKey&, const HeapKey&) = default;
};

struct Pool {
  // The number of graphs, MemPools and running diversions that hold the pool. The default pool is
  // always held; a pool that is not held keeps its live blocks and gives up all other memory.
  int use_count = 0;
  // Its free memory may serve requests of the default pool before they fail, even while it is held.
  bool use_on_oom = false;
  // The bytes that a private pool holds, and its counters at the last reset.
  PoolBytes bytes;
  std::array<std::int64_t, kStatClasses> increased_at_reset{};
  std::array<std::int64_t, kStatClasses> decreased_at_reset{};
  std::map<HeapKey, std::unique_ptr<Heap>> heaps;

  bool is_reclaimable() const { return use_count == 0 || use_on_oom; }
};

}  // namespace ferro
