#include "ferro/core/pages/stale_mappings.h"

#include <algorithm>
#include <utility>

namespace ferro {

StaleMappings::Queue& StaleMappings::queue_of(std::optional<StreamId> stream) {
  const auto found = std::ranges::find(queues_, stream, &Queue::stream);
  return found != queues_.end() ? *found : queues_.emplace_back(Queue{stream, {}});
}

void StaleMappings::add(StaleMappingRef mapping) {
  const MutexLock lock(mutex_);
  queue_of(mapping->fence->stream()).mappings.push_back(std::move(mapping));
  count_.fetch_add(1, std::memory_order_relaxed);
}

// From `queue` on, which is moved past the queues whose first mapping has not passed.
bool StaleMappings::unmap_from(std::size_t& queue) {
  StaleMappingRef mapping;
  {
    const MutexLock lock(mutex_);
    while (queue < queues_.size() && !queues_[queue].mappings.front()->fence->has_passed(driver_)) {
      ++queue;
    }
    if (queue == queues_.size()) {
      return false;
    }
    mapping = queues_[queue].mappings.front();
  }
  if (!driver_.unmap(mapping->begin, mapping->bytes)) {
    refused_.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  by_requests_.fetch_add(1, std::memory_order_relaxed);
  mapping->removed.store(true, std::memory_order_release);
  const MutexLock lock(mutex_);
  untold_.push_back(std::move(mapping));
  std::deque<StaleMappingRef>& mappings = queues_[queue].mappings;
  mappings.pop_front();
  if (mappings.empty()) {
    queues_.erase(queues_.begin() + static_cast<std::ptrdiff_t>(queue));
  }
  return true;
}

std::size_t StaleMappings::remove_passed() {
  if (count() == 0) {
    return 0;
  }
  std::size_t queue = 0;
  while (unmap_from(queue)) {
  }
  return notify_owners();
}

std::size_t StaleMappings::notify_owners() {
  std::vector<StaleMappingRef> untold;
  {
    const MutexLock lock(mutex_);
    untold.swap(untold_);
  }
  for (const StaleMappingRef& mapping : untold) {
    mapping->owner->on_mapping_removed(mapping->block);
  }
  count_.fetch_sub(untold.size(), std::memory_order_release);
  return untold.size();
}

StaleMappings::Counts StaleMappings::counts() const {
  return {by_requests_.load(std::memory_order_relaxed), refused_.load(std::memory_order_relaxed)};
}

}  // namespace ferro
