#include "ferro/core/blocks/free_index.h"

#include "ferro/base/check.h"
#include "ferro/core/blocks/treap.h"

#include <algorithm>
#include <cstdint>

namespace ferro {
namespace {

std::uint64_t lowest_of(const Block* block) {
  return block == nullptr ? ~std::uint64_t{0} : block->requested;
}

struct BySize {
  static bool precedes(const Block* a, const Block* b) {
    return a->size != b->size ? a->size < b->size : a->ptr < b->ptr;
  }
  static std::uint64_t lowest_below(const Block* block) {
    return std::min({address_of(block->ptr), lowest_of(block->left), lowest_of(block->right)});
  }
  static void update(Block* block) { block->requested = lowest_below(block); }
};

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
  FERRO_CHECK(seen.last == nullptr || BySize::precedes(seen.last, block));
  FERRO_CHECK(block->requested == BySize::lowest_below(block));
  FERRO_CHECK(block->is_free() && block->size > SizeBins::kMaxSize);
  seen.last = block;
  ++seen.count;
  seen.bytes += block->size;
  recount(block->right, seen);
}

}  // namespace

void FreeIndex::insert_large(Block* block) { Treap<BySize>::insert(root_, block); }

void FreeIndex::remove_large(Block* block) {
  Treap<BySize>::remove(root_, block);
  block->requested = 0;
}

Block* FreeIndex::find_large(std::size_t size) const {
  Block* best = nullptr;
  Block* lowest = nullptr;  // the root of the subtree with the lowest address
  std::uint64_t address = ~std::uint64_t{0};
  for (Block* block = root_; block != nullptr;) {
    if (block->size < size) {
      block = block->right;
      continue;
    }
    best = block;
    if (lowest_of(block->right) < address) {
      lowest = block->right;
      address = lowest_of(lowest);
    }
    if (address_of(block->ptr) < address) {
      lowest = block;
      address = address_of(block->ptr);
    }
    block = block->left;
  }
  if (best == nullptr || is_close_fit(best->size, size)) {
    return best;
  }
  while (address_of(lowest->ptr) != address) {
    lowest = lowest_of(lowest->left) == address ? lowest->left : lowest->right;
  }
  return lowest;
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
