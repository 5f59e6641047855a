// The text that `python -m ferro_alloc top` requests from a process.
#pragma once

#include <cstddef>
#include <string>

namespace ferro {

class CudaAllocator;

// Each line has words separated by blanks:
//
//   ferro_alloc 3 ACTIVE                        3 is the version of this form; ACTIVE is 0 or 1
//   device NUMBER LAYOUT NAME=VALUE ...         for each device that was used
//   pool DEVICE RESERVED_BYTES NAME             its private pools with memory, the largest first
//   tag DEVICE LIVE_BYTES NAME                  tags with live blocks, the largest first
//
// Locks each heap briefly, as PyTorch's snapshot does, and reads no live block. Waits for a climb.
// O(heaps + free blocks of at least a page + pools + tags). Names kMaxPools pools, kMaxTags tags.
inline constexpr std::size_t kMaxPools = 200;
inline constexpr std::size_t kMaxTags = 200;
std::string status_text(CudaAllocator& allocator);

}  // namespace ferro
