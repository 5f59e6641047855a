// Policy: which pages of a heap hold no live byte and can leave it. Pure.
#pragma once

#include "ferro/base/bytes.h"
#include "ferro/driver/types.h"

#include <cstddef>
#include <cstdint>
#include <optional>

namespace ferro {

// A run of whole pages: [begin, begin + bytes), bytes > 0.
struct PageRun {
  DevicePtr begin{};
  std::size_t bytes = 0;

  friend bool operator==(const PageRun&, const PageRun&) = default;
};

// The whole pages inside a free block; none when it covers no page entirely.
inline std::optional<PageRun> whole_pages_inside(DevicePtr block, std::size_t block_bytes,
                                                 std::size_t page_bytes) {
  const std::uint64_t begin = align_up(address_of(block), page_bytes);
  const std::uint64_t end = align_down(address_of(block) + block_bytes, page_bytes);
  if (begin >= end) {
    return std::nullopt;
  }
  return PageRun{DevicePtr{begin}, end - begin};
}

}  // namespace ferro
