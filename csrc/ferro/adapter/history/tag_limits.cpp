#include "ferro/adapter/history/tag_limits.h"

#include "ferro/adapter/history/gathering.h"

#include <optional>
#include <utility>

namespace ferro {
namespace {

constinit thread_local LimitedRequest* innermost_limited = nullptr;
constinit thread_local bool runs_soft_callback = false;

}  // namespace

TagLimits::TagLimits() {
  for (Bytes* all : {&soft_, &hard_}) {
    for (std::atomic<std::size_t>& limit : *all) {
      limit.store(TagLimit::kNone, std::memory_order_relaxed);
    }
  }
}

void TagLimits::set(BlockTag tag, TagLimit limit) {
  // The old function is destroyed after the lock is released, because that may take the GIL.
  const MutexLock lock(mutex_);
  on_soft_[tag].swap(limit.on_soft);
  soft_.at(tag).store(limit.soft, std::memory_order_relaxed);
  hard_.at(tag).store(limit.hard, std::memory_order_relaxed);
  any_.store(true, std::memory_order_release);
}

TagLimit::OnSoft TagLimits::on_soft(BlockTag tag) const {
  const MutexLock lock(mutex_);
  const auto found = on_soft_.find(tag);
  return found != on_soft_.end() ? found->second : nullptr;
}

TagLimits& tag_limits() {
  static auto* const only = new TagLimits;
  return *only;
}

LimitedRequest::LimitedRequest() : outer_(std::exchange(innermost_limited, this)) {}

LimitedRequest::~LimitedRequest() { innermost_limited = outer_; }

LimitedRequest* LimitedRequest::of_thread() { return innermost_limited; }

bool LimitedRequest::count(TagSums& sums, BlockTag tag, std::size_t bytes) {
  const std::optional<std::size_t> live = sums.allocate_within(tag, bytes, tag_limits().hard(tag));
  if (!live) {
    refused_ = tag;
    return false;
  }
  const std::size_t soft = tag_limits().soft(tag);
  if (*live > soft && *live - bytes <= soft) {
    crossed_ = tag;
    live_bytes_ = *live;
  }
  return true;
}

void LimitedRequest::run_callback() {
  if (crossed_ == 0 || runs_soft_callback) {
    return;
  }
  if (NoGathering::is_on()) {
    if (outer_ != nullptr) {
      outer_->crossed_ = crossed_;
      outer_->live_bytes_ = live_bytes_;
    }
    return;
  }
  if (const TagLimit::OnSoft on_soft = tag_limits().on_soft(crossed_)) {
    runs_soft_callback = true;
    on_soft(live_bytes_);
    runs_soft_callback = false;
  }
}

}  // namespace ferro
