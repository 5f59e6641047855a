// A lock biased to its first thread: the owner of the bias, and exclusion in every state.
#include "ferro/base/biased_mutex.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <sched.h>
#include <sys/wait.h>
#include <thread>
#include <ucontext.h>
#include <unistd.h>

namespace ferro {
namespace biased_mutex_test {

class BiasedMutexTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!BiasedSpinMutex::can_bias()) {
      GTEST_SKIP() << "no bias here: no membarrier, or ThreadSanitizer";
    }
  }

  template <typename Body>
  static void on_another_thread(Body body) {
    std::thread(body).join();
  }
  static bool can_lock(BiasedSpinMutex& mutex) {
    if (!mutex.try_lock()) {
      return false;
    }
    mutex.unlock();
    return true;
  }
  static bool another_thread_can_lock(BiasedSpinMutex& mutex) {
    bool locked = false;
    on_another_thread([&] { locked = can_lock(mutex); });
    return locked;
  }
  static void lock_and_unlock(BiasedSpinMutex& mutex) { const BiasedSpinLock lock(mutex); }

  BiasedSpinMutex mutex_;
};

TEST_F(BiasedMutexTest, TheFirstThreadGetsTheBias) {
  EXPECT_FALSE(mutex_.is_biased());
  lock_and_unlock(mutex_);
  EXPECT_TRUE(mutex_.is_biased());
  lock_and_unlock(mutex_);
  EXPECT_TRUE(can_lock(mutex_));
  EXPECT_TRUE(mutex_.is_biased());
}

TEST_F(BiasedMutexTest, TheFirstTryGetsItToo) {
  if (!mutex_.try_lock()) {
    FAIL() << "no other thread has it";
  }
  EXPECT_FALSE(another_thread_can_lock(mutex_));
  mutex_.unlock();
  EXPECT_TRUE(mutex_.is_biased());
}

TEST_F(BiasedMutexTest, AnotherThreadRevokesItPermanently) {
  lock_and_unlock(mutex_);
  on_another_thread([&] { lock_and_unlock(mutex_); });
  EXPECT_FALSE(mutex_.is_biased());
  for (int i = 0; i < 3; ++i) {
    mutex_.lock();
    EXPECT_FALSE(another_thread_can_lock(mutex_));
    mutex_.unlock();
    EXPECT_TRUE(another_thread_can_lock(mutex_));
  }
  EXPECT_FALSE(mutex_.is_biased());
}

TEST_F(BiasedMutexTest, ATryWhileTheOwnerIsInsideFailsAndLeavesTheBias) {
  lock_and_unlock(mutex_);
  mutex_.lock();
  EXPECT_FALSE(another_thread_can_lock(mutex_));
  EXPECT_TRUE(mutex_.is_biased());
  mutex_.unlock();
  EXPECT_TRUE(mutex_.is_biased());
  EXPECT_TRUE(another_thread_can_lock(mutex_));
  EXPECT_FALSE(mutex_.is_biased());
}

TEST_F(BiasedMutexTest, ALockWaitsForTheOwner) {
  lock_and_unlock(mutex_);
  mutex_.lock();
  std::atomic<bool> inside{false};
  std::thread other([&] {
    const BiasedSpinLock lock(mutex_);
    inside.store(true);
  });
  while (mutex_.is_biased()) {  // until it has revoked it
    std::this_thread::yield();
  }
  EXPECT_FALSE(inside.load());
  mutex_.unlock();
  other.join();
  EXPECT_TRUE(inside.load());
  lock_and_unlock(mutex_);
}

TEST_F(BiasedMutexTest, TheOwnerWaitsForTheOther) {
  lock_and_unlock(mutex_);
  std::atomic<bool> inside{false};
  std::atomic<bool> leave{false};
  std::thread other([&] {
    const BiasedSpinLock lock(mutex_);
    inside.store(true);
    while (!leave.load()) {
      std::this_thread::yield();
    }
  });
  while (!inside.load()) {
    std::this_thread::yield();
  }
  EXPECT_FALSE(mutex_.try_lock());
  leave.store(true);
  lock_and_unlock(mutex_);
  other.join();
}

TEST_F(BiasedMutexTest, ADeadOwnersBiasIsRevoked) {
  on_another_thread([&] { lock_and_unlock(mutex_); });
  EXPECT_TRUE(mutex_.is_biased());
  lock_and_unlock(mutex_);
  EXPECT_FALSE(mutex_.is_biased());
}

TEST_F(BiasedMutexTest, AChildKeepsTheBiasOfItsThreadAndRevokesThatOfOthers) {
  lock_and_unlock(mutex_);
  BiasedSpinMutex theirs;
  std::atomic<bool> given{false};
  std::atomic<bool> leave{false};
  std::thread other([&] {
    lock_and_unlock(theirs);
    given.store(true);
    while (!leave.load()) {
      std::this_thread::yield();
    }
  });
  while (!given.load()) {
    std::this_thread::yield();
  }
  const pid_t child = fork();
  if (child == 0) {
    lock_and_unlock(mutex_);
    const bool kept = mutex_.is_biased();
    lock_and_unlock(theirs);
    const bool revoked = !theirs.is_biased() && can_lock(theirs);
    _exit(kept && revoked ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(theirs.is_biased()) << "the parent keeps its bias";
  leave.store(true);
  other.join();
}

class UnbiasedMutexTest : public BiasedMutexTest {
 protected:
  void SetUp() override {}
};

TEST_F(UnbiasedMutexTest, ExcludesToo) {
  BiasedSpinMutex mutex(BiasedSpinMutex::Bias::kNone);
  mutex.lock();
  EXPECT_FALSE(mutex.is_biased());
  EXPECT_FALSE(another_thread_can_lock(mutex));
  mutex.unlock();
  EXPECT_TRUE(another_thread_can_lock(mutex));
  EXPECT_TRUE(can_lock(mutex));
  EXPECT_FALSE(mutex.is_biased());
}

#if defined(__x86_64__)
// Runs the instructions of a thread one by one and stops it after the one with a given number.
struct SingleStep {
  static constexpr long long kTrapFlag = 0x100;
  static inline int left = 0;  // until it stops
  static inline std::atomic<bool> is_at_stop{false};
  static inline std::atomic<bool> may_go_on{false};

  static void arm(int instruction) {
    left = instruction;
    is_at_stop.store(false);
    may_go_on.store(false);
  }
  // Skips the red zone below the stack pointer, which the compiler may use.
  static void begin() {
    asm volatile(
        "lea -128(%%rsp), %%rsp\n pushf\n orq $0x100, (%%rsp)\n popf\n lea 128(%%rsp), %%rsp" ::
            : "memory", "cc");
  }
  static void end() {
    asm volatile(
        "lea -128(%%rsp), %%rsp\n pushf\n andq $~0x100, (%%rsp)\n popf\n lea 128(%%rsp), %%rsp" ::
            : "memory", "cc");
  }
  static void on_trap(int, siginfo_t*, void* context) {
    if (left == 0 || --left != 0) {
      return;
    }
    static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_EFL] &= ~kTrapFlag;
    is_at_stop.store(true);
    while (!may_go_on.load()) {
      sched_yield();
    }
  }
};

// The other thread tries the lock after each instruction with which the owner enters, in turn.
TEST_F(BiasedMutexTest, AnOwnerStoppedWhileEnteringExcludesOthers) {
  struct sigaction action {};
  action.sa_sigaction = &SingleStep::on_trap;
  action.sa_flags = SA_SIGINFO;
  struct sigaction before {};
  ASSERT_EQ(sigaction(SIGTRAP, &action, &before), 0);
  int instruction = 0;
  int taken_before = 0;
  for (bool stopped = true; stopped;) {
    BiasedSpinMutex mutex;
    lock_and_unlock(mutex);  // and this thread has the bias
    std::atomic<bool> owner_is_inside{false};
    std::atomic<bool> owner_is_past{false};
    bool met = false;
    bool taken = false;
    SingleStep::arm(++instruction);
    std::thread other([&] {
      while (!SingleStep::is_at_stop.load() && !owner_is_past.load()) {
        std::this_thread::yield();
      }
      if (owner_is_past.load() || !mutex.try_lock()) {
        SingleStep::may_go_on.store(true);
        return;
      }
      SingleStep::may_go_on.store(true);
      taken = true;
      std::this_thread::sleep_for(
          std::chrono::milliseconds(2));  // so that an owner that does not wait is noticed
      met = owner_is_inside.load();
      mutex.unlock();
    });
    SingleStep::begin();
    mutex.lock();
    SingleStep::end();
    owner_is_inside.store(true);
    stopped = SingleStep::is_at_stop.load();
    owner_is_past.store(!stopped);
    mutex.unlock();
    other.join();
    EXPECT_FALSE(met) << "after instruction " << instruction;
    taken_before += taken ? 1 : 0;
  }
  sigaction(SIGTRAP, &before, nullptr);
  EXPECT_GT(instruction, 8);
  EXPECT_GT(taken_before, 0) << "before the owner announces that it enters";
  EXPECT_LT(taken_before, instruction - 1) << "afterwards no other thread gets the lock";
}
#endif

}  // namespace biased_mutex_test
}  // namespace ferro
