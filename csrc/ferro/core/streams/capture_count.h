// How many captures run on a device, as far as anybody said.
//
// Some questions to the driver invalidate a capture of the stream that they are about. They are asked
// while the count is 0, and who announces a capture waits for a question that is under way. So no
// capture that is announced before it begins, as PyTorch's are, can begin in the middle of one.
//
// Thread-safe. The lock is held for a question at most; nothing waits under it.
#pragma once

#include "ferro/base/mutex.h"

#include <atomic>

namespace ferro {

class CaptureCount {
 public:
  int load(std::memory_order order = std::memory_order_relaxed) const { return count_.load(order); }
  const std::atomic<int>& value() const { return count_; }

  // Before the first one of them begins, and after the last one has ended.
  void set(int count) FERRO_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    count_.store(count, std::memory_order_relaxed);
  }
  // The answer of `question()`, during which no capture is announced; false where one runs.
  template <typename Question>
  bool is_true_without_captures(Question question) const FERRO_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    return load() == 0 && question();
  }

 private:
  mutable Mutex mutex_;
  std::atomic<int> count_{0};
};

}  // namespace ferro
