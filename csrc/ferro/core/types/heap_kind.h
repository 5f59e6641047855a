// Which blocks a heap is for.
#pragma once

#include "ferro/base/bytes.h"

#include <cstddef>
#include <cstdint>

namespace ferro {

enum class HeapKind : std::uint8_t {
  kPages,       // blocks of more than 1 MiB
  kSmallPages,  // blocks of at most 1 MiB
  kKeptPages,   // blocks of all sizes that a capture is expected to keep
};

// Where the native allocator divides small blocks from large ones.
inline constexpr std::size_t kSmallRequest = kMiB;
constexpr bool is_large(std::size_t size) { return size > kSmallRequest; }

// Small and large blocks of a stream have heaps of their own, as they have segments of their own
// under the native allocator: a program may rely on a small request not taking what a large block
// has left. Besides, a small block between two holes of a graph's pool would keep them apart for
// good: eight captures from small to large held 850 MiB instead of 514.
constexpr HeapKind heap_kind(std::size_t size) {
  return is_large(size) ? HeapKind::kPages : HeapKind::kSmallPages;
}

}  // namespace ferro
