// What `python -m ferro_alloc top` asks a process for, as text.
#pragma once

#include "ferro/adapter/allocator/cuda_allocator.h"

#include <string>

namespace ferro {

// A line each, of words that are separated by blanks:
//
//   ferro_alloc 1 ACTIVE                        1 is the version of this form; ACTIVE is 0 or 1
//   device NUMBER LAYOUT NAME=VALUE ...         for each device that was used
//   pool DEVICE RESERVED_BYTES NAME             its private pools with memory, the largest first
//   tag DEVICE LIVE_BYTES NAME                  what has live blocks, the largest first
//
// Blocks no request for longer than a statistic of PyTorch's does: no heap is looked at that did not
// change, and no block. Waits for the climb that is under way. O(changed heaps + pools + tags). At
// most kMaxPools pools and kMaxTags tags are named.
inline constexpr std::size_t kMaxPools = 200;
inline constexpr std::size_t kMaxTags = 200;
std::string status_text(const CudaAllocator& allocator);

}  // namespace ferro
