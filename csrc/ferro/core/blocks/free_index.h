// Finds the best fit: the smallest free block that is large enough. Among equal sizes the lowest
// address comes first: then the far end of the arena stays empty, and the choice depends only on
// which blocks are free, not on the order of their frees. Small blocks lie in bins of their exact
// size. Large blocks, of which there are few, lie in a treap. Links are in the blocks: no operation
// allocates host memory. Not thread-safe.
//
// Cost of insert and remove: O(log of the blocks of the size) in bins, O(log of the large blocks)
// in the treap. Cost of the best fit: O(1) in bins, else that of the treap.
//
// Invariants: a block of at most SizeBins::kMaxSize bytes is in the bins; larger ones are in the
// treap, whose in-order traversal is ascending in (size, address) and in which a parent's priority
// is not below its children's; every block in the index is in state kFree.
#pragma once

#include "ferro/core/blocks/size_bins.h"
#include "ferro/core/types/block.h"

#include <cstddef>

namespace ferro {

class FreeIndex {
 public:
  void insert(Block* block) {
    block->size <= SizeBins::kMaxSize ? small_.insert(block) : insert_large(block);
    ++count_;
    bytes_ += block->size;
  }
  // `block` is in the index.
  void remove(Block* block) {
    block->size <= SizeBins::kMaxSize ? small_.remove(block) : remove_large(block);
    --count_;
    bytes_ -= block->size;
  }
  // Null when no block has at least `size` bytes. Does not change the index.
  Block* best_fit(std::size_t size) const {
    if (size <= SizeBins::kMaxSize) {
      if (Block* block = small_.first_from(size)) {
        return block;
      }
    }
    return best_large(size);
  }
  // Null when empty.
  Block* largest() const;
  // Calls `visit(Block*)` from the largest block down, until it returns false. It must not change
  // the index.
  template <typename Visit>
  void descend(Visit visit) const {
    if (descend_below(root_, visit)) {
      small_.descend(visit);
    }
  }

  std::size_t count() const { return count_; }
  std::size_t bytes() const { return bytes_; }
  // Recounts and throws InternalError on a mismatch.
  void check_invariants() const;

 private:
  void insert_large(Block* block);
  void remove_large(Block* block);
  Block* best_large(std::size_t size) const;
  // The recursion is as deep as the treap, about 2 log2 of its size.
  template <typename Visit>
  static bool descend_below(Block* block, Visit& visit) {
    return block == nullptr || (descend_below(block->right, visit) && visit(block) &&
                                descend_below(block->left, visit));
  }

  Block* root_ = nullptr;
  std::size_t count_ = 0;
  std::size_t bytes_ = 0;
  SizeBins small_;
};

}  // namespace ferro
