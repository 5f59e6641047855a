// Best fit: the smallest free block that is large enough. Small blocks lie in a bin of their exact
// size, so that their number does not matter; large ones, of which there are few, in a treap, where
// among equals the lowest address comes first, which keeps the far end of the arena empty. A bin
// keeps the lower of its two first addresses in front, which on recorded traces does as well. Who
// needs the lowest address at every size (the segments, as PyTorch does) has no bins.
// Threaded through the blocks, so no operation allocates host memory. Not thread-safe.
//
// Cost: insert, remove and best fit of blocks in bins O(1), of others O(log of their number).
//
// Invariants: a block of `size` <= largest_binned is in bin size / kBlockAlignment, doubly linked by left
// and right; bit i of the bitmap == bin i is not empty; larger ones are in the treap, whose in-order
// traversal is ascending in (size, address) and in which a parent's priority is not below its
// children's; every block in the index is in state kFree.
#pragma once

#include "ferro/base/bytes.h"
#include "ferro/core/types/block.h"

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace ferro {

class FreeIndex {
 public:
  // A unit below a page: whole pages are in the treap, in order of size.
  static constexpr std::size_t kMaxSmall = kMiB;

  enum class Ties { kAny, kLowestAddress };

  explicit FreeIndex(Ties ties = Ties::kAny)
      : largest_binned_(ties == Ties::kAny ? kMaxSmall : 0) {}

  void insert(Block* block) {
    block->size <= largest_binned_ ? insert_small(block) : insert_large(block);
    ++count_;
    bytes_ += block->size;
  }
  // `block` is in the index.
  void remove(Block* block) {
    block->size <= largest_binned_ ? remove_small(block) : remove_large(block);
    --count_;
    bytes_ -= block->size;
  }
  // Null when no block has at least `size` bytes. Leaves the index as it is.
  Block* best_fit(std::size_t size) const {
    if (size <= largest_binned_) {
      if (Block* block = first_small(ceil_div(size, kBlockAlignment))) {
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
    if (!descend_below(root_, visit)) {
      return;
    }
    for (std::size_t bin = filled_words_ != 0 ? kBins : 0; bin-- > 0;) {
      for (Block* block = bins_[bin]; block != nullptr; block = block->right) {
        if (!visit(block)) {
          return;
        }
      }
    }
  }

  std::size_t count() const { return count_; }
  std::size_t bytes() const { return bytes_; }
  // Recounts and throws InternalError on a mismatch.
  void check_invariants() const;

 private:
  static constexpr std::size_t kBins = kMaxSmall / kBlockAlignment + 1;
  static constexpr std::size_t kWords = (kBins + 63) / 64;
  static_assert(kWords <= 64, "one word says which words are not empty");

  void insert_small(Block* block) {
    const std::size_t bin = block->size / kBlockAlignment;
    Block* first = bins_[bin];
    if (first == nullptr) {
      words_[bin / 64] |= std::uint64_t{1} << (bin % 64);
      filled_words_ |= std::uint64_t{1} << (bin / 64);
    }
    if (first == nullptr || block->ptr < first->ptr) {
      block->left = nullptr;
      block->right = first;
      bins_[bin] = block;
    } else {
      block->left = first;
      block->right = first->right;
      first->right = block;
    }
    if (block->right != nullptr) {
      block->right->left = block;
    }
  }
  void remove_small(Block* block) {
    const std::size_t bin = block->size / kBlockAlignment;
    (block->left != nullptr ? block->left->right : bins_[bin]) = block->right;
    if (block->right != nullptr) {
      block->right->left = block->left;
    }
    block->left = block->right = nullptr;
    if (bins_[bin] == nullptr) {
      words_[bin / 64] &= ~(std::uint64_t{1} << (bin % 64));
      if (words_[bin / 64] == 0) {
        filled_words_ &= ~(std::uint64_t{1} << (bin / 64));
      }
    }
  }
  // Of the first bin from `bin` on that is not empty; `bin` < kBins.
  Block* first_small(std::size_t bin) const {
    std::size_t word = bin / 64;
    std::uint64_t bits = words_[word] & (~std::uint64_t{0} << (bin % 64));
    if (bits == 0) {
      const std::uint64_t later = word + 1 < 64 ? filled_words_ >> (word + 1) << (word + 1) : 0;
      if (later == 0) {
        return nullptr;
      }
      word = static_cast<std::size_t>(std::countr_zero(later));
      bits = words_[word];
    }
    return bins_[word * 64 + static_cast<std::size_t>(std::countr_zero(bits))];
  }

  void insert_large(Block* block);
  void remove_large(Block* block);
  Block* best_large(std::size_t size) const;
  // The depth is that of the treap, some 2 log2 of its number.
  template <typename Visit>
  static bool descend_below(Block* block, Visit& visit) {
    return block == nullptr || (descend_below(block->right, visit) && visit(block) &&
                                descend_below(block->left, visit));
  }

  const std::size_t largest_binned_;
  Block* root_ = nullptr;
  std::size_t count_ = 0;
  std::size_t bytes_ = 0;
  std::uint64_t filled_words_ = 0;
  std::array<std::uint64_t, kWords> words_{};
  std::array<Block*, kBins> bins_{};
};

}  // namespace ferro
