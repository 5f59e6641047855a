// The live blocks of a pool at one moment, and the way back to it.
//
// Cudagraph trees record one graph after another into a pool and replay them along different paths.
// Before a path is continued, the pool must look as it did when that path was recorded: exactly its
// blocks live, at their addresses, so that the next recording gets what follows them.
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

// What restoring did. A block may be in both lists.
struct CheckpointChange {
  std::vector<BlockView> freed;      // live just before
  std::vector<BlockView> allocated;  // live now
};

// kBorrows: a capture into the pool of an exclusive group borrows memory of it, or what the last one
// left alive has no pages of its own.
enum class CheckpointError {
  kNone,
  kUnknownPool,
  kUnheldPool,
  kPendingFrees,
  kPagesGone,
  kBorrows
};

// On any error nothing changed. Thread-safe as long as nobody else uses the pool meanwhile.
[[nodiscard]] CheckpointError take_checkpoint(GraphMemory& graphs, const PoolId& pool,
                                              PoolCheckpoint* checkpoint);
[[nodiscard]] CheckpointError restore_checkpoint(GraphMemory& graphs,
                                                 const PoolCheckpoint& checkpoint,
                                                 CheckpointChange* change);

}  // namespace ferro
