// The two policies of a heap's pages, as tables.
#include "ferro/core/policy/growth.h"

#include "ferro/core/policy/whole_pages.h"

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

namespace ferro {

void PrintTo(const GrowthPlan& plan, std::ostream* out) {
  *out << "{gap " << plan.gap << ", first_page " << plan.first_page << ", pages " << plan.pages
       << "}";
}

namespace growth_test {

constexpr std::size_t kPage = 2 * kMiB;

struct GrowthCase {
  std::string name;
  std::vector<GapView> gaps;
  std::size_t request;
  std::optional<GrowthPlan> plan;
};

class PlanGrowthTest : public ::testing::TestWithParam<GrowthCase> {};

TEST_P(PlanGrowthTest, ChoosesThePlan) {
  const GrowthCase& given = GetParam();
  EXPECT_EQ(plan_growth(given.gaps, given.request, kPage, 0), given.plan);
}

TEST(PlanGrowthTest, LeavesRoomForMore) {
  const std::vector<GapView> gaps = {
      {4 * kPage, kPage, 0}, {2 * kPage, kPage, kPage}, {9 * kPage, 0, 0}};
  EXPECT_EQ(plan_growth(gaps, 3 * kPage, kPage, 0), (GrowthPlan{0, 0, 2}));
  EXPECT_EQ(plan_growth(gaps, 3 * kPage, kPage, 2), (GrowthPlan{0, 0, 2}));
  EXPECT_EQ(plan_growth(gaps, 3 * kPage, kPage, 3), (GrowthPlan{2, 0, 3}));
  EXPECT_EQ(plan_growth(gaps, 3 * kPage, kPage, 7), std::nullopt);
}

TEST(WidenTest, KeepsWhatThePlanTouches) {
  EXPECT_EQ(widen({0, 0, 2}, 5, 8), (GrowthPlan{0, 0, 5})) << "the gap's begin";
  EXPECT_EQ(widen({0, 6, 2}, 5, 8), (GrowthPlan{0, 3, 5})) << "the gap's end";
  EXPECT_EQ(widen({0, 6, 2}, 2, 8), (GrowthPlan{0, 6, 2})) << "nothing more";
  EXPECT_EQ(widen({0, 0, 2}, 8, 8), (GrowthPlan{0, 0, 8}));
  EXPECT_EQ(widen({0, 0, 2}, 9, 8), std::nullopt);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, PlanGrowthTest,
    ::testing::Values(
        GrowthCase{"NoGap", {}, 512, std::nullopt},
        GrowthCase{"OnePageForASmallRequest", {{8 * kPage, 0, 0}}, 512, GrowthPlan{0, 0, 1}},
        GrowthCase{"ExactlyOnePage", {{8 * kPage, 0, 0}}, kPage, GrowthPlan{0, 0, 1}},
        GrowthCase{"OneByteMoreThanAPage", {{8 * kPage, 0, 0}}, kPage + 512, GrowthPlan{0, 0, 2}},
        GrowthCase{"TheWholeGap", {{3 * kPage, 0, 0}}, 3 * kPage, GrowthPlan{0, 0, 3}},
        GrowthCase{"TooShort", {{3 * kPage, 0, 0}}, 3 * kPage + 512, std::nullopt},
        GrowthCase{
            "FreeBeforeSavesPages", {{8 * kPage, kPage + 512, 0}}, 3 * kPage, GrowthPlan{0, 0, 2}},
        GrowthCase{"FreeAfterGrowsFromTheGapsEnd",
                   {{8 * kPage, 0, kPage + 512}},
                   3 * kPage,
                   GrowthPlan{0, 6, 2}},
        GrowthCase{"EqualOnBothSidesGrowsAtTheLowerAddress",
                   {{8 * kPage, kPage, kPage}},
                   2 * kPage,
                   GrowthPlan{0, 0, 1}},
        GrowthCase{"TheBetterSideOfOneGap",
                   {{8 * kPage, kPage, 2 * kPage}},
                   3 * kPage,
                   GrowthPlan{0, 7, 1}},
        GrowthCase{"FillingAGapJoinsBothSides",
                   {{kPage, 2 * kPage, 2 * kPage}, {64 * kPage, 0, 0}},
                   5 * kPage,
                   GrowthPlan{0, 0, 1}},
        GrowthCase{"JoinedSidesMayStillBeTooShort",
                   {{kPage, kPage, kPage}},
                   3 * kPage + 512,
                   std::nullopt},
        GrowthCase{"AFreeBlockThatFitsAlreadyStillCostsAPage",
                   {{4 * kPage, 3 * kPage, 0}},
                   2 * kPage,
                   GrowthPlan{0, 0, 1}},
        GrowthCase{"AFreeBlockOfExactlyTheRequestStillCostsAPage",
                   {{4 * kPage, 2 * kPage, 0}},
                   2 * kPage,
                   GrowthPlan{0, 0, 1}},
        GrowthCase{"FewestPagesOfAllGaps",
                   {{8 * kPage, 0, 0}, {8 * kPage, 512, 0}, {8 * kPage, 2 * kPage, 0}},
                   3 * kPage,
                   GrowthPlan{2, 0, 1}},
        GrowthCase{"LowestAddressAmongEquals",
                   {{2 * kPage, 0, 0}, {8 * kPage, kPage, 0}, {8 * kPage, kPage, 0}},
                   3 * kPage,
                   GrowthPlan{1, 0, 2}},
        GrowthCase{"SkipsGapsThatAreTooShort",
                   {{kPage, 0, 0}, {2 * kPage, 0, 0}, {4 * kPage, 0, 0}},
                   4 * kPage,
                   GrowthPlan{2, 0, 4}},
        GrowthCase{"OneSideTooShortTheOtherFits",
                   {{kPage, 512, 2 * kPage}},
                   3 * kPage,
                   GrowthPlan{0, 0, 1}}),
    [](const auto& given) { return given.param.name; });

struct WholePagesCase {
  std::string name;
  std::uint64_t begin;
  std::size_t bytes;
  std::optional<PageRun> run;
};

class WholePagesInsideTest : public ::testing::TestWithParam<WholePagesCase> {};

TEST_P(WholePagesInsideTest, IsTheRun) {
  const WholePagesCase& given = GetParam();
  EXPECT_EQ(whole_pages_inside(DevicePtr{given.begin}, given.bytes, kPage), given.run);
}

constexpr std::uint64_t kBase = std::uint64_t{1} << 40;

INSTANTIATE_TEST_SUITE_P(
    Cases, WholePagesInsideTest,
    ::testing::Values(
        WholePagesCase{"ExactlyOnePage", kBase, kPage, PageRun{DevicePtr{kBase}, kPage}},
        WholePagesCase{"SeveralPages", kBase, 3 * kPage, PageRun{DevicePtr{kBase}, 3 * kPage}},
        WholePagesCase{"LessThanAPage", kBase, kPage - 512, std::nullopt},
        WholePagesCase{"APageLongButShifted", kBase + 512, kPage, std::nullopt},
        WholePagesCase{"TwoPartsOfPages", kBase + 512, 2 * kPage - 1024, std::nullopt},
        WholePagesCase{"PartialAtTheBegin", kBase + 512, 2 * kPage - 512,
                       PageRun{DevicePtr{kBase + kPage}, kPage}},
        WholePagesCase{"PartialAtTheEnd", kBase, 2 * kPage - 512, PageRun{DevicePtr{kBase}, kPage}},
        WholePagesCase{"PartialAtBothEnds", kBase + kPage - 512, 3 * kPage,
                       PageRun{DevicePtr{kBase + kPage}, 2 * kPage}}),
    [](const auto& given) { return given.param.name; });

}  // namespace growth_test
}  // namespace ferro
