#include "ferro/core/pages/stale_mappings.h"

#include <algorithm>
#include <utility>

namespace ferro {

StaleMappings::Queue& StaleMappings::queue_of(std::optional<StreamId> stream) {
  const auto found = std::ranges::find(queues_, stream, &Queue::stream);
  return found != queues_.end() ? *found : queues_.emplace_back(Queue{stream, {}});
}

void StaleMappings::add(StaleMappingRef mapping) {
  {
    const MutexLock lock(mutex_);
    queue_of(mapping->fence->stream()).mappings.push_back(std::move(mapping));
    count_.fetch_add(1, std::memory_order_relaxed);
  }
  if (Remover* remover = remover_.load(std::memory_order_acquire)) {
    remover->on_added();
  }
}

// From `queue` on, which is moved past the queues whose first mapping has not passed.
StaleMappings::Unmapped StaleMappings::unmap_from(std::size_t& queue, Extent extent,
                                                  std::atomic<std::uint64_t>& counter) {
  StaleMappingRef mapping;
  {
    const MutexLock lock(mutex_);
    if (queues_.empty()) {
      return Unmapped::kNoneLeft;
    }
    while (queue < queues_.size() && !queues_[queue].mappings.front()->fence->has_passed(driver_)) {
      ++queue;
    }
    if (queue == queues_.size()) {
      return Unmapped::kNonePassed;
    }
    mapping = queues_[queue].mappings.front();
  }
  const bool in_parts = extent == Extent::kPart && !mapping->parts.empty();
  const std::size_t bytes = in_parts ? mapping->parts.back() : mapping->bytes;
  if (!driver_.unmap(mapping->begin, bytes)) {
    refused_.fetch_add(1, std::memory_order_relaxed);
    return Unmapped::kRefused;
  }
  mapping->begin = mapping->begin + bytes;
  mapping->bytes -= bytes;
  if (mapping->bytes != 0) {
    mapping->parts.pop_back();
    return Unmapped::kSome;
  }
  counter.fetch_add(1, std::memory_order_relaxed);
  mapping->removed.store(true, std::memory_order_release);
  const MutexLock lock(mutex_);
  untold_.push_back(std::move(mapping));
  std::deque<StaleMappingRef>& mappings = queues_[queue].mappings;
  mappings.pop_front();
  if (mappings.empty()) {
    queues_.erase(queues_.begin() + static_cast<std::ptrdiff_t>(queue));
  }
  return Unmapped::kSome;
}

StaleMappings::Unmapped StaleMappings::unmap_next() {
  const MutexLock removal(removal_mutex_);
  std::size_t queue = 0;
  return unmap_from(queue, Extent::kPart, by_remover_);
}

std::size_t StaleMappings::remove_passed() {
  if (count() == 0) {
    return 0;
  }
  {
    const MutexLock removal(removal_mutex_);
    std::size_t queue = 0;
    while (unmap_from(queue, Extent::kWhole, by_requests_) == Unmapped::kSome) {
    }
  }
  return notify_owners();
}

std::size_t StaleMappings::notify_owners() {
  if (count() == 0) {
    return 0;
  }
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
  return {by_requests_.load(std::memory_order_relaxed), by_remover_.load(std::memory_order_relaxed),
          refused_.load(std::memory_order_relaxed)};
}

}  // namespace ferro
