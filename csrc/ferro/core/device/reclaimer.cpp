#include "ferro/core/device/reclaimer.h"

#include <algorithm>

namespace ferro {

void Reclaimer::empty_cache(const CallContext& context) {
  // Held pools keep their memory, because their graphs may run for a long time.
  const std::vector<Heap*> givers = parts_.pools.heaps_to_empty();
  wait_for_frees(givers);
  empty(givers, surplus_pages(givers), context);
  parts_.imports.collect();
}

void Reclaimer::empty_all() {
  empty_cache(nullptr);
  std::vector<Heap*> givers = parts_.pools.all_heaps();
  std::erase_if(givers, [](const Heap* heap) { return heap->keeps_pages(); });
  wait_for_frees(givers);
  empty(givers, kAllPages, nullptr);
}

void Reclaimer::empty_gone_pools() {
  std::vector<Heap*> givers = parts_.pools.heaps_to_empty();
  std::erase_if(givers, [](const Heap* heap) { return heap->pool() == kDefaultPool; });
  wait_for_frees(givers);
  for (Heap* heap : givers) {
    empty_heap(*heap, kAllPages, nullptr);
    heap->release_empty_spans();
  }
  parts_.pools.drop_unused();
}

// Returns up to `surplus` pages: free ones of the heaps, then of the store.
void Reclaimer::empty(const std::vector<Heap*>& givers, std::size_t surplus,
                      const CallContext& context) {
  for (Heap* heap : givers) {
    surplus -= std::min(surplus, empty_heap(*heap, surplus, context));
    heap->release_empty_spans();
  }
  if (!parts_.observer.is_within_climb()) {
    parts_.pools.drop_unused();
  }
  trim(surplus);
}

void Reclaimer::empty_pool(const PoolId& id, const CallContext& context) {
  const std::vector<Heap*> heaps = parts_.pools.heaps_of(id);
  wait_for_frees(heaps);
  for (Heap* heap : heaps) {
    empty_heap(*heap, kAllPages, context);
  }
  if (!parts_.observer.is_within_climb()) {
    parts_.pools.drop_if_unused(id);
  }
}

void Reclaimer::empty_idle_pool(const PoolId& id) {
  if (parts_.captures.load() != 0 || parts_.observer.is_within_climb() ||
      (parts_.graphs != nullptr && !parts_.graphs->prepare_release(id))) {
    return;
  }
  for (Heap* heap : parts_.pools.heaps_of(id)) {
    trim(heap->release_pages(kAllPages, ReleaseAfter::kIdle, nullptr));
  }
  parts_.pools.drop_if_unused(id);
}

void Reclaimer::wait_for_frees(const std::vector<Heap*>& heaps) {
  for (Heap* heap : heaps) {
    heap->wait_for_pending();
  }
  // A capture, also on another device or of a library, forbids points. Then memory freed since the
  // last point is returned after this wait, as by the native allocator. An unused device stays
  // untouched, and one without free memory is not waited for.
  if (parts_.driver.context_if_created() != nullptr && !parts_.timeline.record() &&
      std::ranges::any_of(heaps, [](Heap* heap) { return heap->free_pages() != 0; })) {
    parts_.timeline.wait_during_captures();
  }
  // Frees that waited may be of scratch.
  const bool may_collect = parts_.captures.load() == 0 && !parts_.observer.is_within_climb();
  if (may_collect && parts_.graphs != nullptr) {
    parts_.graphs->collect();
  }
}

std::size_t Reclaimer::empty_heap(Heap& heap, std::size_t pages, const CallContext& context) {
  const std::size_t released = release_pages_of(heap, pages, context);
  trim(released);
  return released;
}

std::size_t Reclaimer::release_pages_of(Heap& heap, std::size_t pages, const CallContext& context) {
  const bool may_leave = heap.pool() == kDefaultPool || !parts_.observer.is_within_climb();
  if (!may_leave || (parts_.graphs != nullptr && !parts_.graphs->prepare_release(heap.pool()))) {
    return 0;
  }
  const std::size_t released = heap.release_pages(pages, ReleaseAfter::kHostWait, context);
  // Exported handles count until their mapping is removed.
  parts_.stale.remove_passed();
  return released;
}

std::size_t Reclaimer::trim(std::size_t pages) {
  parts_.stale.remove_passed();
  return parts_.store.trim(pages);
}

// The free pages beyond those that the settings keep; kAllPages if they keep none.
std::size_t Reclaimer::surplus_pages(const std::vector<Heap*>& givers) {
  if (parts_.config.idle_bytes == 0) {
    return kAllPages;
  }
  std::size_t free_pages = parts_.store.counts().idle;
  for (Heap* heap : givers) {
    free_pages += heap->free_pages();
  }
  return free_pages - std::min(free_pages, parts_.config.idle_bytes / parts_.store.page_bytes());
}

std::size_t Reclaimer::release_addresses() {
  parts_.stale.remove_passed();
  std::size_t bytes = 0;
  for (Heap* heap : parts_.pools.all_heaps()) {
    bytes += heap->release_empty_spans();
  }
  return bytes;
}

}  // namespace ferro
