// The walk over a heap's blocks, for the sources of Heap only.
#pragma once

#include "ferro/core/heap.h"

namespace ferro {

template <typename Function>
void Heap::for_each_block(Function function) {
  for (const std::unique_ptr<Span>& span : spans_) {
    for (Block* block = span->first; block != nullptr; block = block->next) {
      function(*block);
    }
  }
}

}  // namespace ferro
