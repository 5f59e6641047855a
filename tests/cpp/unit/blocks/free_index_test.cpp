// FreeIndex compared with an ordered set of (size, address), whose order it promises.
#include "ferro/core/blocks/free_index.h"

#include "ferro/base/check.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <random>
#include <set>
#include <utility>

namespace ferro {
namespace free_index_test {

class FreeIndexTest : public ::testing::Test {
 protected:
  Block* make(std::uint64_t address, std::size_t size) {
    Block& block = blocks_.emplace_back();
    block.ptr = DevicePtr{address};
    block.size = size;
    block.state = BlockState::kFree;
    return &block;
  }

  std::deque<Block> blocks_;
  FreeIndex index_;
};

TEST_F(FreeIndexTest, AnEmptyIndexFindsNothing) {
  EXPECT_EQ(index_.best_fit(512), nullptr);
  EXPECT_EQ(index_.largest(), nullptr);
  EXPECT_EQ(index_.count(), 0U);
  EXPECT_EQ(index_.bytes(), 0U);
  index_.check_invariants();
}

TEST_F(FreeIndexTest, TakesTheSmallestBlockThatIsLargeEnough) {
  Block* small = make(0x1000, 512);
  Block* middle = make(0x2000, 1536);
  Block* large = make(0x4000, 4096);
  for (Block* block : {middle, large, small}) {
    index_.insert(block);
  }
  EXPECT_EQ(index_.best_fit(512), small);
  EXPECT_EQ(index_.best_fit(1024), middle);
  EXPECT_EQ(index_.best_fit(1536), middle);
  EXPECT_EQ(index_.best_fit(2048), large);
  EXPECT_EQ(index_.best_fit(4608), nullptr);
  EXPECT_EQ(index_.largest(), large);
  EXPECT_EQ(index_.count(), 3U);
  EXPECT_EQ(index_.bytes(), 512U + 1536U + 4096U);
}

TEST_F(FreeIndexTest, TakesTheLowestAddressAmongEqualSizes) {
  Block* high = make(0x9000, 1024);
  Block* low = make(0x1000, 1024);
  Block* between = make(0x5000, 1024);
  for (Block* block : {high, low, between}) {
    index_.insert(block);
  }
  EXPECT_EQ(index_.best_fit(1024), low);
  index_.remove(low);
  EXPECT_EQ(index_.best_fit(1024), between);
  index_.remove(between);
  EXPECT_EQ(index_.best_fit(1024), high);
}

TEST_F(FreeIndexTest, FindingLeavesTheIndexAsItIs) {
  Block* block = make(0x1000, 1024);
  index_.insert(block);
  EXPECT_EQ(index_.best_fit(512), block);
  EXPECT_EQ(index_.best_fit(512), block);
  EXPECT_EQ(index_.count(), 1U);
}

TEST_F(FreeIndexTest, ARemovedBlockHasNoLinksLeft) {
  for (std::uint64_t i = 1; i <= 8; ++i) {
    index_.insert(make(i * 0x10000, i * 512));
  }
  for (Block& block : blocks_) {
    index_.remove(&block);
    EXPECT_EQ(block.left, nullptr);
    EXPECT_EQ(block.right, nullptr);
    index_.check_invariants();
  }
  EXPECT_EQ(index_.largest(), nullptr);
}

TEST_F(FreeIndexTest, TheRecountNoticesABlockThatChangedInside) {
  Block* block = make(0x1000, 1024);
  index_.insert(block);
  block->size = 2048;
  EXPECT_THROW(index_.check_invariants(), InternalError);
  block->size = 1024;
  block->state = BlockState::kLive;
  EXPECT_THROW(index_.check_invariants(), InternalError);
  block->state = BlockState::kFree;
  index_.check_invariants();
}

class FreeIndexModelTest : public FreeIndexTest, public ::testing::WithParamInterface<unsigned> {};

TEST_P(FreeIndexModelTest, AgreesWithAnOrderedSet) {
  using Key = std::pair<std::size_t, std::uint64_t>;
  FreeIndex index;
  std::mt19937_64 random(GetParam());
  std::set<Key> model;
  std::vector<Block*> outside;
  std::vector<Block*> inside;
  // Few distinct sizes, so that ties are common.
  for (std::uint64_t i = 0; i < 400; ++i) {
    // In bins, and in the treap.
    const std::size_t base = i % 2 == 0 ? 0 : SizeBins::kMaxSize - 12 * 512;
    outside.push_back(make(0x10'0000 + i * 0x1000000, base + 512 * (1 + random() % 24)));
  }
  std::size_t bytes = 0;
  const auto move_random = [&random](std::vector<Block*>& from, std::vector<Block*>& to) {
    std::swap(from[random() % from.size()], from.back());
    to.push_back(from.back());
    from.pop_back();
    return to.back();
  };
  for (int step = 0; step < 4000; ++step) {
    if (!outside.empty() && (inside.empty() || random() % 2 == 0)) {
      Block* block = move_random(outside, inside);
      index.insert(block);
      model.insert({block->size, address_of(block->ptr)});
      bytes += block->size;
    } else {
      Block* block = move_random(inside, outside);
      index.remove(block);
      model.erase({block->size, address_of(block->ptr)});
      bytes -= block->size;
    }
    ASSERT_EQ(index.count(), model.size());
    ASSERT_EQ(index.bytes(), bytes);
    const std::size_t least = random() % 2 == 0 ? 0 : SizeBins::kMaxSize - 14 * 512;
    const std::size_t wanted = least + 512 * (1 + random() % 28);
    const auto expected = model.lower_bound({wanted, 0});
    const Block* found = index.best_fit(wanted);
    ASSERT_EQ(found == nullptr, expected == model.end());
    if (found != nullptr) {
      ASSERT_EQ(found->size, expected->first);
      ASSERT_TRUE(model.contains({found->size, address_of(found->ptr)}));
      if (found->size > SizeBins::kMaxSize) {
        ASSERT_EQ(address_of(found->ptr), expected->second) << "the lowest of them";
      }
    }
    const Block* largest = index.largest();
    ASSERT_EQ(largest == nullptr, model.empty());
    if (largest != nullptr) {
      ASSERT_EQ(largest->size, model.rbegin()->first);
      ASSERT_TRUE(model.contains({largest->size, address_of(largest->ptr)}));
    }
    if (step % 16 == 0) {
      index.check_invariants();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, FreeIndexModelTest, ::testing::Range(1U, 6U));

}  // namespace free_index_test
}  // namespace ferro
