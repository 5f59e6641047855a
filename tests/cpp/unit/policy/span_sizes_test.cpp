// The lengths of address ranges, as a table, and their bound.
#include "ferro/core/policy/span_sizes.h"

#include <gtest/gtest.h>

namespace ferro {
namespace span_sizes_test {

constexpr std::size_t kLeast = 64 * kMiB;

TEST(SpanSizesTest, TheFirstIsTheLeastOrTheRequest) {
  EXPECT_EQ(plan_span({0, 0}, 2 * kMiB, kLeast), kLeast);
  EXPECT_EQ(plan_span({0, 0}, kGiB + 1, kLeast), kGiB + kLeast);
}

TEST(SpanSizesTest, TheFirstOfADefaultPoolIsAsLongAsTheDeviceWhileAddressesAbound) {
  const std::size_t device = 80 * kGiB + 1;
  EXPECT_EQ(plan_first_span(0, device, 2 * kMiB, kLeast), 80 * kGiB + kLeast);
  EXPECT_EQ(plan_first_span(0, kGiB, 3 * kGiB, kLeast), 3 * kGiB);
  EXPECT_EQ(plan_first_span(kPlentifulAddresses - 80 * kGiB, 80 * kGiB, 1, kLeast), 80 * kGiB);
  EXPECT_EQ(plan_first_span(kPlentifulAddresses - 80 * kGiB + kLeast, 80 * kGiB, 1, kLeast),
            kLeast);
}

TEST(SpanSizesTest, TheFirstOfSmallBlocksIsAnEighthOfTheDeviceIfThatIsLong) {
  EXPECT_EQ(longest_of_small_blocks(80 * kGiB), 10 * kGiB);
  EXPECT_EQ(longest_of_small_blocks(4 * kGiB), kGiB);
  EXPECT_EQ(longest_of_small_blocks(512 * kMiB), 512 * kMiB);
}

TEST(SpanSizesTest, LaterOnesAreAsLongAsWhatIsMapped) {
  EXPECT_EQ(plan_span({kGiB, kGiB}, 2 * kMiB, kLeast), kGiB + kLeast);
}

TEST(SpanSizesTest, BeyondTheBudgetTheyAreAsShortAsTheRequest) {
  EXPECT_EQ(plan_span({5 * kGiB, kGiB}, 2 * kMiB, kLeast), kLeast);
}

// An arena that fills its spans one after the other, each with requests of one size.
TEST(SpanSizesTest, SpansAreFewAndReservedStaysBelowTheBudget) {
  for (const std::size_t request : {2 * kMiB, 100 * kMiB, 3 * kGiB}) {
    ArenaAddresses arena;
    std::size_t spans = 0;
    std::size_t room = 0;
    while (arena.mapped < 192 * kGiB) {
      if (room < request) {
        room = plan_span(arena, request, kLeast);
        arena.reserved += room;
        ++spans;
      }
      room -= request;
      arena.mapped += request;
      ASSERT_LE(arena.reserved, address_budget(arena.mapped, kLeast));
    }
    EXPECT_LE(spans, 14U) << request;
  }
}

TEST(SpanSizesTest, AnEmptySpanIsKeptWithinTheBudgetAlone) {
  EXPECT_TRUE(keeps_empty_span({kLeast, 0}, kLeast));
  EXPECT_FALSE(keeps_empty_span({2 * kLeast, 0}, kLeast));
  EXPECT_TRUE(keeps_empty_span({4 * kGiB + kLeast, kGiB}, kLeast));
}

}  // namespace span_sizes_test
}  // namespace ferro
