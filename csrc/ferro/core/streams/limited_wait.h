// Runs waits without a limit, each in a thread of its own, and gives up on them after a limit.
//
// Thread-safe. Its destructor waits for the threads.
#pragma once

#include "ferro/base/mutex.h"

#include <chrono>
#include <condition_variable>
#include <functional>

namespace ferro {

class LimitedWait {
 public:
  LimitedWait() = default;
  ~LimitedWait();
  LimitedWait(const LimitedWait&) = delete;
  LimitedWait& operator=(const LimitedWait&) = delete;

  // True: `wait` ended within the limit. False: it goes on, or no thread could start. Throws what
  // `wait` threw within the limit; a later exception is lost.
  bool run(std::function<void()> wait, std::chrono::nanoseconds limit) FERRO_EXCLUDES(mutex_);

 private:
  // More waits that were given up must not pile up.
  static constexpr int kMaxThreads = 16;

  Mutex mutex_;
  std::condition_variable_any ended_;
  int running_ FERRO_GUARDED_BY(mutex_) = 0;
};

}  // namespace ferro
