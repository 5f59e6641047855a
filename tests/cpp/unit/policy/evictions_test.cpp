#include "ferro/core/policy/evictions.h"

#include <gtest/gtest.h>

#include <vector>

namespace ferro {
namespace {

using Pages = std::vector<std::size_t>;
using Chosen = std::vector<std::size_t>;

TEST(EvictionsTest, TheSmallestGroupThatIsEnoughGivesAlone) {
  EXPECT_EQ(plan_evictions(5, Pages{9, 6, 4, 7}), Chosen({1}));
  EXPECT_EQ(plan_evictions(6, Pages{9, 6, 4, 7}), Chosen({1}));
  EXPECT_EQ(plan_evictions(1, Pages{9}), Chosen({0}));
}

TEST(EvictionsTest, OrTheLargestUntilTheyAreEnough) {
  EXPECT_EQ(plan_evictions(10, Pages{2, 6, 4, 7}), Chosen({3, 1}));
  EXPECT_EQ(plan_evictions(19, Pages{2, 6, 4, 7}), Chosen({3, 1, 2, 0}));
}

TEST(EvictionsTest, NoneWhereAllAreTooFewOrNothingIsWanted) {
  EXPECT_EQ(plan_evictions(20, Pages{2, 6, 4, 7}), Chosen{});
  EXPECT_EQ(plan_evictions(1, Pages{}), Chosen{});
  EXPECT_EQ(plan_evictions(0, Pages{3}), Chosen{});
}

}  // namespace
}  // namespace ferro
