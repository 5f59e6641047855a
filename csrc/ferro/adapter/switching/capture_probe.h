// Does a graph capture run somewhere in this process?
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>

#include <functional>

namespace ferro {

// Looks at this thread's current stream of each device that has a context, and at all of PyTorch's
// streams of those for which `may_capture` says so. A stream from outside of PyTorch that another
// thread captures is not seen.
bool capture_is_running(const std::function<bool(c10::DeviceIndex)>& may_capture);

// Is PyTorch's native allocator sending allocations of the device to a private pool? It does for
// the length of a capture, and for other reasons. Empties its cache.
bool is_diverting(c10::cuda::CUDACachingAllocator::CUDAAllocator& native, c10::DeviceIndex device);

}  // namespace ferro
