// What `python -m ferro_alloc top` asks a process for, as text.
#pragma once

#include "ferro/adapter/allocator/cuda_allocator.h"

#include <string>

namespace ferro {

// A line each, of words that are separated by blanks:
//
//   ferro_alloc 2 ACTIVE                        2 is the version of this form; ACTIVE is 0 or 1
//   device NUMBER LAYOUT NAME=VALUE ...         for each device that was used
//   pool DEVICE RESERVED_BYTES NAME             its private pools with memory, the largest first
//   tag DEVICE LIVE_BYTES NAME                  what has live blocks, the largest first
//
// Holds each heap for a moment, as a snapshot of PyTorch's does, and looks at no live block. Waits for
// the climb that is under way. O(heaps + free blocks of a page and more + pools + tags). At most
// kMaxPools pools and kMaxTags tags are named.
inline constexpr std::size_t kMaxPools = 200;
inline constexpr std::size_t kMaxTags = 200;
std::string status_text(CudaAllocator& allocator);

}  // namespace ferro
