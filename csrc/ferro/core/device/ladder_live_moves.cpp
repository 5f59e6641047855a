// The last step before an error: idle graphs lend their scratch.
#include "ferro/core/device/ladder.h"

#include <algorithm>
#include <vector>

namespace ferro {

std::vector<StreamId> Ladder::lasting_streams() {
  std::vector<StreamId> streams;
  for (Heap* heap : parts_.pools.heaps_of(kDefaultPool)) {
    if (is_paged(heap->kind()) && heap->stream_lasts()) {
      streams.push_back(heap->stream());
    }
  }
  return streams;
}

// Scratch stays while work of other devices may reach it.
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
