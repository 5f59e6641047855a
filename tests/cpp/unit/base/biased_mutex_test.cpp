// A lock biased to its first thread: who holds the bias, and that it excludes in every state.
#include "ferro/base/biased_mutex.h"

#include <gtest/gtest.h>

#include <atomic>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace ferro {
namespace {

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
    FAIL() << "nobody else has it";
  }
  EXPECT_FALSE(another_thread_can_lock(mutex_));
  mutex_.unlock();
  EXPECT_TRUE(mutex_.is_biased());
}

TEST_F(BiasedMutexTest, AnotherThreadRevokesItForGood) {
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
  EXPECT_TRUE(theirs.is_biased()) << "the parent's is as it was";
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

}  // namespace
}  // namespace ferro
