// The policy for the sizes of new handles, as a table.
#include "ferro/core/policy/handle_sizes.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>

namespace ferro {
namespace handle_sizes_test {

using Sizes = std::vector<std::size_t>;

constexpr std::size_t kPage = 2 * kMiB;
constexpr std::size_t kPlenty = std::size_t{1} << 20;

struct HandlesCase {
  std::string name;
  NewPages pages;
  Sizes sizes;
};

class PlanHandlesTest : public ::testing::TestWithParam<HandlesCase> {};

TEST_P(PlanHandlesTest, Sizes) {
  EXPECT_EQ(plan_handles(GetParam().pages, {}, kPage), GetParam().sizes);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, PlanHandlesTest,
    ::testing::Values(HandlesCase{"None", {0, kPlenty, kPlenty}, {}},
                      HandlesCase{"One", {1, kPlenty, kPlenty}, {1}},
                      HandlesCase{"UpTo8MiBOfAnyRequest", {15, kPlenty, kPlenty}, {4, 4, 4, 2, 1}},
                      HandlesCase{"PowersOfTwo", {3, kPlenty, kPlenty}, {2, 1}},
                      HandlesCase{"AnEighthOfTheRequest", {64, kPlenty, kPlenty}, Sizes(8, 8)},
                      HandlesCase{"TheRestInSmallerOnes",
                                  {75, kPlenty, kPlenty},
                                  {8, 8, 8, 8, 8, 8, 8, 8, 8, 2, 1}},
                      HandlesCase{"AtMost64MiB", {1024, kPlenty, kPlenty}, Sizes(32, 32)},
                      HandlesCase{"LittleRoom", {64, 2400, kPlenty}, Sizes(16, 4)},
                      HandlesCase{"HardlyAnyRoom", {64, 300, kPlenty}, Sizes(64, 1)},
                      HandlesCase{"SmallBesideWhatIsHeld", {64, kPlenty, 256}, Sizes(32, 2)},
                      HandlesCase{"PagesWhileNothingIsHeld", {64, kPlenty, 0}, Sizes(64, 1)},
                      HandlesCase{"WhatIsWantedCountsAsHeld", {1024, kPlenty, 0}, Sizes(128, 8)}),
    [](const auto& given) { return given.param.name; });

TEST(PlanHandlesTest, TheyAlwaysSumToWhatIsWanted) {
  for (std::size_t wanted = 0; wanted < 600; ++wanted) {
    for (const std::size_t room : {wanted, 4 * wanted, kPlenty}) {
      const Sizes sizes = plan_handles({wanted, room, kPlenty}, {}, kPage);
      EXPECT_EQ(std::accumulate(sizes.begin(), sizes.end(), std::size_t{0}), wanted);
    }
  }
}

TEST(PlanHandlesTest, PagesLargerThanTheLargestHandleAreHandles) {
  EXPECT_EQ(plan_handles({20, kPlenty, kPlenty}, {}, 128 * kMiB), Sizes(20, 1));
}

}  // namespace handle_sizes_test
}  // namespace ferro
