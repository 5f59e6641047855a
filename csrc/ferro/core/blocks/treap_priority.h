// The priority of a block in the treaps.
#pragma once

#include "ferro/core/types/block.h"

#include <cstdint>

namespace ferro {

// A function of the address needs no field, and makes the shape of a tree, and so every run,
// reproducible. The constants are those of MurmurHash3's 64-bit finaliser.
inline std::uint64_t treap_priority(const Block* block) {
  std::uint64_t x = address_of(block->ptr) >> 9;
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdULL;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53ULL;
  return x ^ (x >> 33);
}

}  // namespace ferro
