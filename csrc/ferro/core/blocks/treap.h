// A treap of blocks in which each block also has a sum over its subtree. Links are in the blocks: no
// operation allocates host memory. Not thread-safe. Every operation takes O(log of the number of
// blocks); the recursion is as deep as the treap, about 2 log2 of its size.
//
// `Order::precedes(a, b)` is a strict order of all blocks. `Order::update(block)` sets the block's
// sum from its own values and its children's sums.
#pragma once

#include "ferro/base/check.h"
#include "ferro/core/blocks/treap_priority.h"
#include "ferro/core/types/block.h"

namespace ferro {

template <typename Order>
struct Treap {
  // `block` is in no treap.
  static void insert(Block*& root, Block* block) {
    if (root == nullptr || treap_priority(root) < treap_priority(block)) {
      split(root, block, block->left, block->right);
      root = block;
    } else {
      insert(Order::precedes(block, root) ? root->left : root->right, block);
    }
    Order::update(root);
  }
  // `block` is in the treap, with the values with which it was inserted. It has no links afterwards.
  static void remove(Block*& root, Block* block) {
    FERRO_CHECK(root != nullptr);
    if (root == block) {
      root = join(block->left, block->right);
      block->left = block->right = nullptr;
    } else {
      remove(Order::precedes(block, root) ? root->left : root->right, block);
      Order::update(root);
    }
  }

 private:
  // Splits a treap into what precedes `block` and what follows it.
  static void split(Block* root, const Block* block, Block*& before, Block*& after) {
    if (root == nullptr) {
      before = after = nullptr;
      return;
    }
    if (Order::precedes(root, block)) {
      before = root;
      split(root->right, block, root->right, after);
    } else {
      after = root;
      split(root->left, block, before, root->left);
    }
    Order::update(root);
  }
  // All blocks of `before` precede those of `after`.
  static Block* join(Block* before, Block* after) {
    if (before == nullptr || after == nullptr) {
      return before == nullptr ? after : before;
    }
    if (treap_priority(before) >= treap_priority(after)) {
      before->right = join(before->right, after);
      Order::update(before);
      return before;
    }
    after->left = join(before, after->left);
    Order::update(after);
    return after;
  }
};

}  // namespace ferro
