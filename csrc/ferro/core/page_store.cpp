#include "ferro/core/page_store.h"

#include <algorithm>
#include <utility>

namespace ferro {

std::size_t pages_of_handle(std::span<const PageHandle> pages) {
  const auto next = std::ranges::find_if(
      pages, [first = pages.front()](PageHandle page) { return page != first; });
  return static_cast<std::size_t>(next - pages.begin());
}

TakeResult PageStore::take(std::size_t count, Fit fit, std::vector<PageHandle>& out) {
  const MutexLock lock(mutex_);
  std::size_t usable = idle_pages_;
  std::size_t too_large = 0;
  if (fit == Fit::kExactly) {
    const std::size_t fitting = bring_to_end(count);
    too_large = idle_.size() - fitting;
    usable = 0;
    for (std::size_t i = too_large; i < idle_.size(); ++i) {
      usable += idle_[i].pages;
    }
  }
  const std::size_t missing = count - std::min(count, usable);
  TakeResult result = create(missing);
  if (result != TakeResult::kOk && too_large != 0 && release_first(too_large) != 0) {
    result = create(missing);
  }
  if (result == TakeResult::kOk) {
    take_last(count, out);
  }
  return result;
}

// Appends new handles of `count` pages together to the idle ones.
TakeResult PageStore::create(std::size_t count) {
  if (const TakeResult room = check_limits(count * page_bytes_); room != TakeResult::kOk) {
    return room;
  }
  NewPages pages{count, count, counts_.held};
  if (count > 1) {
    // Asking first is cheaper than creating some thousand pages before the driver refuses the last.
    const std::size_t on_device = free_on_device();
    if (on_device / page_bytes_ < count) {
      return TakeResult::kOutOfMemory;
    }
    pages.room = std::min(on_device, limit_ - std::min(limit_, used_bytes())) / page_bytes_;
  }
  const std::vector<std::size_t> sizes = plan_handles(pages, handles_, page_bytes_);
  idle_.reserve(idle_.size() + sizes.size());
  const std::size_t idle_before = idle_pages_;
  try {
    for (const std::size_t size : sizes) {
      const std::optional<PageHandle> created = driver_.create(size * page_bytes_);
      if (!created) {
        release_down_to(idle_before);
        return TakeResult::kOutOfMemory;
      }
      idle_.push_back({*created, size});
      idle_pages_ += size;
      counts_.created += size;
      counts_.held += size;
    }
  } catch (...) {
    release_down_to(idle_before);
    throw;
  }
  raise_peaks();
  return TakeResult::kOk;
}

// Moves handles of at most `count` pages together behind the other idle ones; how many there are.
std::size_t PageStore::bring_to_end(std::size_t count) {
  std::vector<Run> others;
  std::vector<Run> fitting;
  for (auto run = idle_.rbegin(); run != idle_.rend(); ++run) {
    const bool fits = run->pages <= count;
    (fits ? fitting : others).push_back(*run);
    count -= fits ? run->pages : 0;
  }
  idle_.assign(others.rbegin(), others.rend());
  idle_.insert(idle_.end(), fitting.rbegin(), fitting.rend());
  return fitting.size();
}

TakeResult PageStore::check_limits(std::size_t more) const {
  const std::size_t used = used_bytes();
  if (more > limit_ - std::min(limit_, used)) {
    return TakeResult::kOverLimit;
  }
  if (more > rejection_limit_ - std::min(rejection_limit_, used)) {
    return TakeResult::kRejected;
  }
  // The driver's answer is what it cannot give; without headroom it is asked by trying.
  const bool crowds_others = headroom_ != 0 && more != 0 && more > free_on_device();
  return crowds_others ? TakeResult::kOutOfMemory : TakeResult::kOk;
}

// But for the headroom.
std::size_t PageStore::free_on_device() const {
  const std::size_t free = driver_.memory_info().free_bytes;
  return free - std::min(free, headroom_);
}

void PageStore::raise_peaks() {
  counts_.peak_held = std::max(counts_.peak_held, counts_.held);
  counts_.peak_bytes = std::max(counts_.peak_bytes, used_bytes());
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
  while (!idle_.empty() && idle_.back().pages <= idle_pages_ - std::min(idle_pages_, idle_left) &&
         try_release(idle_.back())) {
    released += idle_.back().pages;
    idle_pages_ -= idle_.back().pages;
    idle_.pop_back();
  }
  return released;
}

// Of the first so many idle handles; the number of pages released.
std::size_t PageStore::release_first(std::size_t handles) {
  const std::size_t before = idle_pages_;
  std::vector<Run> kept;
  for (std::size_t i = 0; i < idle_.size(); ++i) {
    if (i < handles && try_release(idle_[i])) {
      idle_pages_ -= idle_[i].pages;
    } else {
      kept.push_back(idle_[i]);
    }
  }
  idle_ = std::move(kept);
  return before - idle_pages_;
}

void PageStore::take_last(std::size_t count, std::vector<PageHandle>& out) {
  std::size_t pages = 0;
  auto first = idle_.end();
  while (pages < count) {
    pages += (--first)->pages;
  }
  out.reserve(out.size() + pages);
  for (auto run = first; run != idle_.end(); ++run) {
    out.insert(out.end(), run->pages, run->handle);
  }
  idle_.erase(first, idle_.end());
  idle_pages_ -= pages;
}

bool PageStore::take_idle(std::size_t count, std::vector<PageHandle>& out) {
  const MutexLock lock(mutex_);
  if (idle_pages_ < count) {
    return false;
  }
  take_last(count, out);
  return true;
}

std::size_t PageStore::takeable() const {
  const MutexLock lock(mutex_);
  return idle_pages_;
}

void PageStore::put(std::span<const PageHandle> pages) {
  const MutexLock lock(mutex_);
  idle_pages_ += pages.size();
  while (!pages.empty()) {
    idle_.push_back({pages.front(), pages_of_handle(pages)});
    pages = pages.subspan(idle_.back().pages);
  }
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
  return release_down_to(idle_pages_ - std::min(count, idle_pages_));
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
  counts.idle = idle_pages_;
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
