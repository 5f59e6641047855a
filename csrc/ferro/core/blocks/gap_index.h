// Keeps the gaps of an arena in order of address and finds the first that is long enough. A treap
// with its links in the blocks, so no operation allocates host memory. Not thread-safe. Every
// operation takes O(log count()).
//
// Invariant: in-order traversal is ascending in address; every block in it is in state kGap; the
// `requested` of a block in it is the size of the largest gap of its subtree.
#pragma once

#include "ferro/core/types/block.h"

#include <cstddef>

namespace ferro {

class GapIndex {
 public:
  void insert(Block* gap);
  // `gap` is in the index and has the size with which it was inserted.
  void remove(Block* gap);
  // The gap of at least `bytes` with the lowest address; null when none is that long.
  Block* first_fit(std::size_t bytes) const;

  std::size_t count() const { return count_; }
  // Calls `visit(Block*)` in order of address.
  template <typename Visit>
  void for_each(Visit visit) const {
    visit_below(root_, visit);
  }
  // Recounts and throws InternalError on a mismatch.
  void check_invariants() const;

 private:
  template <typename Visit>
  static void visit_below(Block* gap, Visit& visit) {
    if (gap != nullptr) {
      visit_below(gap->left, visit);
      visit(gap);
      visit_below(gap->right, visit);
    }
  }

  Block* root_ = nullptr;
  std::size_t count_ = 0;
};

}  // namespace ferro
