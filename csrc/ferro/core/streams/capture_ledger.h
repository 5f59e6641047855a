// Finds out whether a library captures graphs without announcing them.
//
// The driver numbers the captures of a process one after the other, whichever stream or device they
// are of. A check draws a number of its own: if more numbers are gone than captures were announced
// since the last check, a library has captured silently. It may capture again at any time, so the
// answer stays.
//
// One ledger serves all devices of a process. Thread-safe.
#pragma once

#include "ferro/base/mutex.h"
#include "ferro/driver/driver.h"

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace ferro {

class CaptureLedger {
 public:
  // So many captures more are announced, or, negative, are over. Called before they begin.
  void change(int captures) FERRO_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    running_ += captures;
    announced_ += static_cast<std::uint64_t>(std::max(captures, 0));
  }
  // True while every capture so far was announced. Disturbs no capture. Throws DriverError.
  bool are_all_announced(Driver& driver) FERRO_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    if (silent_.load(std::memory_order_relaxed)) {
      return false;
    }
    const std::uint64_t id = driver.draw_capture_id();
    const std::uint64_t others = last_id_ == 0 ? 0 : id - last_id_ - 1;
    last_id_ = id;
    if (others > announced_) {
      silent_.store(true, std::memory_order_relaxed);
      return false;
    }
    // An announced capture that has not begun may still take its number; one that failed never does.
    announced_ = running_ > 0 ? announced_ - others : 0;
    return true;
  }
  // A capture that was not announced was met.
  void note_silent_capture() { silent_.store(true, std::memory_order_relaxed); }
  bool has_seen_silent_capture() const { return silent_.load(std::memory_order_relaxed); }

 private:
  Mutex mutex_;
  std::uint64_t last_id_ FERRO_GUARDED_BY(mutex_) = 0;    // 0: no number was drawn yet
  std::uint64_t announced_ FERRO_GUARDED_BY(mutex_) = 0;  // without a number so far
  int running_ FERRO_GUARDED_BY(mutex_) = 0;
  std::atomic<bool> silent_{false};
};

}  // namespace ferro
