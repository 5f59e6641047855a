// Policy: PyTorch's own layout, in segments. Pure.
//
// Source of the numbers and rules: PyTorch's native CUDA caching allocator, whose behaviour they
// reproduce to the byte. Requests up to 1 MiB come from segments of 2 MiB, larger ones below 10 MiB
// from segments of 20 MiB, and all others from one of their own size in multiples of 2 MiB.
#pragma once

#include "ferro/base/bytes.h"
#include "ferro/core/types/block.h"
#include "ferro/core/types/heap_kind.h"
#include "ferro/driver/types.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ferro {

// The settings of PYTORCH_CUDA_ALLOC_CONF that have a meaning for segments. In bytes.
struct SegmentRules {
  static constexpr std::size_t kUnlimited = ~std::size_t{0};

  std::size_t max_split = kUnlimited;              // blocks of this size and above are never split
  std::size_t max_non_split_rounding = 20 * kMiB;  // how much larger than asked such a block may be
  std::size_t large_segment = 20 * kMiB;
  double collect_above = 0;  // share of the limit above which old free segments go; 0: off
};

inline constexpr std::size_t kSmallRequest = kMiB;
constexpr bool is_large(std::size_t size) { return size > kSmallRequest; }
inline constexpr std::size_t kSmallSegment = 2 * kMiB;
inline constexpr std::size_t kLargeRequest = 10 * kMiB;

constexpr HeapKind segment_kind(std::size_t size) {
  return is_large(size) ? HeapKind::kLargeSegments : HeapKind::kSmallSegments;
}
// Small and large blocks of a stream have arenas of their own, as they have segments of their own
// under the native allocator: a program may rely on a small request not taking what a large block
// has left. Besides, a small block between two holes of a graph's pool would keep them apart for
// good: eight captures from small to large held 850 MiB instead of 514.
constexpr HeapKind arena_kind(std::size_t size) {
  return is_large(size) ? HeapKind::kPages : HeapKind::kSmallPages;
}

// Bytes of a new segment for a block of `size` bytes.
constexpr std::size_t segment_bytes(std::size_t size, const SegmentRules& rules) {
  if (size <= kSmallRequest) {
    return kSmallSegment;
  }
  return size < kLargeRequest ? rules.large_segment : align_up(size, kSmallSegment);
}

// May a free block of `block` bytes, the best fit, serve a request of `size`? Oversize blocks are
// for requests that are oversize themselves and nearly as large.
constexpr bool may_serve(std::size_t block, std::size_t size, const SegmentRules& rules) {
  if (size < rules.max_split) {
    return block < rules.max_split;
  }
  return block < size + rules.max_non_split_rounding;
}

// Is the rest of a block cut off?
constexpr bool is_split(std::size_t block, std::size_t size, HeapKind kind, bool no_split,
                        const SegmentRules& rules) {
  if (no_split) {
    return false;
  }
  const std::size_t rest = block - size;
  return kind == HeapKind::kSmallSegments ? rest >= kBlockAlignment
                                          : size < rules.max_split && rest > kSmallRequest;
}

// Which free segments to release so that `wanted` bytes go: at first all that are at least as old
// as the average, then again among those left. `ages` in searches since they became free. Indices
// into `sizes` and `ages`.
std::vector<std::size_t> plan_collection(std::span<const std::size_t> sizes,
                                         std::span<const std::uint32_t> ages, std::size_t wanted);

// Which free segments of one heap to release before a request of `size` that found none: one of at
// least max(size, max_split) bytes, else oversize ones from the largest down until they are as many
// bytes together. `sizes` ascending; indices into it.
struct OversizeRelease {
  std::vector<std::size_t> segments;
  bool enough = false;
};
OversizeRelease plan_oversize_release(std::span<const std::size_t> sizes, std::size_t size,
                                      const SegmentRules& rules);

}  // namespace ferro
