#include "ferro/core/blocks/gap_index.h"

#include "ferro/base/check.h"
#include "ferro/core/blocks/treap_priority.h"

#include <algorithm>

namespace ferro {
namespace {

std::size_t longest_of(const Block* gap) { return gap == nullptr ? 0 : gap->requested; }

Block* updated(Block* gap) {
  gap->requested = std::max({gap->size, longest_of(gap->left), longest_of(gap->right)});
  return gap;
}

// Splits a treap into the gaps before `ptr` and the others.
void split(Block* root, DevicePtr ptr, Block*& before, Block*& after) {
  if (root == nullptr) {
    before = after = nullptr;
  } else if (root->ptr < ptr) {
    split(root->right, ptr, root->right, after);
    before = updated(root);
  } else {
    split(root->left, ptr, before, root->left);
    after = updated(root);
  }
}

// All gaps of `before` lie below those of `after`.
Block* join(Block* before, Block* after) {
  if (before == nullptr || after == nullptr) {
    return before == nullptr ? after : before;
  }
  if (treap_priority(before) >= treap_priority(after)) {
    before->right = join(before->right, after);
    return updated(before);
  }
  after->left = join(before, after->left);
  return updated(after);
}

Block* without(Block* root, Block* gap) {
  FERRO_CHECK(root != nullptr);
  if (root == gap) {
    return join(gap->left, gap->right);
  }
  Block*& side = gap->ptr < root->ptr ? root->left : root->right;
  side = without(side, gap);
  return updated(root);
}

struct GapRecount {
  std::size_t count = 0;
  const Block* last = nullptr;
};

void recount(const Block* gap, GapRecount& seen) {
  if (gap == nullptr) {
    return;
  }
  recount(gap->left, seen);
  FERRO_CHECK(seen.last == nullptr || seen.last->ptr < gap->ptr);
  FERRO_CHECK(gap->state == BlockState::kGap);
  FERRO_CHECK(gap->requested ==
              std::max({gap->size, longest_of(gap->left), longest_of(gap->right)}));
  seen.last = gap;
  ++seen.count;
  recount(gap->right, seen);
}

}  // namespace

void GapIndex::insert(Block* gap) {
  Block* before = nullptr;
  Block* after = nullptr;
  split(root_, gap->ptr, before, after);
  gap->left = gap->right = nullptr;
  root_ = join(join(before, updated(gap)), after);
  ++count_;
}

void GapIndex::remove(Block* gap) {
  root_ = without(root_, gap);
  gap->left = gap->right = nullptr;
  gap->requested = 0;
  --count_;
}

Block* GapIndex::first_fit(std::size_t bytes) const {
  Block* gap = longest_of(root_) >= bytes ? root_ : nullptr;
  while (gap != nullptr) {
    if (longest_of(gap->left) >= bytes) {
      gap = gap->left;
    } else if (gap->size >= bytes) {
      break;
    } else {
      gap = gap->right;
    }
  }
  return gap;
}

void GapIndex::check_invariants() const {
  GapRecount seen;
  recount(root_, seen);
  FERRO_CHECK(seen.count == count_);
}

}  // namespace ferro
