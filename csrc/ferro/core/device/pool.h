// The heaps of one owner. Plain data of PoolTable, guarded by its lock.
#pragma once

#include "ferro/core/heap/heap.h"
#include "ferro/core/heap/segment_source.h"
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
  // How many graphs, MemPools and running diversions hold the pool. The default pool is always
  // held; a pool that nobody holds keeps its live blocks and gives back everything else.
  int use_count = 0;
  // Every block of such a pool is alone in a segment of its own, which is one physical allocation:
  // what libraries rely on that register buffers with a network.
  bool no_split = false;
  // Its free memory may serve requests of the default pool before they fail, also while it is held.
  bool use_on_oom = false;
  // Where the memory comes from when not from the device's layout; such a pool has segments. Kept
  // until the last of them is gone.
  std::shared_ptr<SegmentSource> source;
  // What a private pool holds, and what it had at the last reset.
  PoolBytes bytes;
  std::array<std::int64_t, kStatClasses> increased_at_reset{};
  std::array<std::int64_t, kStatClasses> decreased_at_reset{};
  std::map<HeapKey, std::unique_ptr<Heap>> heaps;

  // Has segments, whatever the device's layout.
  bool is_special() const { return no_split || source != nullptr; }
  bool gives_what_is_free() const { return use_count == 0 || use_on_oom; }
};

}  // namespace ferro
