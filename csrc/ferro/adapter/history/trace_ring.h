// Keeps the newest entries, up to a capacity. Storage grows with the number of entries, because
// PyTorch's default capacity is 2^63 - 1. Thread-safe.
#pragma once

#include "ferro/base/mutex.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>
#include <vector>

namespace ferro {

template <typename Entry>
class TraceRing {
 public:
  // Keeps the newest entries that fit.
  void set_capacity(std::size_t capacity) FERRO_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    std::rotate(entries_.begin(), entries_.begin() + static_cast<std::ptrdiff_t>(oldest_),
                entries_.end());
    oldest_ = 0;
    capacity_ = std::max<std::size_t>(capacity, 1);
    if (entries_.size() > capacity_) {
      entries_.erase(entries_.begin(), entries_.end() - static_cast<std::ptrdiff_t>(capacity_));
    }
  }
  void clear() FERRO_EXCLUDES(mutex_) {
    std::vector<Entry> gone;
    const MutexLock lock(mutex_);
    gone.swap(entries_);
    oldest_ = 0;
  }
  void add(Entry&& entry) FERRO_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    if (entries_.size() < capacity_) {
      entries_.push_back(std::move(entry));
      return;
    }
    entries_[oldest_] = std::move(entry);
    oldest_ = oldest_ + 1 < entries_.size() ? oldest_ + 1 : 0;
  }
  // Oldest first.
  std::vector<Entry> read() const FERRO_EXCLUDES(mutex_) {
    return read<Entry>([](const Entry& entry) { return entry; });
  }
  // The same, as converted by `convert`.
  template <typename Read, typename Convert>
  std::vector<Read> read(Convert convert) const FERRO_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    const auto middle = entries_.begin() + static_cast<std::ptrdiff_t>(oldest_);
    std::vector<Read> ordered;
    ordered.reserve(entries_.size());
    std::transform(middle, entries_.end(), std::back_inserter(ordered), convert);
    std::transform(entries_.begin(), middle, std::back_inserter(ordered), convert);
    return ordered;
  }

 private:
  mutable Mutex mutex_;
  std::size_t capacity_ FERRO_GUARDED_BY(mutex_) = 1;
  std::vector<Entry> entries_ FERRO_GUARDED_BY(mutex_);
  std::size_t oldest_ FERRO_GUARDED_BY(mutex_) = 0;
};

}  // namespace ferro
