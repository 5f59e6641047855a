// Host memory for blocks, in chunks, recycled and given back with the heap. Not thread-safe.
#pragma once

#include "ferro/core/types/block.h"

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

namespace ferro {

class BlockSlab {
 public:
  Block* make() {
    if (unused_ == nullptr) {
      grow();
    }
    Block* block = unused_;
    unused_ = block->next;
    *block = Block{};
    ++in_use_;
    return block;
  }
  void recycle(Block* block) {
    delete block->extra;
    block->extra = nullptr;
    block->next = unused_;
    unused_ = block;
    --in_use_;
  }
  std::size_t in_use() const { return in_use_; }

 private:
  static constexpr std::size_t kChunk = 128;

  void grow() {
    chunks_.push_back(std::make_unique<std::array<Block, kChunk>>());
    for (Block& block : *chunks_.back()) {
      block.next = unused_;
      unused_ = &block;
    }
  }

  std::vector<std::unique_ptr<std::array<Block, kChunk>>> chunks_;
  Block* unused_ = nullptr;
  std::size_t in_use_ = 0;
};

}  // namespace ferro
