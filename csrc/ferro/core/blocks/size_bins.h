// Blocks of up to 1 MiB in bins of their exact size, doubly linked by left and right, with a bitmap
// of two levels that finds the first bin that is not empty. Every operation is O(1) and allocates
// no host memory. Not thread-safe.
//
// Invariants: a block of `size` bytes is in bin size / kBlockAlignment; bit i of the bitmap == bin
// i is not empty; bit i of its second level == word i of the first is not 0.
#pragma once

#include "ferro/base/bytes.h"
#include "ferro/base/check.h"
#include "ferro/core/types/block.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace ferro {

class SizeBins {
 public:
  // Less than a page: free blocks that contain whole pages are ordered by size and address.
  static constexpr std::size_t kMaxSize = kMiB;

  void push_front(Block* block) {
    const std::size_t bin = bin_of(block->size);
    Block* const first = bins_[bin];
    if (first == nullptr) {
      words_[bin / 64] |= std::uint64_t{1} << (bin % 64);
      filled_words_ |= std::uint64_t{1} << (bin / 64);
    } else {
      first->left = block;
    }
    block->left = nullptr;
    block->right = first;
    bins_[bin] = block;
  }
  // Inserts in front, or after the first block of its size if that has a lower address.
  void insert(Block* block) {
    Block* const first = bins_[bin_of(block->size)];
    if (first == nullptr || block->ptr < first->ptr) {
      push_front(block);
      return;
    }
    block->left = first;
    block->right = first->right;
    first->right = block;
    if (block->right != nullptr) {
      block->right->left = block;
    }
  }
  // `block` is in its bin.
  void remove(Block* block) {
    const std::size_t bin = bin_of(block->size);
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

  // A block of exactly `size` bytes, at most kMaxSize; null when there is none.
  Block* first(std::size_t size) const { return bins_[bin_of(size)]; }
  // A block of the smallest size from `size` (at most kMaxSize) on; null when there is none.
  Block* first_from(std::size_t size) const {
    const std::size_t bin = ceil_div(size, kBlockAlignment);
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
  // Null when empty.
  Block* largest() const {
    if (filled_words_ == 0) {
      return nullptr;
    }
    const auto word = 63 - static_cast<std::size_t>(std::countl_zero(filled_words_));
    return bins_[word * 64 + 63 - static_cast<std::size_t>(std::countl_zero(words_[word]))];
  }
  // Calls `visit(Block*)` from the largest size down, until it returns false. It must not change
  // the bins.
  template <typename Visit>
  void descend(Visit& visit) const {
    for (std::size_t bin = filled_words_ != 0 ? kBins : 0; bin-- > 0;) {
      for (Block* block = bins_[bin]; block != nullptr; block = block->right) {
        if (!visit(block)) {
          return;
        }
      }
    }
  }

  // Recounts, calls `visit(const Block*)` for each block and throws InternalError on a mismatch.
  template <typename Visit>
  void check_invariants(Visit visit) const {
    for (std::size_t word = 0; word < kWords; ++word) {
      std::uint64_t filled = 0;
      for (std::size_t bit = 0; bit < std::min<std::size_t>(64, kBins - word * 64); ++bit) {
        filled |= std::uint64_t{bins_[word * 64 + bit] != nullptr} << bit;
      }
      FERRO_CHECK(filled == words_[word]);
      FERRO_CHECK((filled != 0) == ((filled_words_ >> word & 1) != 0));
      for (; filled != 0; filled &= filled - 1) {
        const std::size_t bin = word * 64 + static_cast<std::size_t>(std::countr_zero(filled));
        const Block* before = nullptr;
        for (const Block* block = bins_[bin]; block != nullptr; block = block->right) {
          FERRO_CHECK(block->left == before && block->size == bin * kBlockAlignment);
          visit(block);
          before = block;
        }
      }
    }
  }

 private:
  static constexpr std::size_t kBins = kMaxSize / kBlockAlignment + 1;
  static constexpr std::size_t kWords = (kBins + 63) / 64;
  static_assert(kWords <= 64, "one word says which words are not empty");

  static constexpr std::size_t bin_of(std::size_t size) { return size / kBlockAlignment; }

  std::uint64_t filled_words_ = 0;
  std::array<std::uint64_t, kWords> words_{};
  std::array<Block*, kBins> bins_{};
};

}  // namespace ferro
