// The kinds of heaps, by the blocks that they hold.
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

// The native allocator's limit between small and large blocks.
inline constexpr std::size_t kSmallRequest = kMiB;
constexpr bool is_large(std::size_t size) { return size > kSmallRequest; }

// Small and large blocks of a stream have separate heaps, as they have separate segments under the
// native allocator: a program may rely on small requests not taking the memory of a freed large
// block. Besides, a small block between two holes of a graph's pool would separate them
// permanently: eight captures from small to large held 850 MiB instead of 514.
constexpr HeapKind heap_kind(std::size_t size) {
  return is_large(size) ? HeapKind::kPages : HeapKind::kSmallPages;
}

}  // namespace ferro
