#include "ferro/graph/checkpoint.h"

#include <algorithm>

namespace ferro {
namespace {

HeapKey key_of(const Heap& heap) { return {heap.stream(), heap.kind()}; }

CheckpointError check_pool(GraphMemory& graphs, const PoolId& pool,
                           const std::vector<Heap*>& heaps) {
  const int use_count = graphs.device().pools().use_count(pool);
  if (use_count < 0) {
    return CheckpointError::kUnknownPool;
  }
  if (use_count == 0) {
    return CheckpointError::kUnheldPool;
  }
  for (Heap* heap : heaps) {
    heap->collect_pending();
    if (heap->has_pending()) {
      return CheckpointError::kPendingFrees;
    }
  }
  return CheckpointError::kNone;
}

// The live blocks of a heap in the checkpoint; none for a heap that is newer.
const std::vector<BlockView>& live_of(const PoolCheckpoint& checkpoint, const Heap& heap) {
  static const std::vector<BlockView> nothing;
  const auto found =
      std::ranges::find(checkpoint.heaps, key_of(heap), &PoolCheckpoint::HeapBlocks::heap);
  return found != checkpoint.heaps.end() ? found->live : nothing;
}

CheckpointError check_restorable(const PoolCheckpoint& checkpoint,
                                 const std::vector<Heap*>& heaps) {
  // The restoration frees live blocks at once, so other streams must have finished with them.
  if (std::ranges::any_of(heaps, [](Heap* heap) { return heap->has_recorded_uses(); })) {
    return CheckpointError::kPendingFrees;
  }
  for (const PoolCheckpoint::HeapBlocks& recorded : checkpoint.heaps) {
    const auto found =
        std::ranges::find(heaps, recorded.heap, [](const Heap* heap) { return key_of(*heap); });
    const bool possible =
        found != heaps.end() ? (*found)->can_restore(recorded.live) : recorded.live.empty();
    if (!possible) {
      return CheckpointError::kPagesGone;
    }
  }
  return CheckpointError::kNone;
}

}  // namespace

CheckpointError take_checkpoint(GraphMemory& graphs, const PoolId& pool,
                                PoolCheckpoint* checkpoint) {
  CheckpointError error = CheckpointError::kNone;
  if (!graphs.expect_checkpoints(pool)) {
    return CheckpointError::kBorrows;
  }
  graphs.with_heaps_of(pool, [&](const std::vector<Heap*>& heaps) {
    error = check_pool(graphs, pool, heaps);
    if (error != CheckpointError::kNone) {
      return;
    }
    checkpoint->pool = pool;
    checkpoint->heaps.clear();
    for (Heap* heap : heaps) {
      checkpoint->heaps.push_back({key_of(*heap), live_blocks_of(*heap)});
    }
  });
  if (error == CheckpointError::kNone) {
    graphs.on_checkpoint(pool);
  }
  return error;
}

CheckpointError restore_checkpoint(GraphMemory& graphs, const PoolCheckpoint& checkpoint,
                                   CheckpointChange* change) {
  CheckpointError error = CheckpointError::kNone;
  graphs.with_heaps_of(checkpoint.pool, [&](const std::vector<Heap*>& heaps) {
    error = check_pool(graphs, checkpoint.pool, heaps);
    if (error == CheckpointError::kNone) {
      error = check_restorable(checkpoint, heaps);
    }
    if (error != CheckpointError::kNone) {
      return;
    }
    for (Heap* heap : heaps) {
      const std::vector<BlockView>& live = live_of(checkpoint, *heap);
      heap->restore_live(live, &change->freed);
      change->allocated.insert(change->allocated.end(), live.begin(), live.end());
    }
  });
  if (error == CheckpointError::kNone) {
    graphs.on_restore(checkpoint.pool);
  }
  return error;
}

}  // namespace ferro
