// Entries for trace trackers, which are code of the program: each thread queues what it causes under
// the lock of a heap, and delivers that where it has no such lock.
//
// Each tracker hears the entries of one thread in their order, also where a tracker allocates, and
// all of them hear an entry before the call of the allocator that caused it returns. Entries of two
// threads are in no order, but those of mappings and segments are: they are queued and delivered
// under the climb lock of their device.
//
// Functions concern the calling thread alone.
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
// Calls the trackers. The thread has no lock but climb locks, which are recursive: a tracker may
// allocate and free.
void deliver_to_trackers() noexcept;

// What a tracker threw last in this thread, until it is asked for; null when none did. It must not
// stop memory that has changed hands already.
std::exception_ptr take_tracker_failure() noexcept;

}  // namespace ferro
