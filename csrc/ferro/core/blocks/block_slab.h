// Host memory for blocks, in chunks. Recycles blocks; frees chunks with the heap. Not thread-safe.
#pragma once

#include "ferro/base/host_chunks.h"
#include "ferro/core/types/block.h"

#include <cstddef>

namespace ferro {

class BlockSlab {
 public:
  Block* make() {
    Block* block = recycled_ != nullptr ? recycled_ : chunks_.make<Block>();
    recycled_ = block->next;
    *block = Block{};
    ++in_use_;
    return block;
  }
  void recycle(Block* block) {
    delete block->extra;
    block->extra = nullptr;
    block->next = recycled_;
    recycled_ = block;
    --in_use_;
  }
  std::size_t in_use() const { return in_use_; }

 private:
  HostChunks chunks_;
  Block* recycled_ = nullptr;
  std::size_t in_use_ = 0;
};

}  // namespace ferro
