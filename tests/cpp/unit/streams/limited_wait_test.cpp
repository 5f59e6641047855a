#include "ferro/core/streams/limited_wait.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <stdexcept>
#include <thread>
#include <vector>

namespace ferro {
namespace limited_wait_test {

using std::chrono::hours;
using std::chrono::milliseconds;

TEST(LimitedWaitTest, AWaitThatEndsInTimeIsOver) {
  LimitedWait limited;
  std::thread::id thread;
  EXPECT_TRUE(limited.run([&] { thread = std::this_thread::get_id(); }, hours(1)));
  EXPECT_NE(thread, std::this_thread::get_id());
}

TEST(LimitedWaitTest, AWaitGoesOnAfterItWasGivenUp) {
  std::promise<void> release;
  std::atomic<bool> is_over = false;
  {
    LimitedWait limited;
    const auto wait = [&, released = release.get_future().share()] {
      released.wait();
      is_over = true;
    };
    EXPECT_FALSE(limited.run(wait, milliseconds(1)));
    EXPECT_TRUE(limited.run([] {}, hours(1))) << "others do not wait for it";
    EXPECT_FALSE(is_over);
    release.set_value();
  }
  EXPECT_TRUE(is_over) << "the destructor waits";
}

TEST(LimitedWaitTest, AnErrorIsThatOfTheCaller) {
  LimitedWait limited;
  EXPECT_THROW(static_cast<void>(limited.run([] { throw std::runtime_error("lost"); }, hours(1))),
               std::runtime_error);
  EXPECT_TRUE(limited.run([] {}, hours(1)));
}

TEST(LimitedWaitTest, WaitsThatWereGivenUpDoNotPileUp) {
  std::promise<void> release;
  const std::shared_future<void> released = release.get_future().share();
  std::atomic<int> started = 0;
  LimitedWait limited;  // its destructor waits for threads that use the others
  for (int i = 0; i < 100; ++i) {
    EXPECT_FALSE(limited.run(
        [&] {
          ++started;
          released.wait();
        },
        milliseconds(0)));
  }
  release.set_value();
  while (!limited.run([] {}, hours(1))) {
    std::this_thread::yield();
  }
  EXPECT_LE(started, 16);
}

TEST(LimitedWaitTest, ThreadsWaitSideBySide) {
  LimitedWait limited;
  std::vector<std::thread> threads;
  std::atomic<int> over = 0;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] { over += limited.run([] {}, hours(1)) ? 1 : 0; });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(over, 8);
}

}  // namespace limited_wait_test
}  // namespace ferro
