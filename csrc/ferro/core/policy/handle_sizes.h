// Policy: behind how many pages each of the handles is that new memory comes in. Pure.
//
// The driver takes the same time for a handle of any size, when it is created, mapped and moved,
// but a handle moves as a whole or not at all, and what cannot move is lost to other requests. So
// handles are small beside all memory that is there, which bounds what is lost; small beside the
// room that is left, because there it hurts; and beyond some size small beside what is created,
// because that often shares its handles with what comes later (docs/adr/0012 has what was tried).
#pragma once

#include "ferro/base/bytes.h"

#include <cstddef>
#include <vector>

namespace ferro {

struct HandleRules {
  std::size_t max_bytes = 64 * kMiB;   // of a handle of several pages
  std::size_t small_bytes = 8 * kMiB;  // of one that may be any part of what is created
  std::size_t of_request = 8;          // a larger one is at most this part of it
  std::size_t of_room = 512;           // and each at most this part of what still could be
  std::size_t of_held = 128;           // and this part of what there is then
};

// Units: pages.
struct NewPages {
  std::size_t wanted = 0;
  std::size_t room = 0;  // that the device and the limits have, `wanted` included
  std::size_t held = 0;  // before
};

// The pages of each handle, powers of two, descending; they sum to `wanted`.
std::vector<std::size_t> plan_handles(const NewPages& pages, const HandleRules& rules,
                                      std::size_t page_bytes);

}  // namespace ferro
