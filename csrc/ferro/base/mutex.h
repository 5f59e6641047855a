// Locks with clang's thread-safety annotations, so that `-Wthread-safety` proves at compile time
// which lock guards what. The annotations are empty under other compilers.
#pragma once

#include <atomic>
#include <mutex>
#include <thread>

#if defined(__clang__)
#define FERRO_TSA(x) __attribute__((x))
#else
#define FERRO_TSA(x)
#endif
#define FERRO_CAPABILITY(x) FERRO_TSA(capability(x))
#define FERRO_SCOPED_CAPABILITY FERRO_TSA(scoped_lockable)
#define FERRO_GUARDED_BY(x) FERRO_TSA(guarded_by(x))
#define FERRO_REQUIRES(...) FERRO_TSA(requires_capability(__VA_ARGS__))
#define FERRO_EXCLUDES(...) FERRO_TSA(locks_excluded(__VA_ARGS__))
#define FERRO_ACQUIRE(...) FERRO_TSA(acquire_capability(__VA_ARGS__))
#define FERRO_TRY_ACQUIRE(...) FERRO_TSA(try_acquire_capability(__VA_ARGS__))
#define FERRO_RELEASE(...) FERRO_TSA(release_capability(__VA_ARGS__))
#define FERRO_RETURN_CAPABILITY(x) FERRO_TSA(lock_returned(x))
#define FERRO_NO_THREAD_SAFETY_ANALYSIS FERRO_TSA(no_thread_safety_analysis)

namespace ferro {

template <typename M>
class FERRO_CAPABILITY("mutex") AnnotatedMutex {
 public:
  void lock() FERRO_ACQUIRE() { mutex_.lock(); }
  void unlock() FERRO_RELEASE() { mutex_.unlock(); }
  bool try_lock() FERRO_TRY_ACQUIRE(true) { return mutex_.try_lock(); }

 private:
  M mutex_;
};

// For slow paths: blocks in the kernel when contended.
using Mutex = AnnotatedMutex<std::mutex>;
// For slow paths whose callbacks may take the lock again on the same thread.
using RecursiveMutex = AnnotatedMutex<std::recursive_mutex>;

// Waits for a spin lock: spins a bounded number of times, then yields each time, because the holder
// may be on a slow path that calls the driver.
class SpinWait {
 public:
  void once() {
    if (++spins_ < kSpinsBeforeYield) {
      pause();
    } else {
      std::this_thread::yield();
    }
  }

 private:
  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

  static constexpr int kSpinsBeforeYield = 64;
  int spins_ = 0;
};

// For hit paths of tens of nanoseconds: one atomic exchange when free.
class FERRO_CAPABILITY("mutex") SpinMutex {
 public:
  void lock() FERRO_ACQUIRE() {
    if (held_.exchange(true, std::memory_order_acquire)) [[unlikely]] {
      lock_contended();
    }
  }
  void unlock() FERRO_RELEASE() { held_.store(false, std::memory_order_release); }
  bool try_lock() FERRO_TRY_ACQUIRE(true) {
    return !held_.load(std::memory_order_relaxed) &&
           !held_.exchange(true, std::memory_order_acquire);
  }

 private:
  void lock_contended() {
    SpinWait wait;
    do {
      while (held_.load(std::memory_order_relaxed)) {
        wait.once();
      }
    } while (held_.exchange(true, std::memory_order_acquire));
  }

  std::atomic<bool> held_{false};
};

template <typename M>
class FERRO_SCOPED_CAPABILITY ScopedLock {
 public:
  explicit ScopedLock(M& mutex) FERRO_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  // The caller has locked the mutex.
  ScopedLock(M& mutex, std::adopt_lock_t /*locked*/) FERRO_REQUIRES(mutex) : mutex_(mutex) {}
  ~ScopedLock() FERRO_RELEASE() { mutex_.unlock(); }
  ScopedLock(const ScopedLock&) = delete;
  ScopedLock& operator=(const ScopedLock&) = delete;

 private:
  M& mutex_;
};

using MutexLock = ScopedLock<Mutex>;
using RecursiveMutexLock = ScopedLock<RecursiveMutex>;
using SpinLock = ScopedLock<SpinMutex>;

}  // namespace ferro
