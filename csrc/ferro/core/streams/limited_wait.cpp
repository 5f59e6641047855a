#include "ferro/core/streams/limited_wait.h"

#include <exception>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

namespace ferro {

LimitedWait::~LimitedWait() {
  const MutexLock lock(mutex_);
  while (running_ != 0) {
    ended_.wait(mutex_);
  }
}

bool LimitedWait::run(std::function<void()> wait, std::chrono::nanoseconds limit) {
  struct Outcome {
    bool is_over = false;
    std::exception_ptr error;
  };
  const auto outcome = std::make_shared<Outcome>();
  const auto end = std::chrono::steady_clock::now() + limit;
  const MutexLock lock(mutex_);
  if (running_ == kMaxThreads) {
    return false;
  }
  try {
    std::thread([this, outcome, wait = std::move(wait)] {
      std::exception_ptr error;
      try {
        wait();
      } catch (...) {
        error = std::current_exception();
      }
      // Notified under the lock, because the destructor may run right after it.
      const MutexLock lock(mutex_);
      *outcome = {true, error};
      --running_;
      ended_.notify_all();
    }).detach();
  } catch (const std::system_error&) {
    return false;
  }
  ++running_;
  while (!outcome->is_over && ended_.wait_until(mutex_, end) != std::cv_status::timeout) {
  }
  if (outcome->error) {
    std::rethrow_exception(outcome->error);
  }
  return outcome->is_over;
}

}  // namespace ferro
