// The live blocks of a pool at one moment, and their restoration.
//
// Cudagraph trees record graphs into a pool and replay them along different paths. Before a path is
// continued, the pool must be in the state at its end: exactly its blocks are live, at their
// addresses, so that the next recording gets the memory after them.
#pragma once

#include "ferro/graph/graph_memory.h"

#include <optional>
#include <vector>

namespace ferro {

struct PoolCheckpoint {
  struct HeapBlocks {
    HeapKey heap;
    std::vector<BlockView> live;  // in order of address
  };
  PoolId pool{};
  std::vector<HeapBlocks> heaps;
};

// The changes of a restoration. A block may be in both lists.
struct CheckpointChange {
  std::vector<BlockView> freed;      // live just before
  std::vector<BlockView> allocated;  // live now
};

// kBorrows: a running capture into the pool borrows memory of its exclusive group, or live memory
// of the last one has no own pages.
enum class CheckpointError {
  kNone,
  kUnknownPool,
  kUnheldPool,
  kPendingFrees,
  kPagesGone,
  kBorrows
};

// On any error nothing changed. Thread-safe if no other thread uses the pool meanwhile.
[[nodiscard]] CheckpointError take_checkpoint(GraphMemory& graphs, const PoolId& pool,
                                              PoolCheckpoint* checkpoint);
[[nodiscard]] CheckpointError restore_checkpoint(GraphMemory& graphs,
                                                 const PoolCheckpoint& checkpoint,
                                                 CheckpointChange* change);

}  // namespace ferro
