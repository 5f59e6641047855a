// What a heap consists of.
#pragma once

#include <cstdint>

namespace ferro {

enum class HeapKind : std::uint8_t {
  kPages,          // an arena of pages; blocks of all sizes
  kSmallPages,     // the same for blocks of at most 1 MiB, where pages cannot move
  kKeptPages,      // the same for blocks that a capture is expected to keep; of all sizes
  kSmallSegments,  // segments of PyTorch's small pool: blocks of at most 1 MiB
  kLargeSegments,  // segments of its large pool
};

constexpr bool is_paged(HeapKind kind) {
  return kind == HeapKind::kPages || kind == HeapKind::kSmallPages || kind == HeapKind::kKeptPages;
}

}  // namespace ferro
