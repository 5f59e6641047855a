#include "ferro/core/blocks/size_bins.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <initializer_list>
#include <iterator>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <utility>
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
  Block* put(std::size_t bin) {
    Block* block = make(bin);
    insert(block);
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
    model[bin] = put(bin);
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
  put(2);
  Block* larger = put(3);
  EXPECT_EQ(bins_.first_from(2 * kBlockAlignment + 1), larger);
  EXPECT_EQ(bins_.first_from(3 * kBlockAlignment), larger);
  EXPECT_EQ(bins_.first_from(3 * kBlockAlignment + 1), nullptr);
}

TEST_F(SizeBinsTest, TheLowestBlockOfASizeComesFirst) {
  Block* a = make(4);
  Block* b = make(4);
  Block* c = make(4);
  Block* d = make(4);
  for (Block* block : {b, d, a, c}) {
    insert(block);
  }
  for (Block* block : {a, b, c, d}) {
    EXPECT_EQ(first_from(4), block);
    remove(block);
  }
  EXPECT_EQ(first_from(4), nullptr);
}

TEST_F(SizeBinsTest, ABlockLeavesFromAnyPlaceOfItsBin) {
  Block* low = put(7);
  Block* high = put(7);
  Block* middle = put(7);
  remove(middle);
  EXPECT_EQ(first_from(7), low);
  remove(high);
  EXPECT_EQ(descent(), Blocks{low});
  remove(low);
  EXPECT_EQ(first_from(1), nullptr);
}

TEST_F(SizeBinsTest, TheDescentEndsWhenTheVisitorReturnsFalse) {
  Block* small = put(1);
  Block* large = put(kLastBin);
  Block* medium = put(200);
  EXPECT_EQ(descent(), (Blocks{large, medium, small}));
  EXPECT_EQ(descent(2), (Blocks{large, medium}));
  EXPECT_EQ(descent(1), Blocks{large});
}

TEST_F(SizeBinsTest, TheRecountNoticesABlockThatChangedInside) {
  Block* low = put(4);
  Block* high = put(4);
  high->size += kBlockAlignment;
  EXPECT_THROW(check(), InternalError);
  high->size -= kBlockAlignment;
  high->up = nullptr;
  EXPECT_THROW(check(), InternalError);
  high->up = low;
  low->rank = 2;
  EXPECT_THROW(check(), InternalError);
  low->rank = 1;
  std::swap(low->ptr, high->ptr);
  EXPECT_THROW(check(), InternalError);
  std::swap(low->ptr, high->ptr);
  EXPECT_EQ(check(), 2U);
}

// No order of insertion makes a path long on which blocks are inserted or removed.
TEST_F(SizeBinsTest, TheRightmostPathIsShortWithAMillionBlocks) {
  constexpr std::size_t kBlocks = 1'000'000;
  for (const char* order : {"ascending", "descending", "random"}) {
    SizeBins bins;
    std::vector<Block> blocks(kBlocks);
    for (std::size_t i = 0; i < kBlocks; ++i) {
      blocks[i].size = kBlockAlignment;
      blocks[i].ptr = DevicePtr{(i + 1) * kBlockAlignment};
    }
    std::vector<std::size_t> wanted(kBlocks);
    std::iota(wanted.begin(), wanted.end(), std::size_t{0});
    if (order == std::string("descending")) {
      std::ranges::reverse(wanted);
    } else if (order == std::string("random")) {
      std::ranges::shuffle(wanted, std::mt19937_64(3));
    }
    for (const std::size_t i : wanted) {
      bins.insert(&blocks[i]);
    }
    std::size_t path = 0;
    for (const Block* block = bins.first_from(1); block != nullptr; block = block->right) {
      ++path;
    }
    EXPECT_LE(path, 20U) << order;  // log2 of the blocks
    for (std::size_t i = 0; i < 1000; ++i) {
      ASSERT_EQ(bins.first_from(1), &blocks[i]) << order;
      bins.remove(&blocks[i]);
    }
  }
}

// Few sizes at first, so that the heaps of a bin have all shapes; then all of them.
TEST_F(SizeBinsTest, AgreeWithAListOfEachSize) {
  std::mt19937_64 random(11);
  std::map<std::size_t, Blocks> model;
  Blocks removed;
  std::size_t count = 0;
  for (int step = 0; step < 16000; ++step) {
    const std::size_t sizes = step < 8000 ? 4 : kLastBin;
    const std::size_t bin = kLastBin - random() % sizes;
    const auto found = model.lower_bound(bin);
    Block* block = first_from(bin);
    ASSERT_EQ(block, found == model.end()
                         ? nullptr
                         : *std::ranges::min_element(found->second, {}, &Block::ptr));
    // In turns, more is added and more is removed. Blocks return at their former addresses.
    if (random() % 3 < (step / 2000 % 2 == 0 ? 2U : 1U)) {
      Block* added = nullptr;
      if (removed.empty() || random() % 4 == 0) {
        added = make(bin);
      } else {
        std::swap(removed[random() % removed.size()], removed.back());
        added = removed.back();
        removed.pop_back();
      }
      bins_.insert(added);
      model[added->size / kBlockAlignment].push_back(added);
      ++count;
    } else if (block != nullptr) {
      Blocks& same = found->second;
      std::swap(same[random() % same.size()], same.back());
      bins_.remove(same.back());
      removed.push_back(same.back());
      same.pop_back();
      if (same.empty()) {
        model.erase(found);
      }
      --count;
    }
    ASSERT_EQ(bins_.largest() == nullptr, model.empty());
    if (!model.empty()) {
      ASSERT_EQ(bins_.largest()->size, model.rbegin()->first * kBlockAlignment);
    }
    if (step % 16 == 0) {
      ASSERT_EQ(check(), count);
    }
  }
}

}  // namespace size_bins_test
}  // namespace ferro
