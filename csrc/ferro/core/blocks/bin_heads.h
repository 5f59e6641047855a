// The first block of each bin, one bin for each size of up to 1 MiB, with a bitmap of two levels that
// finds the first bin that is not empty. How a bin links its blocks is up to the user. O(1), and
// allocates no host memory. Not thread-safe.
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

class BinHeads {
 public:
  // Less than a page: free blocks that contain whole pages are ordered by size and address.
  static constexpr std::size_t kMaxSize = kMiB;

  // The first block of exactly `size` bytes, at most kMaxSize; null when there is none.
  Block* first(std::size_t size) const { return bins_[bin_of(size)]; }
  // Null: the bin of `size` is empty now.
  void set_first(std::size_t size, Block* block) {
    const std::size_t bin = bin_of(size);
    if ((bins_[bin] == nullptr) != (block == nullptr)) {
      toggle(bin);
    }
    bins_[bin] = block;
  }
  // The first block of the smallest size from `size` (at most kMaxSize) on; null when there is none.
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
  // Calls `visit(Block*)` for the first block of each bin, from the largest size down, until it
  // returns false. It must not change the bins.
  template <typename Visit>
  void descend(Visit visit) const {
    for (std::size_t bin = filled_words_ != 0 ? kBins : 0; bin-- > 0;) {
      if (bins_[bin] != nullptr && !visit(bins_[bin])) {
        return;
      }
    }
  }

  // Recounts and throws InternalError on a mismatch. Does not look at the blocks.
  void check_invariants() const {
    for (std::size_t word = 0; word < kWords; ++word) {
      std::uint64_t filled = 0;
      for (std::size_t bit = 0; bit < std::min<std::size_t>(64, kBins - word * 64); ++bit) {
        filled |= std::uint64_t{bins_[word * 64 + bit] != nullptr} << bit;
      }
      FERRO_CHECK(filled == words_[word]);
      FERRO_CHECK((filled != 0) == ((filled_words_ >> word & 1) != 0));
    }
  }

  static constexpr std::size_t bin_of(std::size_t size) { return size / kBlockAlignment; }

 private:
  static constexpr std::size_t kBins = kMaxSize / kBlockAlignment + 1;
  static constexpr std::size_t kWords = (kBins + 63) / 64;
  static_assert(kWords <= 64, "one word says which words are not empty");

  void toggle(std::size_t bin) {
    std::uint64_t& word = words_[bin / 64];
    const std::uint64_t word_bit = std::uint64_t{1} << (bin / 64);
    word ^= std::uint64_t{1} << (bin % 64);
    filled_words_ = word != 0 ? filled_words_ | word_bit : filled_words_ & ~word_bit;
  }

  std::uint64_t filled_words_ = 0;
  std::array<std::uint64_t, kWords> words_{};
  std::array<Block*, kBins> bins_{};
};

}  // namespace ferro
