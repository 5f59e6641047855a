#include "ferro/core/blocks/gap_index.h"

#include "ferro/base/check.h"
#include "ferro/core/blocks/treap.h"

#include <algorithm>

namespace ferro {
namespace {

std::size_t longest_of(const Block* gap) { return gap == nullptr ? 0 : gap->requested; }

struct ByAddress {
  static bool precedes(const Block* a, const Block* b) { return a->ptr < b->ptr; }
  static std::size_t longest_below(const Block* gap) {
    return std::max({gap->size, longest_of(gap->left), longest_of(gap->right)});
  }
  static void update(Block* gap) { gap->requested = longest_below(gap); }
};

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
  FERRO_CHECK(gap->requested == ByAddress::longest_below(gap));
  seen.last = gap;
  ++seen.count;
  recount(gap->right, seen);
}

}  // namespace

void GapIndex::insert(Block* gap) {
  Treap<ByAddress>::insert(root_, gap);
  ++count_;
}

void GapIndex::remove(Block* gap) {
  Treap<ByAddress>::remove(root_, gap);
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
