// Policy: divides new pages into handles. Pure.
//
// The driver takes the same time to create, map or move a handle of any size. But a handle moves
// only as a whole, and memory that cannot move is lost to other requests. So handles are small
// relative to all held memory, which bounds the loss; small relative to the remaining room, because
// a loss hurts most there; and above some size small relative to the new memory, because later
// requests often share its handles (docs/adr/0012 lists the alternatives).
#pragma once

#include "ferro/base/bytes.h"

#include <cstddef>
#include <vector>

namespace ferro {

struct HandleRules {
  std::size_t max_bytes = 64 * kMiB;   // of a handle of several pages
  std::size_t small_bytes = 8 * kMiB;  // a handle up to this size may be any part of the request
  std::size_t of_request = 8;          // a larger one is at most 1 / of_request of it
  std::size_t of_room = 512;           // each is at most 1 / of_room of the room
  std::size_t of_held = 128;           // and at most 1 / of_held of held and new memory
};

// Units: pages.
struct NewPages {
  std::size_t wanted = 0;
  std::size_t room = 0;  // that the device and the limits allow, including `wanted`
  std::size_t held = 0;  // before these
};

// The pages of each handle, powers of two, descending; they sum to `wanted`.
std::vector<std::size_t> plan_handles(const NewPages& pages, const HandleRules& rules,
                                      std::size_t page_bytes);

}  // namespace ferro
