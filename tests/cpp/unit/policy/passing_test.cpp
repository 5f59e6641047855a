// When pages pass between streams rather than be created.
#include "ferro/core/policy/passing.h"

#include <gtest/gtest.h>

namespace ferro {
namespace {

constexpr PassingRules kRules{.handles_at_start = 10, .allocations_per_handle = 100};

TEST(Passing, SomeAreFree) {
  EXPECT_TRUE(prefers_passing(9, 0, kRules));
  EXPECT_FALSE(prefers_passing(10, 0, kRules));
  EXPECT_FALSE(prefers_passing(10, 99, kRules));
}

TEST(Passing, TheOthersAreFewBesideTheAllocations) {
  EXPECT_TRUE(prefers_passing(10, 100, kRules));
  EXPECT_FALSE(prefers_passing(11, 100, kRules));
  EXPECT_TRUE(prefers_passing(1009, 100'000, kRules));
  EXPECT_FALSE(prefers_passing(1010, 100'000, kRules));
}

}  // namespace
}  // namespace ferro
