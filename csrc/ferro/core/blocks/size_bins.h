// Free blocks of up to 1 MiB in bins of their exact size. Of a size, the block with the lowest
// address comes first. A bin is a leftist heap of its blocks. Allocates no host memory. Not
// thread-safe.
//
// Cost: O(1) to find a size; O(log of the blocks of the size) to insert and remove, also at worst.
//
// Invariants: those of BinHeads; a block is in the bin of its size, and above its parent `up`;
// rank == 1 + the right child's rank <= 1 + the left child's rank, where no child has rank 0.
#pragma once

#include "ferro/base/check.h"
#include "ferro/core/blocks/bin_heads.h"
#include "ferro/core/types/block.h"

#include <cstddef>
#include <cstdint>
#include <utility>

namespace ferro {

class SizeBins {
 public:
  static constexpr std::size_t kMaxSize = BinHeads::kMaxSize;

  void insert(Block* block) {
    block->left = block->right = block->up = nullptr;
    block->rank = 1;
    heads_.set_first(block->size, meld(heads_.first(block->size), block));
  }
  // `block` is in its bin.
  void remove(Block* block) {
    Block* const rest = meld(block->left, block->right);
    Block* parent = block->up;
    if (rest != nullptr) {
      rest->up = parent;
    }
    if (parent == nullptr) {
      heads_.set_first(block->size, rest);
    } else {
      (parent->left == block ? parent->left : parent->right) = rest;
      while (parent != nullptr && update(parent)) {
        parent = parent->up;
      }
    }
    block->left = block->right = block->up = nullptr;
  }

  // The lowest block of the smallest size from `size` (at most kMaxSize) on; null when there is
  // none.
  Block* first_from(std::size_t size) const { return heads_.first_from(size); }
  // Null when empty.
  Block* largest() const { return heads_.largest(); }
  // Calls `visit(Block*)` from the largest size down, in no order within a size, until it returns
  // false. It must not change the bins.
  template <typename Visit>
  void descend(Visit& visit) const {
    heads_.descend([&](Block* block) {
      for (; block != nullptr; block = next(block)) {
        if (!visit(block)) {
          return false;
        }
      }
      return true;
    });
  }

  // Recounts, calls `visit(const Block*)` for each block and throws InternalError on a mismatch.
  template <typename Visit>
  void check_invariants(Visit visit) const {
    heads_.check_invariants();
    heads_.descend([&](Block* first) {
      FERRO_CHECK(heads_.first(first->size) == first && first->up == nullptr);
      for (Block* block = first; block != nullptr; block = next(block)) {
        FERRO_CHECK(block->size == first->size);
        FERRO_CHECK(block->rank == rank(block->right) + 1 && block->rank <= rank(block->left) + 1);
        for (const Block* child : {block->left, block->right}) {
          FERRO_CHECK(child == nullptr || (child->up == block && child->ptr > block->ptr));
        }
        visit(block);
      }
      return true;
    });
  }

 private:
  static std::uint8_t rank(const Block* block) { return block != nullptr ? block->rank : 0; }

  // Makes the invariant of the rank hold for a block whose children changed. Whether its rank
  // changed.
  static bool update(Block* block) {
    if (rank(block->left) < rank(block->right)) {
      std::swap(block->left, block->right);
    }
    const auto now = static_cast<std::uint8_t>(rank(block->right) + 1);
    return std::exchange(block->rank, now) != now;
  }

  // Joins two heaps, either of which may be null, along their rightmost paths.
  static Block* meld(Block* a, Block* b) {
    Block* root = nullptr;
    Block** link = &root;
    Block* parent = nullptr;
    while (a != nullptr && b != nullptr) {
      if (b->ptr < a->ptr) {
        std::swap(a, b);
      }
      *link = a;
      a->up = parent;
      parent = a;
      link = &a->right;
      a = a->right;
    }
    *link = a != nullptr ? a : b;
    if (*link != nullptr) {
      (*link)->up = parent;
    }
    for (; parent != nullptr; parent = parent->up) {
      update(parent);
    }
    return root;
  }

  // The block after `block` in the order parent, left, right; null after the last one.
  static Block* next(Block* block) {
    if (block->left != nullptr) {
      return block->left;  // there is no right child without it
    }
    while (block->up != nullptr && (block->up->right == block || block->up->right == nullptr)) {
      block = block->up;
    }
    return block->up != nullptr ? block->up->right : nullptr;
  }

  BinHeads heads_;
};

}  // namespace ferro
