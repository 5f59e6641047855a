// Calls of torch's allocator interface that no Python function makes, for tests that load this
// library with ctypes. Compiled against the installed torch, 2.12 or newer.
#include <c10/cuda/CUDACachingAllocator.h>

#include <cstdint>
#include <mutex>
#include <stdexcept>
#include <vector>

namespace {

struct Rejection {
  std::int64_t values[4];  // device, requested bytes, held bytes, bytes of the device
};

std::mutex mutex;
std::vector<Rejection> rejections;

}  // namespace

extern "C" {

int probe_has_context(const void* ptr) {
  return c10::cuda::CUDACachingAllocator::getContextForPointer(ptr) != nullptr ? 1 : 0;
}

void probe_watch_rejections() {
  c10::cuda::CUDACachingAllocator::attachOomRejectionObserver(
      [](std::int64_t device, std::size_t asked, std::size_t held, std::size_t total) {
        const std::lock_guard lock(mutex);
        rejections.push_back({{device, static_cast<std::int64_t>(asked),
                               static_cast<std::int64_t>(held), static_cast<std::int64_t>(total)}});
      });
  c10::cuda::CUDACachingAllocator::attachOomRejectionObserver(
      [](std::int64_t, std::size_t, std::size_t, std::size_t) {
        throw std::runtime_error("an observer that fails");
      });
}

// The number of rejections seen; `last` receives the values of the last one.
int probe_rejections(std::int64_t* last) {
  const std::lock_guard lock(mutex);
  for (int i = 0; i < 4 && !rejections.empty(); ++i) {
    last[i] = rejections.back().values[i];
  }
  return static_cast<int>(rejections.size());
}

}  // extern "C"
