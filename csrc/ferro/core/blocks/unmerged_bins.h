// Freed blocks that are offered again, as they are, to the next request of their size: O(1) for the
// sizes that repeat, without merging and splitting in between. Last in, first out, because the last
// freed block is the warmest. Not thread-safe.
//
// Invariant: a block of `size` bytes is in bin size / kBlockAlignment and in state kUnmerged;
// bytes() == sum of the sizes <= kMaxBytes; count() == their number <= kMaxBlocks; bit i of the bitmap == bin i is not empty.
#pragma once

#include "ferro/base/bytes.h"
#include "ferro/base/check.h"
#include "ferro/core/types/block.h"

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace ferro {

class UnmergedBins {
 public:
  // Larger blocks are merged at once: their cost is small beside what uses them, and an unmerged
  // large block would be missing where the next request needs it.
  static constexpr std::size_t kMaxBlock = kMiB;
  // What may be kept from merging, and so the most that it can cost in reserved memory.
  static constexpr std::size_t kMaxBytes = 8 * kMiB;

  // So that merging all of them, which a miss does, stays within some 100 us.
  static constexpr std::size_t kMaxBlocks = 1024;

  bool accepts(std::size_t size) const {
    return size <= kMaxBlock && bytes_ + size <= kMaxBytes && count_ < open_for_;
  }
  // No block is accepted until they are opened again.
  void close() { open_for_ = 0; }
  void open() { open_for_ = kMaxBlocks; }

  void push(Block* block) {
    Block*& head = bins_[bin_of(block->size)];
    block->left = nullptr;
    block->right = head;
    if (head != nullptr) {
      head->left = block;
    }
    head = block;
    block->state = BlockState::kUnmerged;
    bytes_ += block->size;
    ++count_;
    mark(bin_of(block->size));
  }

  // Null when there is no block of exactly `size` bytes.
  Block* pop(std::size_t size) {
    if (size > kMaxBlock) {
      return nullptr;
    }
    Block* block = bins_[bin_of(size)];
    if (block != nullptr) {
      remove(block);
    }
    return block;
  }

  // The largest block. Null when all bins are empty.
  Block* pop_largest() {
    for (std::size_t word = occupied_.size(); word-- > 0;) {
      if (occupied_[word] != 0) {
        const auto bit = 63 - static_cast<std::size_t>(std::countl_zero(occupied_[word]));
        Block* block = bins_[word * 64 + bit];
        remove(block);
        return block;
      }
    }
    return nullptr;
  }

  std::size_t bytes() const { return bytes_; }
  std::size_t count() const { return count_; }

  void check_invariants() const {
    std::size_t bytes = 0;
    std::size_t count = 0;
    for (std::size_t bin = 0; bin < bins_.size(); ++bin) {
      FERRO_CHECK((bins_[bin] != nullptr) == ((occupied_[bin / 64] >> (bin % 64) & 1) != 0));
      for (const Block* block = bins_[bin]; block != nullptr; block = block->right) {
        FERRO_CHECK(block->state == BlockState::kUnmerged && bin_of(block->size) == bin);
        bytes += block->size;
        ++count;
      }
    }
    FERRO_CHECK(bytes == bytes_ && bytes_ <= kMaxBytes);
    FERRO_CHECK(count == count_ && count_ <= kMaxBlocks);
  }

 private:
  static constexpr std::size_t kBins = kMaxBlock / kBlockAlignment + 1;
  static constexpr std::size_t bin_of(std::size_t size) { return size / kBlockAlignment; }

  void mark(std::size_t bin) { occupied_[bin / 64] |= std::uint64_t{1} << (bin % 64); }
  void unmark(std::size_t bin) { occupied_[bin / 64] &= ~(std::uint64_t{1} << (bin % 64)); }

  // `block` is the head of its bin.
  void remove(Block* block) {
    Block*& head = bins_[bin_of(block->size)];
    head = block->right;
    if (head != nullptr) {
      head->left = nullptr;
    } else {
      unmark(bin_of(block->size));
    }
    block->left = nullptr;
    block->right = nullptr;
    bytes_ -= block->size;
    --count_;
  }

  std::array<Block*, kBins> bins_{};
  std::array<std::uint64_t, (kBins + 63) / 64> occupied_{};
  std::size_t bytes_ = 0;
  std::size_t count_ = 0;
  std::size_t open_for_ = kMaxBlocks;  // blocks
};

}  // namespace ferro
