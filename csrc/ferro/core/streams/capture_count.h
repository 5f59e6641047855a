// The number of announced captures that run, on a device or in the process.
//
// Recording a point of a context invalidates every capture of it. So points are recorded only while
// the count is 0, and an announcement waits for a recording in progress. A capture that is
// announced before it begins, as PyTorch's are, therefore cannot begin during a recording.
//
// Thread-safe. The lock is held while a point is recorded; its holder never waits.
#pragma once

#include "ferro/base/mutex.h"

#include <atomic>

namespace ferro {

class CaptureCount {
 public:
  int load(std::memory_order order = std::memory_order_relaxed) const { return count_.load(order); }

  // Called before the first capture begins and after the last one has ended.
  void set(int count) FERRO_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    count_.store(count, std::memory_order_relaxed);
  }
  void add(int captures) FERRO_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    count_.fetch_add(captures, std::memory_order_relaxed);
  }
  // The driver has refused a point, because a capture ran that was not announced.
  void note_refusal() { has_refused_points_.store(true, std::memory_order_relaxed); }
  bool has_refused_points() const { return has_refused_points_.load(std::memory_order_relaxed); }
  // The result of `action()`, during which no capture can be announced; false if one runs.
  template <typename Action>
  bool is_true_without_captures(Action action) const FERRO_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    return load() == 0 && action();
  }

 private:
  mutable Mutex mutex_;
  std::atomic<int> count_{0};
  std::atomic<bool> has_refused_points_{false};
};

}  // namespace ferro
