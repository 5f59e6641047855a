// Two and more threads contend for one biased lock: at most one holds it at any time, also during
// the revocation of the bias. A lock is revoked only once, so every few turns use a fresh one.
#include "ferro/base/biased_mutex.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <random>
#include <thread>
#include <vector>

namespace ferro {
namespace biased_mutex_test {

constexpr int kRevocations = 50'000;
constexpr std::chrono::seconds kMostTime{5};  // while other programs take the processors

// A count that is right only if turns exclude each other.
struct Guarded {
  BiasedSpinMutex mutex;
  std::int64_t count FERRO_GUARDED_BY(mutex) = 0;

  void turn() {
    const BiasedSpinLock lock(mutex);
    add_one();
  }
  bool try_turn() {
    if (!mutex.try_lock()) {
      return false;
    }
    add_one();
    mutex.unlock();
    return true;
  }

 private:
  void add_one() FERRO_REQUIRES(mutex) {
    // An increment in two steps, which the compiler keeps apart.
    std::int64_t volatile& seen = count;
    seen = seen + 1;
  }
};

void pause_randomly(std::mt19937& rng) {
  for (auto left = rng() % 512; left != 0; --left) {
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
}

// The owner takes turns without a pause, until some time after the other thread, which starts at a
// random moment, has revoked the bias. Both spin while they wait for each other, so that they
// really run in parallel.
template <typename OthersTurn>
void race_at_fresh_locks(OthersTurn others_turn) {
  constexpr int kOthersTurns = 3;
  constexpr int kSharedTurns = 3;
  constexpr std::int64_t kMostTurns = 3'000;
  std::atomic<Guarded*> offered{nullptr};
  std::atomic<bool> done{false};
  std::thread other([&] {
    std::mt19937 rng(1);
    while (true) {
      SpinWait wait;
      Guarded* guarded = nullptr;
      while ((guarded = offered.load()) == nullptr) {
        if (done.load()) {
          return;
        }
        wait.once();
      }
      pause_randomly(rng);
      for (int turn = 0; turn < kOthersTurns; ++turn) {
        others_turn(*guarded);
      }
      offered.store(nullptr);
    }
  });
  int races_lost = 0;
  const auto end = std::chrono::steady_clock::now() + kMostTime;
  for (int i = 0; i < kRevocations && std::chrono::steady_clock::now() < end; ++i) {
    Guarded guarded;
    guarded.turn();  // and has the bias
    std::int64_t turns = 1;
    offered.store(&guarded);
    // The loop is bounded, because the other thread may not be running.
    for (int shared = 0; shared < kSharedTurns && turns < kMostTurns; ++turns) {
      shared += guarded.mutex.is_biased() ? 0 : 1;
      guarded.turn();
    }
    SpinWait wait;
    while (offered.load() != nullptr) {
      wait.once();
    }
    const BiasedSpinLock lock(guarded.mutex);
    races_lost += guarded.count == turns + kOthersTurns ? 0 : 1;
  }
  done.store(true);
  other.join();
  EXPECT_EQ(races_lost, 0);
}

TEST(BiasedMutexStress, RevocationWhileTheOwnerIsAtItsTurns) {
  race_at_fresh_locks([](Guarded& guarded) { guarded.turn(); });
}

TEST(BiasedMutexStress, TriesWhileTheOwnerIsAtItsTurns) {
  race_at_fresh_locks([](Guarded& guarded) {
    while (!guarded.try_turn()) {
    }
  });
}

TEST(BiasedMutexStress, ManyThreadsFromTheFirstTurnOn) {
  constexpr int kThreads = 4;
  constexpr int kLocks = 2'000;
  constexpr int kTurnsAtOne = 50;
  std::vector<std::unique_ptr<Guarded>> locks;
  for (int i = 0; i < kLocks; ++i) {
    locks.push_back(std::make_unique<Guarded>());
  }
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&locks] {
      for (const std::unique_ptr<Guarded>& guarded : locks) {
        for (int turn = 0; turn < kTurnsAtOne; ++turn) {
          guarded->turn();
        }
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const std::unique_ptr<Guarded>& guarded : locks) {
    const BiasedSpinLock lock(guarded->mutex);
    EXPECT_EQ(guarded->count, kThreads * kTurnsAtOne);
  }
}

TEST(BiasedMutexStress, MillionsOfTurnsAfterARevocation) {
  constexpr int kTurns = 2'000'000;
  Guarded guarded;
  guarded.turn();
  std::thread other([&] {
    for (int i = 0; i < kTurns; ++i) {
      guarded.turn();
    }
  });
  for (int i = 0; i < kTurns; ++i) {
    guarded.turn();
  }
  other.join();
  const BiasedSpinLock lock(guarded.mutex);
  EXPECT_EQ(guarded.count, 2 * kTurns + 1);
}

}  // namespace biased_mutex_test
}  // namespace ferro
