#include "ferro/base/biased_mutex.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace ferro {
namespace {

#if defined(__SANITIZE_THREAD__)
constexpr bool kUnderThreadSanitizer = true;
#elif defined(__has_feature)
constexpr bool kUnderThreadSanitizer = __has_feature(thread_sanitizer);
#else
constexpr bool kUnderThreadSanitizer = false;
#endif

bool membarrier(int command) { return syscall(SYS_membarrier, command, 0, 0) == 0; }

bool enable_barrier() { return membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED); }

// Every thread of the process executes a full memory barrier between call and return.
bool barrier_in_all_threads() {
  return membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) ||
         (enable_barrier() && membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED));
}

}  // namespace

bool BiasedSpinMutex::can_bias() {
  static const bool possible =
      !kUnderThreadSanitizer && enable_barrier() && barrier_in_all_threads();
  return possible;
}

void BiasedSpinMutex::lock_shared() {
  shared_.lock();
  settle_bias(Patience::kWaits);
}

bool BiasedSpinMutex::try_lock_shared() {
  if (!shared_.try_lock()) {
    return false;
  }
  if (!settle_bias(Patience::kNone)) {
    shared_.unlock();
    return false;
  }
  return true;
}

bool BiasedSpinMutex::settle_bias(Patience patience) {
  const std::uintptr_t bias = bias_.load(std::memory_order_relaxed);
  if (bias == kRevoked || bias == this_thread()) [[likely]] {
    return true;
  }
  if (bias == kUnassigned) {
    bias_.store(can_bias() ? this_thread() : kRevoked, std::memory_order_relaxed);
    return true;
  }
  bias_.store(kRevoked, std::memory_order_seq_cst);
  FERRO_CHECK(barrier_in_all_threads(), "the kernel refuses membarrier, which it allowed before");
  SpinWait wait;
  while (inside_.load(std::memory_order_acquire) != kOutside) {
    if (patience == Patience::kNone) {
      bias_.store(bias, std::memory_order_release);
      return false;
    }
    wait.once();
  }
  return true;
}

}  // namespace ferro
