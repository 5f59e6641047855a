// What a heap consists of.
#pragma once

#include <cstdint>

namespace ferro {

enum class HeapKind : std::uint8_t {
  kPages,          // pages on a line; blocks of all sizes
  kSmallSegments,  // segments of PyTorch's small pool: blocks of at most 1 MiB
  kLargeSegments,  // segments of its large pool
};

}  // namespace ferro
