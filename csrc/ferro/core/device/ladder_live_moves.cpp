// The last step before an error: live bytes leave handles of which other pages are free.
#include "ferro/core/device/ladder.h"
#include "ferro/core/policy/live_moves.h"

#include <vector>

namespace ferro {

LiveMoves Ladder::may_move_live() const {
  if (!parts_.config.move_live) {
    return LiveMoves::kOff;
  }
  if (parts_.captures.load(std::memory_order_relaxed) != 0) {
    return LiveMoves::kCapturing;
  }
  // The host waits for this device alone, and work of others may reach this memory.
  return parts_.driver.has_peers() ? LiveMoves::kPeers : LiveMoves::kAllowed;
}

// Nothing moves unless that is enough.
DevicePtr Ladder::move_live(Climb& climb) {
  if (may_move_live() != LiveMoves::kAllowed) {
    return kNull;
  }
  parts_.stale.remove_passed();
  struct Place {
    ArenaHeap* heap;
    ArenaHeap::PartlyFree handle;
  };
  std::vector<Place> places;
  std::vector<HandleUse> uses;
  std::vector<StreamId> streams;
  for (Heap* heap : parts_.pools.heaps_of(kDefaultPool)) {
    if (!is_paged(heap->kind())) {
      continue;
    }
    auto* arena = static_cast<ArenaHeap*>(heap);
    for (const ArenaHeap::PartlyFree& handle : arena->partly_free_handles()) {
      places.push_back({arena, handle});
      uses.push_back(handle.use);
    }
    if (arena->stream_lasts()) {
      streams.push_back(arena->stream());
    }
  }
  // What is free beside a gap counts as nothing here, because it may be on a handle that goes.
  const std::vector<std::size_t> order =
      plan_live_moves(uses, ceil_div(climb.request.size, parts_.store.page_bytes()),
                      parts_.store.single_pages_at_hand());
  if (order.empty() || !parts_.driver.try_wait_for_device(streams)) {
    return kNull;
  }
  for (const std::size_t i : order) {
    const HandleUse& use = uses[i];
    if (!places[i].heap->vacate(places[i].handle, climb.request.context)) {
      break;
    }
    ++parts_.counters.live_moves;
    parts_.counters.live_bytes_copied += use.used * parts_.store.page_bytes();
    parts_.counters.live_pages_freed += use.pages - use.used;
  }
  return grow(climb);
}

}  // namespace ferro
