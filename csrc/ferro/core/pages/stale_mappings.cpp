#include "ferro/core/pages/stale_mappings.h"

#include <utility>

namespace ferro {

void StaleMappings::add(StaleMappingRef mapping) {
  const MutexLock lock(mutex_);
  const Epoch freed = mapping->freed;
  // Mappings of equal epochs keep the order in which they were added.
  mapped_.emplace(freed, std::move(mapping));
  count_.fetch_add(1, std::memory_order_relaxed);
}

bool StaleMappings::remove_first(Epoch passed) {
  StaleMappingRef mapping;
  {
    const MutexLock lock(mutex_);
    if (mapped_.empty() || mapped_.begin()->first > passed) {
      return false;
    }
    mapping = mapped_.begin()->second;
  }
  if (!driver_.unmap(mapping->begin, mapping->bytes)) {
    refusals_.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  removals_.fetch_add(1, std::memory_order_relaxed);
  mapping->removed.store(true, std::memory_order_release);
  const MutexLock lock(mutex_);
  // Another thread may have added one of an earlier epoch meanwhile.
  auto entry = mapped_.lower_bound(mapping->freed);
  while (entry->second != mapping) {
    ++entry;
  }
  mapped_.erase(entry);
  removed_.push_back(std::move(mapping));
  return true;
}

std::size_t StaleMappings::remove_passed() {
  if (count() == 0) {
    return 0;
  }
  observer_.deliver_within_climb();
  const Epoch passed = timeline_.update();
  while (remove_first(passed)) {
  }
  return notify_owners();
}

std::size_t StaleMappings::notify_owners() {
  std::vector<StaleMappingRef> removed;
  {
    const MutexLock lock(mutex_);
    removed.swap(removed_);
  }
  for (const StaleMappingRef& mapping : removed) {
    mapping->owner->on_mapping_removed(mapping->block);
  }
  count_.fetch_sub(removed.size(), std::memory_order_release);
  return removed.size();
}

StaleMappings::Counts StaleMappings::counts() const {
  return {removals_.load(std::memory_order_relaxed), refusals_.load(std::memory_order_relaxed)};
}

}  // namespace ferro
