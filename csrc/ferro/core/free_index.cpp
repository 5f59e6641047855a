#include "ferro/core/free_index.h"

#include "ferro/base/check.h"

#include <cstdint>

namespace ferro {
namespace {

bool precedes(const Block* a, const Block* b) {
  return a->size != b->size ? a->size < b->size : a->ptr < b->ptr;
}

// A priority that is a function of the address needs no field and makes the shape of the tree, and
// so every run, reproducible. Constants of the 64-bit finaliser of MurmurHash3.
std::uint64_t priority(const Block* block) {
  std::uint64_t x = address_of(block->ptr) >> 9;
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdULL;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53ULL;
  return x ^ (x >> 33);
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
  FERRO_CHECK(block->left == nullptr || priority(block->left) <= priority(block));
  FERRO_CHECK(block->right == nullptr || priority(block->right) <= priority(block));
  recount(block->left, seen);
  FERRO_CHECK(seen.last == nullptr || precedes(seen.last, block));
  FERRO_CHECK(block->is_free());
  seen.last = block;
  ++seen.count;
  seen.bytes += block->size;
  recount(block->right, seen);
}

}  // namespace

void FreeIndex::insert(Block* block) {
  const std::uint64_t wanted = priority(block);
  Block** link = &root_;
  while (*link != nullptr && priority(*link) >= wanted) {
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
  ++count_;
  bytes_ += block->size;
}

void FreeIndex::remove(Block* block) {
  Block** link = &root_;
  while (*link != block) {
    FERRO_ASSERT(*link != nullptr);
    link = precedes(block, *link) ? &(*link)->left : &(*link)->right;
  }
  // Join the two subtrees in the block's place.
  Block* low = block->left;
  Block* high = block->right;
  while (low != nullptr && high != nullptr) {
    if (priority(low) >= priority(high)) {
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
  --count_;
  bytes_ -= block->size;
}

Block* FreeIndex::best_fit(std::size_t size) const {
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
  Block* block = root_;
  while (block != nullptr && block->right != nullptr) {
    block = block->right;
  }
  return block;
}

void FreeIndex::check_invariants() const {
  Recount seen;
  recount(root_, seen);
  FERRO_CHECK(seen.count == count_);
  FERRO_CHECK(seen.bytes == bytes_);
}

}  // namespace ferro
