#include "ferro/core/blocks/size_bins.h"

#include <gtest/gtest.h>

#include <deque>
#include <initializer_list>
#include <iterator>
#include <map>
#include <random>
#include <set>
#include <vector>

namespace ferro {
namespace size_bins_test {

using Blocks = std::vector<Block*>;

class SizeBinsTest : public ::testing::Test {
 protected:
  // Makes a block above the one made before.
  Block* make(std::size_t bin) {
    Block& block = blocks_.emplace_back();
    block.size = bin * kBlockAlignment;
    block.ptr = DevicePtr{next_};
    next_ += block.size;
    return &block;
  }
  Block* push(std::size_t bin) {
    Block* block = make(bin);
    bins_.push_front(block);
    check();
    return block;
  }
  void insert(Block* block) {
    bins_.insert(block);
    check();
  }
  void remove(Block* block) {
    bins_.remove(block);
    EXPECT_EQ(block->left, nullptr);
    EXPECT_EQ(block->right, nullptr);
    check();
  }
  std::size_t check() const {
    std::size_t count = 0;
    bins_.check_invariants([&](const Block*) { ++count; });
    return count;
  }
  Block* first(std::size_t bin) const { return bins_.first(bin * kBlockAlignment); }
  Block* first_from(std::size_t bin) const { return bins_.first_from(bin * kBlockAlignment); }
  // All blocks from the largest down, or the first `at_most` of them.
  Blocks descent(std::size_t at_most = ~std::size_t{0}) const {
    Blocks seen;
    auto visit = [&](Block* block) {
      seen.push_back(block);
      return seen.size() < at_most;
    };
    bins_.descend(visit);
    return seen;
  }

  static constexpr std::size_t kLastBin = SizeBins::kMaxSize / kBlockAlignment;
  std::deque<Block> blocks_;
  std::uint64_t next_ = 0x1000;
  SizeBins bins_;
};

TEST_F(SizeBinsTest, EmptyOnesFindNothing) {
  for (const std::size_t bin : {std::size_t{1}, std::size_t{64}, kLastBin}) {
    EXPECT_EQ(first(bin), nullptr);
    EXPECT_EQ(first_from(bin), nullptr);
  }
  EXPECT_EQ(bins_.largest(), nullptr);
  EXPECT_EQ(descent(), Blocks{});
  EXPECT_EQ(check(), 0U);
}

// Bins at both ends of a word of the bitmap, and in its last word.
TEST_F(SizeBinsTest, TheSmallestSizeThatIsLargeEnoughIsFoundAcrossWords) {
  const std::initializer_list<std::size_t> filled = {1, 63, 64, 127, 128, kLastBin - 1, kLastBin};
  std::map<std::size_t, Block*> model;
  for (const std::size_t bin : filled) {
    model[bin] = push(bin);
  }
  while (!model.empty()) {
    for (std::size_t bin = 1; bin <= kLastBin; ++bin) {
      const auto expected = model.lower_bound(bin);
      ASSERT_EQ(first_from(bin), expected == model.end() ? nullptr : expected->second) << bin;
    }
    EXPECT_EQ(bins_.largest(), model.rbegin()->second);
    const auto any = std::next(model.begin(), static_cast<std::ptrdiff_t>(model.size() / 2));
    remove(any->second);
    model.erase(any);
  }
}

TEST_F(SizeBinsTest, ASizeBetweenTwoBinsIsThatOfTheLarger) {
  push(2);
  Block* larger = push(3);
  EXPECT_EQ(bins_.first_from(2 * kBlockAlignment + 1), larger);
  EXPECT_EQ(bins_.first_from(3 * kBlockAlignment), larger);
  EXPECT_EQ(bins_.first_from(3 * kBlockAlignment + 1), nullptr);
}

TEST_F(SizeBinsTest, APushedBlockComesFirst) {
  Block* low = push(4);
  Block* high = push(4);
  EXPECT_EQ(first(4), high);
  EXPECT_EQ(first(3), nullptr);
  EXPECT_EQ(first(5), nullptr);
  remove(high);
  EXPECT_EQ(first(4), low);
}

// At most two comparisons, for any number of blocks.
TEST_F(SizeBinsTest, AnInsertedBlockComesFirstIfItIsTheLowestElseSecond) {
  Block* a = make(4);
  Block* b = make(4);
  Block* c = make(4);
  Block* d = make(4);
  insert(b);
  insert(d);
  EXPECT_EQ(descent(), (Blocks{b, d}));
  insert(c);
  EXPECT_EQ(descent(), (Blocks{b, c, d}));
  insert(a);
  EXPECT_EQ(descent(), (Blocks{a, b, c, d}));
}

TEST_F(SizeBinsTest, ABlockLeavesFromAnyPlaceOfItsBin) {
  Block* last = push(7);
  Block* middle = push(7);
  Block* front = push(7);
  remove(middle);
  EXPECT_EQ(descent(), (Blocks{front, last}));
  remove(last);
  EXPECT_EQ(descent(), Blocks{front});
  remove(front);
  EXPECT_EQ(first(7), nullptr);
  EXPECT_EQ(first_from(1), nullptr);
}

TEST_F(SizeBinsTest, TheDescentEndsWhenTheVisitorReturnsFalse) {
  Block* small = push(1);
  Block* large = push(kLastBin);
  Block* medium = push(200);
  EXPECT_EQ(descent(), (Blocks{large, medium, small}));
  EXPECT_EQ(descent(2), (Blocks{large, medium}));
  EXPECT_EQ(descent(1), Blocks{large});
}

TEST_F(SizeBinsTest, TheRecountNoticesABlockThatChangedInside) {
  Block* below = push(4);
  Block* block = push(4);
  block->size += kBlockAlignment;
  EXPECT_THROW(check(), InternalError);
  block->size -= kBlockAlignment;
  below->left = nullptr;
  EXPECT_THROW(check(), InternalError);
  below->left = block;
  EXPECT_EQ(check(), 2U);
}

TEST_F(SizeBinsTest, AgreeWithASetForEachSize) {
  std::mt19937_64 random(11);
  std::map<std::size_t, std::set<Block*>> model;
  std::size_t count = 0;
  for (int step = 0; step < 4000; ++step) {
    const std::size_t bin = 1 + random() % kLastBin;
    auto found = model.lower_bound(bin);
    Block* block = first_from(bin);
    if (found == model.end()) {
      ASSERT_EQ(block, nullptr);
    } else {
      ASSERT_TRUE(found->second.contains(block));
    }
    // The first half mostly adds, the second half mostly removes.
    if (random() % 3 < (step < 2000 ? 2U : 1U)) {
      Block* fresh = make(bin);
      random() % 2 == 0 ? bins_.push_front(fresh) : bins_.insert(fresh);
      model[bin].insert(fresh);
      ++count;
    } else if (block != nullptr) {
      bins_.remove(block);
      found->second.erase(block);
      if (found->second.empty()) {
        model.erase(found);
      }
      --count;
    }
    ASSERT_EQ(bins_.largest() == nullptr, model.empty());
    if (!model.empty()) {
      ASSERT_EQ(bins_.largest()->size, model.rbegin()->first * kBlockAlignment);
    }
    if (step % 64 == 0) {
      ASSERT_EQ(check(), count);
    }
  }
}

}  // namespace size_bins_test
}  // namespace ferro
