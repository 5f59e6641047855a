#include "ferro/core/pages/page_store.h"

#include <algorithm>
#include <utility>

namespace ferro {

TakeResult PageStore::take(const PageRequest& request, std::vector<StoredHandle>& out) {
  const MutexLock lock(mutex_);
  complete_unmapped();
  std::size_t usable = cached_pages_;
  std::size_t too_large = 0;
  if (request.fit == Fit::kExactly) {
    const std::size_t fitting = move_to_end(request.pages, request.largest);
    too_large = cached_.size() - fitting;
    usable = pages_in(std::span(cached_).subspan(too_large));
  }
  std::size_t leaving_pages = 0;
  const std::vector<std::size_t> leaving =
      choose_leaving(request, request.pages - std::min(request.pages, usable), &leaving_pages);
  const std::size_t missing = request.pages - std::min(request.pages, usable + leaving_pages);
  if (missing != 0) {
    if (!request.may_create) {
      return TakeResult::kTooFew;
    }
    TakeResult result = create(missing, request.largest);
    if (result != TakeResult::kOk && too_large != 0 && release_first(too_large) != 0) {
      result = create(missing, request.largest);
    }
    if (result != TakeResult::kOk) {
      return result;
    }
  }
  // A redundant wait is harmless, and no later step can fail. The latest epoch covers the others.
  Epoch latest = kUnused;
  std::optional<StreamId> waiter;
  for (const std::size_t i : leaving) {
    if (!is_ready(leaving_[i], request)) {
      latest = std::max(latest, leaving_[i].freed());
      waiter = waiter_for(leaving_[i], request);
    }
  }
  if (waiter && !timeline_.order_before(latest, *waiter)) {
    return TakeResult::kTooFew;
  }
  for (const std::size_t i : leaving) {
    const bool own = leaving_[i].mapping->owner == request.taker;
    counts_.transferred += own ? 0 : leaving_[i].range.pages;
  }
  take_last(request.pages - std::min(request.pages, leaving_pages), out);
  take_leaving(leaving, out);
  return TakeResult::kOk;
}

std::size_t PageStore::available(const PageRequest& request) {
  const MutexLock lock(mutex_);
  complete_unmapped();
  const std::size_t cached = std::min(cached_pages_, request.pages);
  std::size_t leaving = 0;
  choose_leaving(request, request.pages - cached, &leaving);
  return std::min(cached + leaving, request.pages);
}

std::optional<Epoch> PageStore::epoch_to_wait_for() {
  const MutexLock lock(mutex_);
  std::optional<Epoch> first;
  for (const StoredHandle& handle : leaving_) {
    if (handle.is_mapped() && !timeline_.has_passed(handle.freed())) {
      first = std::min(first.value_or(handle.freed()), handle.freed());
    }
  }
  return first;
}

// Whether the handle needs no wait of the requester's stream.
bool PageStore::is_ready(const StoredHandle& handle, const PageRequest& request) const {
  return handle.freed() <= request.behind || timeline_.has_passed(handle.freed());
}

// The stream that may wait for the handle. A request names at most one stream.
std::optional<StreamId> PageStore::waiter_for(const StoredHandle& handle,
                                              const PageRequest& request) {
  const bool is_own = request.taker != nullptr && handle.mapping->owner == request.taker;
  return request.waits || !is_own ? request.waits : request.waits_for_own;
}

// Returns ascending indices of leaving handles that the request may take, until they have `wanted`
// pages or more. Handles that need no wait come first, and the most recent before older ones.
std::vector<std::size_t> PageStore::choose_leaving(const PageRequest& request, std::size_t wanted,
                                                   std::size_t* pages) {
  std::vector<std::size_t> chosen;
  std::vector<std::size_t> after_a_wait;
  const auto choose = [&](std::size_t i) FERRO_REQUIRES(mutex_) {
    const std::size_t count = leaving_[i].range.pages;
    if (*pages < wanted &&
        (request.fit == Fit::kAtLeast || (*pages + count <= wanted && count <= request.largest))) {
      chosen.push_back(i);
      *pages += count;
    }
  };
  for (std::size_t i = leaving_.size(); i-- > 0 && *pages < wanted;) {
    if (is_ready(leaving_[i], request)) {
      choose(i);
    } else if (waiter_for(leaving_[i], request)) {
      after_a_wait.push_back(i);
    }
  }
  for (std::size_t i = 0; i < after_a_wait.size(); ++i) {
    choose(after_a_wait[i]);
  }
  std::ranges::sort(chosen);
  return chosen;
}

void PageStore::take_leaving(std::span<const std::size_t> chosen, std::vector<StoredHandle>& out) {
  if (chosen.empty()) {
    return;
  }
  std::vector<StoredHandle> kept;
  std::size_t next = 0;
  for (std::size_t i = 0; i < leaving_.size(); ++i) {
    const bool is_chosen = next < chosen.size() && chosen[next] == i;
    next += is_chosen ? 1 : 0;
    (is_chosen ? out : kept).push_back(std::move(leaving_[i]));
  }
  leaving_ = std::move(kept);
}

// Handles whose mapping is removed become cached, or go to the driver if they were shared.
void PageStore::complete_unmapped() {
  std::erase_if(leaving_, [this](const StoredHandle& handle) FERRO_REQUIRES(mutex_) {
    if (handle.is_mapped()) {
      return false;
    }
    cached_.push_back(handle.range);
    cached_pages_ += handle.range.pages;
    return true;
  });
  std::erase_if(retired_, [this](const StoredHandle& handle) FERRO_REQUIRES(mutex_) {
    return !handle.is_mapped() && try_release(handle.range);
  });
}

// Appends new handles with `count` pages in all to the cached ones.
TakeResult PageStore::create(std::size_t count, std::size_t largest) {
  if (const TakeResult room = check_limits(count * page_bytes_); room != TakeResult::kOk) {
    return room;
  }
  NewPages pages{count, count, counts_.held};
  if (count > 1) {
    // A query is cheaper than creating thousands of pages before the driver refuses the last.
    const std::size_t on_device = free_on_device();
    if (on_device / page_bytes_ < count) {
      return TakeResult::kOutOfMemory;
    }
    pages.room = std::min(on_device, limit_ - std::min(limit_, used_bytes())) / page_bytes_;
  }
  HandleRules rules = handles_;
  rules.max_bytes = std::min(rules.max_bytes / page_bytes_, largest) * page_bytes_;
  const std::vector<std::size_t> sizes = plan_handles(pages, rules, page_bytes_);
  cached_.reserve(cached_.size() + sizes.size());
  const std::size_t cached_before = cached_pages_;
  try {
    for (const std::size_t size : sizes) {
      const std::optional<PageHandle> created = driver_.create(size * page_bytes_);
      if (!created) {
        release_down_to(cached_before);
        return TakeResult::kOutOfMemory;
      }
      cached_.push_back({*created, size});
      cached_pages_ += size;
      counts_.created += size;
      counts_.held += size;
    }
  } catch (...) {
    release_down_to(cached_before);
    throw;
  }
  raise_peaks();
  return TakeResult::kOk;
}

// Moves handles with at most `count` pages in all, and at most `largest` each, to the end of the
// cached ones. Returns their number.
std::size_t PageStore::move_to_end(std::size_t count, std::size_t largest) {
  std::vector<HandleRange> others;
  std::vector<HandleRange> fitting;
  for (auto range = cached_.rbegin(); range != cached_.rend(); ++range) {
    const bool fits = range->pages <= std::min(count, largest);
    (fits ? fitting : others).push_back(*range);
    count -= fits ? range->pages : 0;
  }
  cached_.assign(others.rbegin(), others.rend());
  cached_.insert(cached_.end(), fitting.rbegin(), fitting.rend());
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
  // Without headroom the driver is not queried: a failure of cuMemCreate shows the lack of memory.
  const bool crowds_others = headroom_ != 0 && more != 0 && more > free_on_device();
  return crowds_others ? TakeResult::kOutOfMemory : TakeResult::kOk;
}

// The free bytes of the device beyond the headroom.
std::size_t PageStore::free_on_device() const {
  const std::size_t free = driver_.memory_info().free_bytes;
  return free - std::min(free, headroom_);
}

void PageStore::raise_peaks() { counts_.peak_held = std::max(counts_.peak_held, counts_.held); }

void PageStore::release_down_to(std::size_t cached_left) {
  while (!cached_.empty() &&
         cached_.back().pages <= cached_pages_ - std::min(cached_pages_, cached_left) &&
         try_release(cached_.back())) {
    cached_pages_ -= cached_.back().pages;
    cached_.pop_back();
  }
}

// Releases the first `handles` cached handles. Returns the number of pages released.
std::size_t PageStore::release_first(std::size_t handles) {
  const std::size_t before = cached_pages_;
  std::vector<HandleRange> kept;
  for (std::size_t i = 0; i < cached_.size(); ++i) {
    if (i < handles && try_release(cached_[i])) {
      cached_pages_ -= cached_[i].pages;
    } else {
      kept.push_back(cached_[i]);
    }
  }
  cached_ = std::move(kept);
  return before - cached_pages_;
}

void PageStore::take_last(std::size_t count, std::vector<StoredHandle>& out) {
  std::size_t pages = 0;
  auto first = cached_.end();
  while (pages < count) {
    pages += (--first)->pages;
  }
  for (auto range = first; range != cached_.end(); ++range) {
    out.push_back({*range, nullptr});
  }
  cached_.erase(first, cached_.end());
  cached_pages_ -= pages;
}

void PageStore::put(std::span<const StoredHandle> handles) {
  const MutexLock lock(mutex_);
  for (const StoredHandle& handle : handles) {
    if (handle.is_mapped()) {
      leaving_.push_back(handle);
    } else {
      cached_.push_back(handle.range);
      cached_pages_ += handle.range.pages;
    }
  }
}

void PageStore::put_cached(std::span<const HandleRange> handles) {
  const MutexLock lock(mutex_);
  cached_.insert(cached_.end(), handles.begin(), handles.end());
  cached_pages_ += pages_in(handles);
}

void PageStore::release(std::span<const HandleRange> handles) {
  const MutexLock lock(mutex_);
  for (const HandleRange& handle : handles) {
    if (!try_release(handle)) {
      cached_.push_back(handle);
      cached_pages_ += handle.pages;
    }
  }
}

TakeResult PageStore::create_one(std::size_t count, PageHandle* out) {
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

bool PageStore::try_release(const HandleRange& handle) {
  if (!driver_.release(handle.handle)) {
    return false;
  }
  counts_.held -= handle.pages;
  counts_.released += handle.pages;
  return true;
}

void PageStore::retire(StoredHandle handle) {
  const MutexLock lock(mutex_);
  if (handle.is_mapped() || !try_release(handle.range)) {
    retired_.push_back(std::move(handle));
  }
}

std::size_t PageStore::trim(std::size_t count) {
  const MutexLock lock(mutex_);
  const std::uint64_t before = counts_.released;
  complete_unmapped();
  release_down_to(cached_pages_ - std::min(count, cached_pages_));
  return static_cast<std::size_t>(counts_.released - before);
}

void PageStore::set_limit(std::size_t bytes) {
  const MutexLock lock(mutex_);
  limit_ = bytes;
}

std::size_t PageStore::headroom() const {
  const MutexLock lock(mutex_);
  return headroom_;
}

void PageStore::set_headroom(std::size_t bytes) {
  const MutexLock lock(mutex_);
  headroom_ = bytes;
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
  counts.idle = cached_pages_;
  for (const std::vector<StoredHandle>* handles : {&leaving_, &retired_}) {
    for (const StoredHandle& handle : *handles) {
      counts.idle += handle.range.pages;
    }
  }
  return counts;
}

void PageStore::reset_peak() {
  const MutexLock lock(mutex_);
  counts_.peak_held = 0;
  raise_peaks();
}

}  // namespace ferro
