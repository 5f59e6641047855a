// Queues entries for trace trackers, which are code of the program: a thread queues the entries
// that it causes under the lock of a heap, and delivers them when it holds no such lock.
//
// Each tracker receives the entries of one thread in order, even if a tracker allocates, and all
// receive an entry before the allocator's call that caused it returns. Entries of two threads have
// no order, except those of mappings and segments, which are queued and delivered under the climb
// lock of their device.
//
// All functions concern the calling thread only.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <exception>
#include <vector>

namespace ferro {

using TrackerList = std::vector<c10::cuda::CUDACachingAllocator::AllocatorTraceTracker>;

// `trackers` lives as long as the process.
void queue_for_trackers(const TrackerList& trackers,
                        c10::cuda::CUDACachingAllocator::TraceEntry entry);
bool has_queued_for_trackers() noexcept;
// Calls the trackers. The thread holds no lock except climb locks, which are recursive: a tracker
// may allocate and free.
void deliver_to_trackers() noexcept;

// Returns and clears the last exception of a tracker in this thread; null if there is none.
// Delivery does not throw it, because the memory has already changed hands.
std::exception_ptr take_tracker_failure() noexcept;

}  // namespace ferro
