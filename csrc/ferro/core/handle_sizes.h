// Policy: behind how many pages each of the handles is that new memory comes in. Pure.
//
// The driver takes the same time for a handle of any size, when it is created, mapped and moved,
// but a handle moves as a whole or not at all. So what is created at one time comes in handles of
// a share of it, which bounds the number of calls, and of a smaller one of the room that is left,
// because what cannot move hurts where room is short (docs/adr/0012 has what was tried).
#pragma once

#include "ferro/base/bytes.h"

#include <cstddef>
#include <vector>

namespace ferro {

struct HandleRules {
  std::size_t max_bytes = 64 * kMiB;  // of a handle of several pages
  std::size_t of_request = 8;         // a handle is at most this part of what is created
  std::size_t of_room = 256;          // and this part of what still could be
};

// Units: pages.
struct NewPages {
  std::size_t wanted = 0;
  std::size_t room = 0;  // that the device and the limits have, `wanted` included
};

// The pages of each handle, powers of two, descending; they sum to `wanted`.
std::vector<std::size_t> plan_handles(const NewPages& pages, const HandleRules& rules,
                                      std::size_t page_bytes);

}  // namespace ferro
