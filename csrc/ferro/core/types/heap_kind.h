// What a heap consists of.
#pragma once

#include <cstdint>

namespace ferro {

enum class HeapKind : std::uint8_t {
  kPages,          // an arena of pages for blocks of more than 1 MiB
  kSmallPages,     // the same for blocks of at most 1 MiB
  kKeptPages,      // the same for blocks of all sizes that a capture is expected to keep
  kSmallSegments,  // segments of PyTorch's small pool: blocks of at most 1 MiB
  kLargeSegments,  // segments of its large pool
};

constexpr bool is_paged(HeapKind kind) {
  return kind == HeapKind::kPages || kind == HeapKind::kSmallPages || kind == HeapKind::kKeptPages;
}

}  // namespace ferro
