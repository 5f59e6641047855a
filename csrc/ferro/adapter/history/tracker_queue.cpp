#include "ferro/adapter/history/tracker_queue.h"

#include <cstddef>
#include <deque>
#include <utility>

namespace ferro {
namespace {

struct Queued {
  const TrackerList* trackers;
  c10::cuda::CUDACachingAllocator::TraceEntry entry;
  std::size_t next = 0;  // index of the tracker to call next
};

// Null when empty. A pointer, because thread-local objects may free tensors at the thread's end.
constinit thread_local std::deque<Queued>* queue = nullptr;
thread_local std::exception_ptr failure;

}  // namespace

void queue_for_trackers(const TrackerList& trackers,
                        c10::cuda::CUDACachingAllocator::TraceEntry entry) {
  if (queue == nullptr) {
    queue = new std::deque<Queued>;
  }
  queue->push_back({&trackers, std::move(entry)});
}

bool has_queued_for_trackers() noexcept { return queue != nullptr; }

// A tracker that allocates calls this again; the nested call continues at this call's position.
void deliver_to_trackers() noexcept {
  while (queue != nullptr) {
    Queued& first = queue->front();
    if (first.next == first.trackers->size()) {
      queue->pop_front();
      if (queue->empty()) {
        delete std::exchange(queue, nullptr);
      }
      continue;
    }
    const auto& tracker = (*first.trackers)[first.next++];
    try {
      const c10::cuda::CUDACachingAllocator::TraceEntry entry = first.entry;
      tracker(entry);
    } catch (...) {
      failure = std::current_exception();
    }
  }
}

std::exception_ptr take_tracker_failure() noexcept { return std::exchange(failure, nullptr); }

}  // namespace ferro
