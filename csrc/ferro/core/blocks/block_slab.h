// Host memory for blocks, in chunks. Recycles blocks; frees chunks with the heap. Not thread-safe.
#pragma once

#include "ferro/base/host_chunks.h"
#include "ferro/core/types/block.h"

#include <cstddef>
#include <new>
#include <span>

namespace ferro {

class BlockSlab {
 public:
  Block* make() {
    Block* block = recycled_ != nullptr ? recycled_ : fresh();
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
  Block* fresh() {
    if (unused_.empty()) {
      const std::span<std::byte> chunk = chunks_.add();
      unused_ = {reinterpret_cast<Block*>(chunk.data()), chunk.size() / sizeof(Block)};
    }
    Block* block = ::new (&unused_.front()) Block{};
    unused_ = unused_.subspan(1);
    return block;
  }

  HostChunks chunks_;
  std::span<Block> unused_;  // not yet constructed
  Block* recycled_ = nullptr;
  std::size_t in_use_ = 0;
};

}  // namespace ferro
