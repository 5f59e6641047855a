#include "ferro/core/blocks/gap_index.h"

#include "ferro/base/bytes.h"
#include "ferro/base/check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

namespace ferro {
namespace gap_index_test {

constexpr std::size_t kPage = 2 * kMiB;

TEST(GapIndexTest, AnEmptyIndexHasNoGap) {
  GapIndex index;
  EXPECT_EQ(index.first_fit(kPage), nullptr);
  index.check_invariants();
}

// Compared with a map that is searched from its beginning.
TEST(GapIndexTest, FindsTheFirstThatIsLongEnough) {
  std::mt19937_64 random(5);
  std::vector<Block> gaps(500);
  for (std::size_t i = 0; i < gaps.size(); ++i) {
    gaps[i].ptr = DevicePtr{(i + 1) * 64 * kPage};
    gaps[i].size = kPage * (1 + random() % 40);
    gaps[i].state = BlockState::kGap;
  }
  GapIndex index;
  std::map<std::uint64_t, Block*> model;
  for (int step = 0; step < 20'000; ++step) {
    Block& gap = gaps[random() % gaps.size()];
    if (model.erase(address_of(gap.ptr)) != 0) {
      index.remove(&gap);
    } else {
      model.emplace(address_of(gap.ptr), &gap);
      index.insert(&gap);
    }
    const std::size_t wanted = kPage * (1 + random() % 42);
    const auto expected = std::ranges::find_if(
        model, [&](const auto& entry) { return entry.second->size >= wanted; });
    ASSERT_EQ(index.first_fit(wanted), expected == model.end() ? nullptr : expected->second);
    ASSERT_EQ(index.count(), model.size());
    if (step % 500 == 0) {
      index.check_invariants();
      std::vector<Block*> in_order;
      index.for_each([&in_order](Block* block) { in_order.push_back(block); });
      ASSERT_TRUE(std::ranges::is_sorted(in_order, {}, &Block::ptr));
      ASSERT_EQ(in_order.size(), model.size());
    }
  }
}

TEST(GapIndexTest, TheRecountNoticesAGapThatChangedInside) {
  Block gap;
  gap.ptr = DevicePtr{kPage};
  gap.size = kPage;
  gap.state = BlockState::kGap;
  GapIndex index;
  index.insert(&gap);
  gap.size = 2 * kPage;
  EXPECT_THROW(index.check_invariants(), InternalError);
  gap.size = kPage;
  gap.state = BlockState::kFree;
  EXPECT_THROW(index.check_invariants(), InternalError);
}

}  // namespace gap_index_test
}  // namespace ferro
