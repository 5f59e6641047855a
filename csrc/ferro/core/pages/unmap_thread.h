// A thread of the allocator's own that removes old mappings (StaleMappings), so that no request
// does: unmapping is the bulk of the slowest ones.
//
// It removes one mapping at a time, a large one part by part, so a request that wants to remove some
// itself, or wants anything else of the driver, waits for some handles at most. While fences have not
// passed it sleeps longer and longer, from kShortestSleep to kLongestSleep; with nothing left it
// sleeps until something is added. It takes no memory of the device and no lock of a heap. What the
// driver refuses stays and is tried again after a sleep.
//
// The thread begins with the first mapping and ends with `stop`, at the latest when the process
// exits: before the libraries that were loaded earlier, of which the driver is one, end. Where
// there is no thread (none was to be had, the process exits, or a child of fork()) there is no
// remover either, and requests remove mappings themselves. Over fork() nothing is being removed.
//
// Thread-safe. One for a StaleMappings, which outlives it. Lock order: removal > mutex_.
#pragma once

#include "ferro/core/pages/stale_mappings.h"
#include "ferro/driver/driver.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

namespace ferro {

class UnmapThread final : public StaleMappings::Remover {
 public:
  static constexpr std::chrono::microseconds kShortestSleep{100};
  static constexpr std::chrono::microseconds kLongestSleep{10'000};

  UnmapThread(StaleMappings& stale, Driver& driver);
  ~UnmapThread();
  UnmapThread(const UnmapThread&) = delete;
  UnmapThread& operator=(const UnmapThread&) = delete;

  void on_added() noexcept override;
  // For good. Mappings that are left stay; nothing is being removed afterwards.
  void stop();

  // Has it nothing to do but to wait for what is added?
  bool is_idle();
  // How often it looked whether something has passed, since construction.
  std::uint64_t looks() const { return looks_.load(std::memory_order_relaxed); }
  // How often the driver did not answer whether something has.
  std::uint64_t failures() const { return failures_.load(std::memory_order_relaxed); }

 private:
  friend class UnmapThreads;

  void start() noexcept;
  void run() noexcept;
  StaleMappings::Unmapped unmap_next() noexcept;
  // Around fork().
  void lock_for_fork();
  void unlock_in_parent();
  void unlock_in_child();

  StaleMappings& stale_;
  Driver& driver_;
  // Guards what follows. Not a Mutex, because the thread sleeps on it.
  std::mutex mutex_;
  std::condition_variable wake_;
  std::thread thread_;
  bool added_ = false;  // since the thread last looked
  bool idle_ = true;
  bool stopped_ = false;
  std::atomic<std::uint64_t> looks_{0};
  std::atomic<std::uint64_t> failures_{0};
};

}  // namespace ferro
