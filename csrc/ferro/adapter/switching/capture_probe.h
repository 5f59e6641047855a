// Detects graph captures in this process.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <functional>

namespace ferro {

// Queries this thread's current stream on each device that has a context, and all of PyTorch's
// streams on those for which `may_capture` returns true. Does not detect a capture of another
// thread on a stream from outside PyTorch.
bool capture_is_running(const std::function<bool(c10::DeviceIndex)>& may_capture);

// Whether PyTorch's native allocator sends allocations of the device to a private pool, during a
// capture or for another reason. Empties its cache.
bool is_diverting(c10::cuda::CUDACachingAllocator::CUDAAllocator& native, c10::DeviceIndex device);

}  // namespace ferro
