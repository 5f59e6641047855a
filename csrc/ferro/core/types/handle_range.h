// A handle and its number of pages. A handle is created, moved and released as a whole.
#pragma once

#include "ferro/driver/types.h"

#include <cstddef>
#include <span>

namespace ferro {

struct HandleRange {
  PageHandle handle = kNoPage;
  std::size_t pages = 0;  // at least 1

  friend bool operator==(const HandleRange&, const HandleRange&) = default;
};

inline std::size_t pages_in(std::span<const HandleRange> ranges) {
  std::size_t pages = 0;
  for (const HandleRange& range : ranges) {
    pages += range.pages;
  }
  return pages;
}

}  // namespace ferro
