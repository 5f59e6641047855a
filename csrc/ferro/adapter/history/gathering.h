// Whether this thread may gather the context of a call.
//
// PyTorch's recorder waits for the GIL. So a thread must not gather while it holds a lock of ours
// for which a thread with the GIL may wait, such as the caller of a snapshot. The entry of the
// history then has no frames.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <atomic>
#include <memory>

namespace ferro {

// While it exists, this thread gathers no contexts.
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

// A recorder for the history of another allocator. It calls `recorder` if this thread may gather.
// One for the process, as PyTorch's is.
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
