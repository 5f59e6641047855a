// Steps of a climb that need no new pages: complete frees, waits for other streams.
#include "ferro/core/heap/heap.h"

#include <algorithm>
#include <optional>
#include <vector>

namespace ferro {

DevicePtr Heap::allocate_collected(const Request& request) {
  const HeapLock lock(mutex_);
  collect_locked();
  return take_best_fit(request);
}

// Only in the default pool: a graph replays on any stream, which did not wait.
std::size_t Heap::reclaimable_by_stream_wait() {
  const HeapLock lock(mutex_);
  return pool_ == kDefaultPool ? pending_.bytes_on_events() : 0;
}

DevicePtr Heap::allocate_after_stream_wait(const Request& request, std::size_t at_most) {
  const HeapLock lock(mutex_);
  std::size_t waited_for = 0;
  for (const std::size_t size : {request.size, std::size_t{1}}) {
    while (waited_for < at_most) {
      const std::size_t before = pending_.bytes_on_events();
      const bool progress = complete_ready([&](std::vector<Block*>& ready) FERRO_REQUIRES(mutex_) {
        return pending_.stream_wait_for_one(size, context_.timeline, ready);
      });
      if (!progress) {
        break;
      }
      waited_for += before - pending_.bytes_on_events();
      if (const DevicePtr ptr = take_best_fit(request); ptr != kNull) {
        return ptr;
      }
    }
  }
  return kNull;
}

bool Heap::stream_wait_for_pending() {
  const HeapLock lock(mutex_);
  const auto wait_for_one = [this](std::vector<Block*>& ready) FERRO_REQUIRES(mutex_) {
    return pending_.stream_wait_for_one(0, context_.timeline, ready);
  };
  bool has_freed = false;
  while (stream_lasts() && complete_ready(wait_for_one)) {
    has_freed = true;
  }
  list_free_pages();
  return has_freed;
}

DevicePtr Heap::allocate_waited(const Request& request) {
  DevicePtr ptr = kNull;
  do {
    const HeapLock lock(mutex_);
    ptr = take_best_fit(request);
  } while (ptr == kNull && wait_for_next());
  return ptr;
}

std::size_t Heap::pages_missing_for(const Request& request, GrowFrom from) {
  const HeapLock lock(mutex_);
  collect_locked();
  if (tiling_.free_blocks().best_fit(request.size) != nullptr) {
    return 0;
  }
  const Epoch until = usable_until(request);
  std::vector<Block*> gaps;
  const std::optional<GrowthPlan> planned = plan(request, 0, until, gaps);
  const std::size_t wanted = planned ? planned->pages : ceil_div(request.size, page_bytes_);
  if (keeps_pages() || from == GrowFrom::kStore) {
    return wanted;
  }
  const Block* gap = planned ? gaps[planned->gap] : nullptr;
  return wanted - std::min(wanted, pages_of(movable(wanted, gap, until)));
}

}  // namespace ferro
