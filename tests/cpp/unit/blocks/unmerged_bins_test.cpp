#include "ferro/core/blocks/unmerged_bins.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <random>
#include <vector>

namespace ferro {
namespace unmerged_bins_test {

class UnmergedBinsTest : public ::testing::Test {
 protected:
  Block* make(std::size_t size) {
    Block& block = blocks_.emplace_back();
    block.ptr = DevicePtr{next_};
    next_ += size;
    block.size = size;
    return &block;
  }
  Block* push(std::size_t size) {
    Block* block = make(size);
    bins_.push(block);
    bins_.check_invariants();
    return block;
  }

  std::deque<Block> blocks_;
  std::uint64_t next_ = 0x1000;
  UnmergedBins bins_;
};

TEST_F(UnmergedBinsTest, EmptyBinsOfferNothing) {
  EXPECT_EQ(bins_.pop(512), nullptr);
  EXPECT_EQ(bins_.pop_largest(), nullptr);
  EXPECT_EQ(bins_.bytes(), 0U);
  bins_.check_invariants();
}

TEST_F(UnmergedBinsTest, TheLastFreedBlockOfASizeComesFirst) {
  Block* first = push(1024);
  Block* second = push(1024);
  Block* third = push(1024);
  EXPECT_EQ(bins_.pop(1024), third);
  EXPECT_EQ(bins_.pop(1024), second);
  EXPECT_EQ(bins_.pop(1024), first);
  EXPECT_EQ(bins_.pop(1024), nullptr);
}

TEST_F(UnmergedBinsTest, OnlyBlocksOfExactlyTheSizeAreOffered) {
  push(1024);
  EXPECT_EQ(bins_.pop(512), nullptr);
  EXPECT_EQ(bins_.pop(1536), nullptr);
  EXPECT_EQ(bins_.bytes(), 1024U);
}

TEST_F(UnmergedBinsTest, APushedBlockIsUnmergedAndAPoppedOneHasNoLinks) {
  push(512);
  Block* block = push(512);
  EXPECT_EQ(block->state, BlockState::kUnmerged);
  EXPECT_EQ(bins_.pop(512), block);
  EXPECT_EQ(block->left, nullptr);
  EXPECT_EQ(block->right, nullptr);
  bins_.check_invariants();
}

TEST_F(UnmergedBinsTest, TheLargestBlockHasABinAndLargerRequestsFindNothing) {
  ASSERT_TRUE(bins_.accepts(UnmergedBins::kMaxBlock));
  Block* block = push(UnmergedBins::kMaxBlock);
  EXPECT_EQ(bins_.pop(UnmergedBins::kMaxBlock + kBlockAlignment), nullptr);
  EXPECT_EQ(bins_.pop(UnmergedBins::kMaxBlock), block);
}

TEST_F(UnmergedBinsTest, AcceptsBySizeAndByTotal) {
  EXPECT_FALSE(bins_.accepts(UnmergedBins::kMaxBlock + kBlockAlignment));
  for (std::size_t i = 0; i < UnmergedBins::kMaxBytes / UnmergedBins::kMaxBlock - 1; ++i) {
    push(UnmergedBins::kMaxBlock);
  }
  push(UnmergedBins::kMaxBlock - kBlockAlignment);
  EXPECT_TRUE(bins_.accepts(kBlockAlignment));
  EXPECT_FALSE(bins_.accepts(2 * kBlockAlignment));
  push(kBlockAlignment);
  EXPECT_EQ(bins_.bytes(), UnmergedBins::kMaxBytes);
  EXPECT_FALSE(bins_.accepts(kBlockAlignment));
}

TEST_F(UnmergedBinsTest, PopLargestDrainsEveryBin) {
  // The first and last bin of a bitmap word, and the last bin of all.
  for (const std::size_t bin : {1U, 63U, 64U, 127U, 128U, 2048U}) {
    push(bin * kBlockAlignment);
  }
  for (std::size_t left = 6; left > 0; --left) {
    EXPECT_NE(bins_.pop_largest(), nullptr);
    bins_.check_invariants();
  }
  EXPECT_EQ(bins_.pop_largest(), nullptr);
  EXPECT_EQ(bins_.bytes(), 0U);
}

TEST_F(UnmergedBinsTest, TheRecountNoticesABlockThatChangedInside) {
  Block* block = push(1024);
  block->state = BlockState::kFree;
  EXPECT_THROW(bins_.check_invariants(), InternalError);
  block->state = BlockState::kUnmerged;
  block->size = 512;
  EXPECT_THROW(bins_.check_invariants(), InternalError);
}

TEST_F(UnmergedBinsTest, AgreesWithAStackForEachSize) {
  std::mt19937_64 random(7);
  std::map<std::size_t, std::vector<Block*>> model;
  std::size_t bytes = 0;
  for (int step = 0; step < 5000; ++step) {
    const std::size_t size = kBlockAlignment * (1 + random() % 300);
    std::vector<Block*>& stack = model[size];
    if (random() % 2 == 0 && bins_.accepts(size)) {
      stack.push_back(make(size));
      bins_.push(stack.back());
      bytes += size;
    } else {
      Block* expected = stack.empty() ? nullptr : stack.back();
      ASSERT_EQ(bins_.pop(size), expected);
      if (expected != nullptr) {
        stack.pop_back();
        bytes -= size;
      }
    }
    ASSERT_EQ(bins_.bytes(), bytes);
    if (step % 64 == 0) {
      bins_.check_invariants();
    }
  }
}

}  // namespace unmerged_bins_test
}  // namespace ferro
