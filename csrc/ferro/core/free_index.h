// Best fit: the smallest free block that is large enough, and of those the one with the lowest
// address, which keeps the far end of the line empty. A treap threaded through the blocks, so no
// operation allocates host memory. Not thread-safe.
//
// Invariant: in-order traversal is ascending in (size, address); a parent's priority is not below
// its children's; every block in it is in state kFree.
#pragma once

#include "ferro/core/block.h"

#include <cstddef>

namespace ferro {

class FreeIndex {
 public:
  void insert(Block* block);
  // `block` is in the index.
  void remove(Block* block);
  // Null when no block has at least `size` bytes. Leaves the index as it is.
  Block* best_fit(std::size_t size) const;
  // Null when empty.
  Block* largest() const;

  std::size_t count() const { return count_; }
  std::size_t bytes() const { return bytes_; }
  // Recounts and throws InternalError on a mismatch.
  void check_invariants() const;

 private:
  Block* root_ = nullptr;
  std::size_t count_ = 0;
  std::size_t bytes_ = 0;
};

}  // namespace ferro
