#include "ferro/graph/pool_router.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace ferro {
namespace {

std::shared_ptr<const void> this_thread() {
  thread_local const auto alive = std::make_shared<const char>();
  return alive;
}

}  // namespace

bool PoolRouter::begin(const PoolId& pool, Filter filter, StreamId current, PoolHold hold,
                       FilterOwner owner) {
  drop_all_abandoned(current);
  const MutexLock lock(mutex_);
  for (;; noted_.wait_for(mutex_, kPause)) {
    const auto found = std::ranges::find(diversions_, pool, &Diversion::pool);
    if (found != diversions_.end() && std::exchange(found->handed_over, false)) {
      found->filter = std::move(filter);
    } else {
      if (found != diversions_.end()) {
        if (!found->seen_over && !has_no_capture(*found, current)) {
          found->awaited_since.reset();
          return false;
        }
        if (may_end_soon(*found)) {
          continue;
        }
        release(found, false);  // the program uses the pool again, so its capture has failed
      }
      const bool of_capture = !filter(current);
      const bool may_outlive = of_capture && failed_graphs_ == FailedGraphs::kForget;
      const std::uint64_t other_capture = may_outlive ? capture_of(current).id : 0;
      diversions_.push_back({pool, hold, std::move(filter), owner, of_capture, current,
                             device_.stream_lasts(current), other_capture, this_thread()});
      publish_counts();
    }
    if (hold == PoolHold::kHere) {
      device_.pools().hold(pool);
    }
    return true;
  }
}

bool PoolRouter::hand_over(const PoolId& pool) {
  if (failed_graphs_ == FailedGraphs::kForget) {
    return false;
  }
  const MutexLock lock(mutex_);
  const auto found = std::ranges::find(diversions_, pool, &Diversion::pool);
  if (found == diversions_.end() || !found->may_outlive_its_graph() || !found->begun_on_lasts) {
    return false;
  }
  found->handed_over =
      device_.driver().capture_info(found->begun_on).status == CaptureStatus::kActive;
  return found->handed_over;
}

bool PoolRouter::is_handed_over(const PoolId& pool) {
  const MutexLock lock(mutex_);
  const auto found = std::ranges::find(diversions_, pool, &Diversion::pool);
  return found != diversions_.end() && found->handed_over;
}

void PoolRouter::note_capture_over(const PoolId& pool) {
  const MutexLock lock(mutex_);
  const auto found = std::ranges::find(diversions_, pool, &Diversion::pool);
  if (found != diversions_.end()) {
    found->over = true;
    found->is_shared = found->is_shared || found->begun_by.lock() != this_thread();
    publish_counts();
    noted_.notify_all();
  }
}

bool PoolRouter::end(const PoolId& pool, EndOfCapture how) {
  const MutexLock lock(mutex_);
  const auto found = std::ranges::find(diversions_, pool, &Diversion::pool);
  if (found == diversions_.end()) {
    return false;
  }
  if (how == EndOfCapture::kFailed && found->may_outlive_its_graph()) {
    release(found, true);
  } else {
    diversions_.erase(found);
  }
  publish_counts();
  noted_.notify_all();
  return true;
}

PoolRouter::Position PoolRouter::release(Position diversion, bool is_ended) {
  if (diversion->hold == PoolHold::kHere) {
    device_.pools().release(diversion->pool);
  }
  released_.push_back({diversion->pool, diversion->hold, is_ended});
  return diversions_.erase(diversion);
}

std::vector<PoolRouter::Released> PoolRouter::take_released() {
  const MutexLock lock(mutex_);
  return std::exchange(released_, {});
}

void PoolRouter::publish_counts() {
  count_.store(static_cast<int>(diversions_.size()), std::memory_order_relaxed);
  const auto of_captures = static_cast<int>(std::ranges::count_if(
      diversions_, [](const Diversion& each) { return each.of_capture && !each.over; }));
  captures_.store(of_captures, std::memory_order_relaxed);
  // The minimum, because a failed capture may leave a mark. A mark comes after its capture has
  // begun, an announcement before.
  device_.set_captures(std::min(of_captures, marked_.value_or(of_captures)), of_captures);
}

void PoolRouter::mark_capture_begin() {
  const MutexLock lock(mutex_);
  marked_ = marked_.value_or(0) + 1;
  publish_counts();
}

void PoolRouter::mark_capture_end() {
  const MutexLock lock(mutex_);
  marked_ = std::max(0, marked_.value_or(0) - 1);
  publish_counts();
}

bool PoolRouter::is_diverting_to(const PoolId& pool) {
  const MutexLock lock(mutex_);
  return std::ranges::find(diversions_, pool, &Diversion::pool) != diversions_.end();
}

int PoolRouter::marked() {
  const MutexLock lock(mutex_);
  return marked_.value_or(0);
}

void PoolRouter::release_failed_captures() { drop_all_abandoned(std::nullopt); }

void PoolRouter::drop_all_abandoned(std::optional<StreamId> existing) {
  const MutexLock lock(mutex_);
  while (!drop_abandoned(existing, Threads::kThisAndEnded)) {
    noted_.wait_for(mutex_, grace_);
  }
}

// A capture may be begun in one thread and ended in another, which ends the diversion soon after.
// The other thread may have done nothing else in it, so each capture gets the time to note its end.
bool PoolRouter::may_be_ending(Diversion& diversion) {
  const Clock::time_point now = Clock::now();
  diversion.over = true;
  diversion.seen_over = diversion.seen_over.value_or(now);
  return now - *diversion.seen_over < (diversion.is_shared ? patience_ : grace_);
}

bool PoolRouter::has_no_capture(const Diversion& diversion, std::optional<StreamId> existing) {
  return failed_graphs_ == FailedGraphs::kForget && diversion.may_outlive_its_graph() &&
         (diversion.begun_on_lasts || diversion.begun_on == existing) &&
         !is_capturing(diversion.begun_on);
}

// Nothing tells a capture that failed without an allocation from one that its thread is about to
// begin, so both get the same time.
bool PoolRouter::may_end_soon(Diversion& diversion) {
  const Clock::time_point now = Clock::now();
  diversion.awaited_since = diversion.awaited_since.value_or(now);
  return !diversion.seen_over && now - *diversion.awaited_since < patience_;
}

// PyTorch 2.11 neither ends the diversion of a failed capture nor releases its pool. If this thread
// began a diversion whose stream does not capture, the capture has failed: PyTorch requests no
// memory in one thread between the begin of a diversion and of its capture, nor between their ends.
// Diversions of ended threads are left to the rarer calls, because another thread may end the
// capture.
bool PoolRouter::drop_abandoned(std::optional<StreamId> existing, Threads threads) {
  bool has_changed = false;
  bool any_unnoted = false;
  for (auto it = diversions_.begin(); it != diversions_.end();) {
    const std::shared_ptr<const void> thread = it->begun_by.lock();
    const bool left =
        thread == nullptr ? threads == Threads::kThisAndEnded : thread == this_thread();
    const bool is_over = left && has_no_capture(*it, existing);
    has_changed = has_changed || is_over;
    if (!is_over) {
      ++it;
    } else if (may_be_ending(*it)) {
      any_unnoted = any_unnoted || !it->is_shared;
      ++it;
    } else {
      it = release(it, false);
    }
  }
  if (has_changed) {
    publish_counts();
  }
  return !any_unnoted;
}

PoolId PoolRouter::pool_for(StreamId stream) {
  const MutexLock lock(mutex_);
  for (;; noted_.wait_for(mutex_, grace_)) {
    const CaptureInfo capture = has_captures() ? capture_of(stream) : CaptureInfo{};
    if (capture.status != CaptureStatus::kNone || drop_abandoned(stream, Threads::kThis)) {
      return chosen_for(stream, capture);
    }
  }
}

bool PoolRouter::accepts(Diversion& diversion, StreamId stream, const CaptureInfo& capture) {
  if (failed_graphs_ == FailedGraphs::kCleanUp || !diversion.may_outlive_its_graph()) {
    return diversion.filter(stream);
  }
  if (capture.status != CaptureStatus::kActive) {
    return false;
  }
  if (diversion.capture == 0) {
    const bool is_own = diversion.begun_on == stream;
    if (is_own || diversion.begun_on_lasts) {
      const std::uint64_t id = is_own ? capture.id : capture_of(diversion.begun_on).id;
      diversion.capture = id != diversion.other_capture ? id : 0;
    } else if (diversion.filter(stream)) {
      diversion.capture = capture.id;
    }
  }
  return diversion.capture != 0 && diversion.capture == capture.id;
}

PoolId PoolRouter::chosen_for(StreamId stream, const CaptureInfo& capture) {
  const bool capturing = capture.status != CaptureStatus::kNone;
  for (auto it = diversions_.rbegin(); it != diversions_.rend(); ++it) {
    if (it->seen_over || (it->may_outlive_its_graph() && !capturing)) {
      continue;
    }
    if (accepts(*it, stream, capture)) {
      it->is_shared = it->is_shared || (capturing && it->begun_by.lock() != this_thread());
      return it->pool;
    }
  }
  return kDefaultPool;
}

}  // namespace ferro
