// Keeps launches of graphs apart from what unmaps their memory.
//
// A launch is *under way* from `enter` to `leave`: after `leave` the device knows of it, and who
// waits for the device waits for it. While the gate is closed none is under way.
//
// Thread-safe. No lock is held between `enter` and `leave`. A launch may want locks that the thread
// has which closes the gate (the climb lock, Python's), so closing gives up after a time instead of
// waiting for ever; `enter` waits for a thread that needs nothing of anybody, and is called without
// Python's lock.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>

namespace ferro {

class LaunchGate {
 public:
  // Waits while the gate is closed.
  void enter() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !closed_; });
    ++under_way_;
  }
  void leave() {
    const std::lock_guard lock(mutex_);
    if (--under_way_ == 0 && closed_) {
      changed_.notify_all();
    }
  }

  // Closed as long as it lives, if it is.
  class Closed {
   public:
    // Later launches wait from now on. Not closed: some are under way still.
    Closed(LaunchGate& gate, std::chrono::milliseconds at_most) : gate_(gate) {
      std::unique_lock lock(gate_.mutex_);
      gate_.closed_ = true;
      is_closed_ = gate_.changed_.wait_for(lock, at_most, [this] { return gate_.under_way_ == 0; });
    }
    ~Closed() {
      const std::lock_guard lock(gate_.mutex_);
      gate_.closed_ = false;
      gate_.changed_.notify_all();
    }
    Closed(const Closed&) = delete;
    Closed& operator=(const Closed&) = delete;

    bool is_closed() const { return is_closed_; }

   private:
    LaunchGate& gate_;
    bool is_closed_ = false;
  };

 private:
  // Guards what follows. Not a Mutex, because threads sleep on it.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t under_way_ = 0;
  bool closed_ = false;
};

}  // namespace ferro
