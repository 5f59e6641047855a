#include "ferro/core/pages/stale_mappings.h"

#include <algorithm>
#include <utility>

namespace ferro {

StaleMappings::Queue& StaleMappings::queue_of(std::optional<StreamId> stream) {
  const auto found = std::ranges::find(queues_, stream, &Queue::stream);
  return found != queues_.end() ? *found : queues_.emplace_back(Queue{stream, {}});
}

void StaleMappings::add(StaleMappingRef mapping) {
  std::function<void()> on_added;
  {
    const MutexLock lock(mutex_);
    queue_of(mapping->fence->stream()).mappings.push_back(std::move(mapping));
    count_.fetch_add(1, std::memory_order_relaxed);
    on_added = on_added_;
  }
  if (on_added) {
    on_added();
  }
}

// From `queue` on, which is moved past the queues whose first mapping has not passed.
StaleMappingRef StaleMappings::take_passed(std::size_t& queue) {
  const MutexLock lock(mutex_);
  for (; queue < queues_.size(); ++queue) {
    std::deque<StaleMappingRef>& mappings = queues_[queue].mappings;
    if (mappings.front()->fence->has_passed(driver_)) {
      StaleMappingRef first = std::move(mappings.front());
      mappings.pop_front();
      if (mappings.empty()) {
        queues_.erase(queues_.begin() + static_cast<std::ptrdiff_t>(queue));
      }
      count_.fetch_sub(1, std::memory_order_relaxed);
      return first;
    }
  }
  return nullptr;
}

void StaleMappings::put_back(StaleMappingRef mapping) {
  const MutexLock lock(mutex_);
  queue_of(mapping->fence->stream()).mappings.push_front(std::move(mapping));
  count_.fetch_add(1, std::memory_order_relaxed);
}

std::size_t StaleMappings::remove_passed(std::size_t at_most) {
  if (count() == 0) {
    return 0;
  }
  const MutexLock removal(removal_mutex_);
  std::size_t removed = 0;
  std::size_t queue = 0;
  while (removed < at_most) {
    StaleMappingRef mapping = take_passed(queue);
    if (mapping == nullptr) {
      break;
    }
    if (!driver_.unmap(mapping->begin, mapping->bytes)) {
      put_back(std::move(mapping));
      break;
    }
    mapping->owner->on_mapping_removed(mapping->block);
    mapping->removed.store(true, std::memory_order_release);
    ++removed;
  }
  return removed;
}

void StaleMappings::set_listener(std::function<void()> on_added) {
  const MutexLock lock(mutex_);
  on_added_ = std::move(on_added);
}

}  // namespace ferro
