// The last steps before an error: live bytes leave handles of which other pages are free, and idle
// graphs lend their scratch.
#include "ferro/core/device/ladder.h"
#include "ferro/core/policy/live_moves.h"

#include <algorithm>
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

std::vector<StreamId> Ladder::lasting_streams() {
  std::vector<StreamId> streams;
  for (Heap* heap : parts_.pools.heaps_of(kDefaultPool)) {
    if (is_paged(heap->kind()) && heap->stream_lasts()) {
      streams.push_back(heap->stream());
    }
  }
  return streams;
}

bool Ladder::move_live_for(std::size_t pages, const CallContext& context) {
  if (may_move_live() != LiveMoves::kAllowed) {
    return false;
  }
  parts_.stale.remove_passed();
  struct Place {
    ArenaHeap* heap;
    ArenaHeap::PartlyFree handle;
  };
  std::vector<Place> places;
  std::vector<HandleUse> uses;
  for (Heap* heap : parts_.pools.heaps_of(kDefaultPool)) {
    if (!is_paged(heap->kind())) {
      continue;
    }
    auto* arena = static_cast<ArenaHeap*>(heap);
    for (const ArenaHeap::PartlyFree& handle : arena->partly_free_handles()) {
      places.push_back({arena, handle});
      uses.push_back(handle.use);
    }
  }
  const std::vector<std::size_t> order =
      plan_live_moves(uses, pages, parts_.store.single_pages_at_hand());
  if (order.empty() || !parts_.driver.try_wait_for_device(lasting_streams())) {
    return false;
  }
  for (const std::size_t i : order) {
    const HandleUse& use = uses[i];
    if (!places[i].heap->vacate(places[i].handle, context)) {
      break;
    }
    ++parts_.counters.live_moves;
    parts_.counters.live_bytes_copied += use.used * parts_.store.page_bytes();
    parts_.counters.live_pages_freed += use.pages - use.used;
  }
  return true;
}

// What is free beside a gap counts as nothing here, because it may be on a handle that goes.
DevicePtr Ladder::move_live(Climb& climb) {
  const std::size_t pages = ceil_div(climb.request.size, parts_.store.page_bytes());
  return move_live_for(pages, climb.request.context) ? grow(climb) : kNull;
}

// As live bytes do, scratch stays while work of other devices may reach it.
bool Ladder::evict_scratch_for(std::size_t pages, ScratchEviction::GroupId but) {
  if (parts_.captures.load(std::memory_order_relaxed) != 0 || parts_.driver.has_peers()) {
    return false;
  }
  parts_.stale.remove_passed();
  const std::size_t at_hand = parts_.store.single_pages_at_hand();
  return parts_.eviction.evict(pages - std::min(pages, at_hand), lasting_streams(), but) != 0;
}

DevicePtr Ladder::evict_scratch(Climb& climb) {
  const std::size_t pages = ceil_div(climb.request.size, parts_.store.page_bytes());
  return evict_scratch_for(pages, ScratchEviction::kNoGroup) ? grow(climb) : kNull;
}

}  // namespace ferro
