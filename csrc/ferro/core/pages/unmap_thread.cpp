#include "ferro/core/pages/unmap_thread.h"

#include "ferro/driver/error.h"

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <pthread.h>
#include <system_error>
#include <vector>

namespace ferro {

// All of the process, for fork() and for its exit. Never destroyed, because threads outlive statics.
class UnmapThreads {
 public:
  static UnmapThreads& instance() {
    static UnmapThreads* const all = [] {
      auto* created = new UnmapThreads;
      // Handlers run before a fork, and at exit, in the opposite order of their registration. A
      // driver registered its own before: so the thread is out of the driver when its turn comes.
      pthread_atfork([] { instance().lock_for_fork(); },
                     [] {
                       instance().for_each(&UnmapThread::unlock_in_parent);
                       instance().mutex_.unlock();
                     },
                     [] {
                       instance().for_each(&UnmapThread::unlock_in_child);
                       instance().mutex_.unlock();
                     });
      std::atexit([] {
        const std::lock_guard lock(instance().mutex_);
        instance().for_each(&UnmapThread::stop);
      });
      return created;
    }();
    return *all;
  }

  void add(UnmapThread* thread) {
    const std::lock_guard lock(mutex_);
    threads_.push_back(thread);
  }
  void remove(UnmapThread* thread) {
    const std::lock_guard lock(mutex_);
    std::erase(threads_, thread);
  }

 private:
  void lock_for_fork() {
    mutex_.lock();
    for_each(&UnmapThread::lock_for_fork);
  }
  void for_each(void (UnmapThread::*call)()) {
    for (UnmapThread* thread : threads_) {
      (thread->*call)();
    }
  }

  std::mutex mutex_;
  std::vector<UnmapThread*> threads_;
};

UnmapThread::UnmapThread(StaleMappings& stale, Driver& driver) : stale_(stale), driver_(driver) {
  UnmapThreads::instance().add(this);
  stale_.set_remover(this);
}

UnmapThread::~UnmapThread() {
  stop();
  UnmapThreads::instance().remove(this);
}

void UnmapThread::stop() {
  stale_.set_remover(nullptr);
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) {
    thread_.join();
  }
}

void UnmapThread::on_added() noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (stopped_ || added_) {
      return;
    }
    added_ = true;
    if (!thread_.joinable()) {
      start();
    }
    if (!idle_) {
      return;
    }
  }
  wake_.notify_one();
}

void UnmapThread::start() noexcept {
  // Signals are for the program's own threads.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error&) {
    stopped_ = true;
    stale_.set_remover(nullptr);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void UnmapThread::run() noexcept {
  pthread_setname_np(pthread_self(), "ferro_unmap");
  auto sleep = kShortestSleep;
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    added_ = false;
    idle_ = false;
    lock.unlock();
    const StaleMappings::Unmapped unmapped = unmap_next();
    lock.lock();
    switch (unmapped) {
      case StaleMappings::Unmapped::kSome:
        sleep = kShortestSleep;
        break;
      case StaleMappings::Unmapped::kNoneLeft:
        sleep = kShortestSleep;
        idle_ = !added_;
        wake_.wait(lock, [this] { return added_ || stopped_; });
        break;
      case StaleMappings::Unmapped::kNonePassed:
      case StaleMappings::Unmapped::kRefused:
        wake_.wait_for(lock, sleep, [this] { return stopped_; });
        sleep = std::min(2 * sleep, kLongestSleep);
        break;
    }
  }
}

StaleMappings::Unmapped UnmapThread::unmap_next() noexcept {
  looks_.fetch_add(1, std::memory_order_relaxed);
  try {
    // One change of context for the question and the call.
    const Driver::Session session(driver_);
    return stale_.unmap_next();
  } catch (const std::exception&) {
    failures_.fetch_add(1, std::memory_order_relaxed);
    stale_.count_unanswered();
    return StaleMappings::Unmapped::kRefused;
  }
}

bool UnmapThread::is_idle() {
  const std::lock_guard lock(mutex_);
  return idle_;
}

void UnmapThread::lock_for_fork() FERRO_NO_THREAD_SAFETY_ANALYSIS {
  stale_.removal_mutex().lock();
  mutex_.lock();
}

void UnmapThread::unlock_in_parent() FERRO_NO_THREAD_SAFETY_ANALYSIS {
  mutex_.unlock();
  stale_.removal_mutex().unlock();
}

void UnmapThread::unlock_in_child() FERRO_NO_THREAD_SAFETY_ANALYSIS {
  // The child has no thread to wait for or to wake, whatever these say. They are not destroyed: that
  // would end the process, or wait for the sleeper without end.
  std::construct_at(&thread_);
  std::construct_at(&wake_);
  stopped_ = true;
  stale_.set_remover(nullptr);
  unlock_in_parent();
}

}  // namespace ferro
