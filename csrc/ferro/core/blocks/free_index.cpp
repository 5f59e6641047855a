#include "ferro/core/blocks/free_index.h"

#include "ferro/base/check.h"
#include "ferro/core/blocks/treap_priority.h"

#include <cstdint>

namespace ferro {
namespace {

bool precedes(const Block* a, const Block* b) {
  return a->size != b->size ? a->size < b->size : a->ptr < b->ptr;
}

struct Recount {
  std::size_t count = 0;
  std::size_t bytes = 0;
  const Block* last = nullptr;
};

void recount(const Block* block, Recount& seen) {
  if (block == nullptr) {
    return;
  }
  FERRO_CHECK(block->left == nullptr || treap_priority(block->left) <= treap_priority(block));
  FERRO_CHECK(block->right == nullptr || treap_priority(block->right) <= treap_priority(block));
  recount(block->left, seen);
  FERRO_CHECK(seen.last == nullptr || precedes(seen.last, block));
  FERRO_CHECK(block->is_free() && block->size > SizeBins::kMaxSize);
  seen.last = block;
  ++seen.count;
  seen.bytes += block->size;
  recount(block->right, seen);
}

}  // namespace

void FreeIndex::insert_large(Block* block) {
  const std::uint64_t wanted = treap_priority(block);
  Block** link = &root_;
  while (*link != nullptr && treap_priority(*link) >= wanted) {
    link = precedes(block, *link) ? &(*link)->left : &(*link)->right;
  }
  // Split the subtree below into what precedes the block and what follows it.
  Block* rest = *link;
  *link = block;
  Block** before = &block->left;
  Block** after = &block->right;
  while (rest != nullptr) {
    if (precedes(rest, block)) {
      *before = rest;
      before = &rest->right;
      rest = rest->right;
    } else {
      *after = rest;
      after = &rest->left;
      rest = rest->left;
    }
  }
  *before = nullptr;
  *after = nullptr;
}

void FreeIndex::remove_large(Block* block) {
  Block** link = &root_;
  while (*link != block) {
    FERRO_ASSERT(*link != nullptr);
    link = precedes(block, *link) ? &(*link)->left : &(*link)->right;
  }
  // Join the two subtrees in the block's place.
  Block* low = block->left;
  Block* high = block->right;
  while (low != nullptr && high != nullptr) {
    if (treap_priority(low) >= treap_priority(high)) {
      *link = low;
      link = &low->right;
      low = low->right;
    } else {
      *link = high;
      link = &high->left;
      high = high->left;
    }
  }
  *link = low != nullptr ? low : high;
  block->left = nullptr;
  block->right = nullptr;
}

Block* FreeIndex::best_large(std::size_t size) const {
  Block* best = nullptr;
  for (Block* block = root_; block != nullptr;) {
    if (block->size >= size) {
      best = block;
      block = block->left;
    } else {
      block = block->right;
    }
  }
  return best;
}

Block* FreeIndex::largest() const {
  if (root_ == nullptr) {
    return small_.largest();
  }
  Block* block = root_;
  while (block->right != nullptr) {
    block = block->right;
  }
  return block;
}

void FreeIndex::check_invariants() const {
  Recount seen;
  recount(root_, seen);
  small_.check_invariants([&seen](const Block* block) {
    FERRO_CHECK(block->is_free());
    ++seen.count;
    seen.bytes += block->size;
  });
  FERRO_CHECK(seen.count == count_);
  FERRO_CHECK(seen.bytes == bytes_);
}

}  // namespace ferro
