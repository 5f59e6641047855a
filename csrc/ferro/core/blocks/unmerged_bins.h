// Freed blocks that are kept unmerged for the next request of their exact size, so that repeated
// sizes cost O(1) instead of a merge and a split. Last in, first out, because the last freed block
// is the warmest. Not thread-safe.
//
// Invariants: a block here is in state kUnmerged; bytes() == sum of the sizes <= kMaxBytes;
// count() == their number <= kMaxBlocks.
#pragma once

#include "ferro/base/bytes.h"
#include "ferro/base/check.h"
#include "ferro/core/blocks/size_bins.h"
#include "ferro/core/types/block.h"

#include <cstddef>

namespace ferro {

class UnmergedBins {
 public:
  // Larger blocks are merged at once: the cost is small beside the work that uses them, and a large
  // block that stayed unmerged could not serve requests of other sizes.
  static constexpr std::size_t kMaxBlock = SizeBins::kMaxSize;
  // The most bytes that stay unmerged, and so the most that this can add to reserved memory.
  static constexpr std::size_t kMaxBytes = 8 * kMiB;

  // A miss merges all of them; this bound keeps that within about 100 us.
  static constexpr std::size_t kMaxBlocks = 1024;

  bool accepts(std::size_t size) const {
    return size <= kMaxBlock && bytes_ + size <= kMaxBytes && count_ < open_for_;
  }
  // After close(), no block is accepted until open().
  void close() { open_for_ = 0; }
  void open() { open_for_ = kMaxBlocks; }

  void push(Block* block) {
    bins_.push_front(block);
    block->state = BlockState::kUnmerged;
    bytes_ += block->size;
    ++count_;
  }

  // Null when there is no block of exactly `size` bytes.
  Block* pop(std::size_t size) { return size <= kMaxBlock ? remove(bins_.first(size)) : nullptr; }
  // The largest block. Null when all bins are empty.
  Block* pop_largest() { return remove(bins_.largest()); }

  std::size_t bytes() const { return bytes_; }
  std::size_t count() const { return count_; }

  void check_invariants() const {
    std::size_t bytes = 0;
    std::size_t count = 0;
    bins_.check_invariants([&](const Block* block) {
      FERRO_CHECK(block->state == BlockState::kUnmerged);
      bytes += block->size;
      ++count;
    });
    FERRO_CHECK(bytes == bytes_ && bytes_ <= kMaxBytes);
    FERRO_CHECK(count == count_ && count_ <= kMaxBlocks);
  }

 private:
  Block* remove(Block* block) {
    if (block != nullptr) {
      bins_.remove(block);
      bytes_ -= block->size;
      --count_;
    }
    return block;
  }

  SizeBins bins_;
  std::size_t bytes_ = 0;
  std::size_t count_ = 0;
  std::size_t open_for_ = kMaxBlocks;  // count() below which blocks are accepted
};

}  // namespace ferro
