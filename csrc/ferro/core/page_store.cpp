#include "ferro/core/page_store.h"

#include <algorithm>

namespace ferro {

TakeResult PageStore::take(std::size_t count, std::vector<PageHandle>& out) {
  const MutexLock lock(mutex_);
  const std::size_t missing = count - std::min(count, idle_.size());
  if (const TakeResult room = check_limits(missing * page_bytes_); room != TakeResult::kOk) {
    return room;
  }
  // Asking first is cheaper than creating some thousand pages before the driver refuses the last.
  if (missing > 1 && driver_.memory_info().free_bytes / page_bytes_ < missing) {
    return TakeResult::kOutOfMemory;
  }
  out.reserve(out.size() + count);
  idle_.reserve(idle_.size() + missing);
  const std::size_t idle_before = idle_.size();
  try {
    while (idle_.size() < idle_before + missing) {
      const std::optional<PageHandle> created = driver_.create(page_bytes_);
      if (!created) {
        release_down_to(idle_before);
        return TakeResult::kOutOfMemory;
      }
      idle_.push_back(*created);
      ++counts_.created;
      ++counts_.held;
    }
  } catch (...) {
    release_down_to(idle_before);
    throw;
  }
  raise_peaks();
  take_back(count, out);
  return TakeResult::kOk;
}

TakeResult PageStore::check_limits(std::size_t more) const {
  const std::size_t used = counts_.held * page_bytes_ + counts_.charged_bytes;
  if (more > limit_ - std::min(limit_, used)) {
    return TakeResult::kOverLimit;
  }
  const bool rejected = more > rejection_limit_ - std::min(rejection_limit_, used);
  return rejected ? TakeResult::kRejected : TakeResult::kOk;
}

void PageStore::raise_peaks() {
  counts_.peak_held = std::max(counts_.peak_held, counts_.held);
  counts_.peak_bytes =
      std::max(counts_.peak_bytes, counts_.held * page_bytes_ + counts_.charged_bytes);
}

TakeResult PageStore::charge(std::size_t bytes) {
  const MutexLock lock(mutex_);
  const TakeResult room = check_limits(bytes);
  counts_.charged_bytes += room == TakeResult::kOk ? bytes : 0;
  return room;
}

void PageStore::settle() {
  const MutexLock lock(mutex_);
  raise_peaks();
}

void PageStore::discharge(std::size_t bytes) {
  const MutexLock lock(mutex_);
  counts_.charged_bytes -= bytes;
}

std::size_t PageStore::release_down_to(std::size_t idle_left) {
  std::size_t released = 0;
  while (idle_.size() > idle_left && driver_.release(idle_.back())) {
    idle_.pop_back();
    --counts_.held;
    ++counts_.released;
    ++released;
  }
  return released;
}

void PageStore::take_back(std::size_t count, std::vector<PageHandle>& out) {
  out.insert(out.end(), idle_.end() - static_cast<std::ptrdiff_t>(count), idle_.end());
  idle_.resize(idle_.size() - count);
}

bool PageStore::take_idle(std::size_t count, std::vector<PageHandle>& out) {
  const MutexLock lock(mutex_);
  if (idle_.size() < count) {
    return false;
  }
  take_back(count, out);
  return true;
}

std::size_t PageStore::takeable() const {
  const MutexLock lock(mutex_);
  return idle_.size();
}

void PageStore::put(std::span<const PageHandle> pages) {
  const MutexLock lock(mutex_);
  idle_.insert(idle_.end(), pages.begin(), pages.end());
}

TakeResult PageStore::take_run(std::size_t count, PageHandle* out) {
  const MutexLock lock(mutex_);
  if (const TakeResult room = check_limits(count * page_bytes_); room != TakeResult::kOk) {
    return room;
  }
  const std::optional<PageHandle> created = driver_.create(count * page_bytes_);
  if (!created) {
    return TakeResult::kOutOfMemory;
  }
  counts_.created += count;
  counts_.held += count;
  raise_peaks();
  *out = *created;
  return TakeResult::kOk;
}

bool PageStore::try_release(const Run& run) {
  if (!driver_.release(run.handle)) {
    return false;
  }
  counts_.held -= run.pages;
  counts_.released += run.pages;
  return true;
}

void PageStore::release_run(PageHandle handle, std::size_t count) {
  const MutexLock lock(mutex_);
  if (const Run run{handle, count}; !try_release(run)) {
    refused_.push_back(run);
  }
}

std::size_t PageStore::trim(std::size_t count) {
  const MutexLock lock(mutex_);
  std::erase_if(refused_,
                [this](const Run& run) FERRO_REQUIRES(mutex_) { return try_release(run); });
  return release_down_to(idle_.size() - std::min(count, idle_.size()));
}

void PageStore::set_limit(std::size_t bytes) {
  const MutexLock lock(mutex_);
  limit_ = bytes;
}

void PageStore::set_rejection_limit(std::size_t bytes) {
  const MutexLock lock(mutex_);
  rejection_limit_ = bytes;
}

std::size_t PageStore::limit() const {
  const MutexLock lock(mutex_);
  return limit_;
}

PageCounts PageStore::counts() const {
  const MutexLock lock(mutex_);
  PageCounts counts = counts_;
  counts.idle = idle_.size();
  for (const Run& run : refused_) {
    counts.idle += run.pages;
  }
  return counts;
}

void PageStore::reset_peak() {
  const MutexLock lock(mutex_);
  counts_.peak_held = 0;
  counts_.peak_bytes = 0;
  raise_peaks();
}

}  // namespace ferro
