// Whether this thread may gather the context of a call: PyTorch's recorder waits for Python's lock.
//
// Not while the thread has a lock of ours for which others wait with Python's lock, as whoever asks
// for a snapshot does. An entry of a history has no frames then.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <atomic>
#include <memory>

namespace ferro {

// While it exists this thread gathers nothing.
class NoGathering {
 public:
  NoGathering() { ++depth_; }
  ~NoGathering() { --depth_; }
  NoGathering(const NoGathering&) = delete;
  NoGathering& operator=(const NoGathering&) = delete;

  static bool is_on() { return depth_ != 0; }

 private:
  static inline thread_local int depth_ = 0;
};

// A recorder for the history of another allocator, which asks `recorder` where this thread may. One
// for the process, as PyTorch's is.
inline c10::cuda::CUDACachingAllocator::CreateContextFn where_allowed(
    c10::cuda::CUDACachingAllocator::CreateContextFn recorder) {
  using Recorder = c10::cuda::CUDACachingAllocator::CreateContextFn;
  static std::atomic<Recorder> asked{nullptr};
  if (recorder == nullptr) {
    return nullptr;
  }
  asked.store(recorder, std::memory_order_relaxed);
  return +[]() -> std::shared_ptr<c10::GatheredContext> {
    return NoGathering::is_on() ? nullptr : asked.load(std::memory_order_relaxed)();
  };
}

}  // namespace ferro
