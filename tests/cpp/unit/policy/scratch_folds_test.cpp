#include "ferro/core/policy/scratch_folds.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <set>
#include <vector>

namespace ferro {
namespace scratch_folds_test {

using Sizes = std::vector<std::size_t>;

TEST(PlanFold, TakesTheLargestThatFit) {
  const FoldPlan plan = plan_fold(Sizes{1, 1, 1, 1, 1, 1}, Sizes{1, 4, 8, 1});
  EXPECT_EQ(plan.replaced, 6U);
  EXPECT_EQ(plan.taken, (Sizes{1, 0, 3}));
}

TEST(PlanFold, EndsWhereHandlesOfBothEnd) {
  const FoldPlan plan = plan_fold(Sizes{2, 4, 4}, Sizes{3, 3, 2});
  EXPECT_EQ(plan.replaced, 2U);
  EXPECT_EQ(plan.taken, (Sizes{0, 1}));
}

TEST(PlanFold, NothingWhereNothingFits) {
  EXPECT_EQ(plan_fold(Sizes{2}, Sizes{4, 8}).replaced, 0U);
  EXPECT_EQ(plan_fold(Sizes{}, Sizes{4}).replaced, 0U);
  EXPECT_EQ(plan_fold(Sizes{4}, Sizes{}).replaced, 0U);
  EXPECT_EQ(plan_fold(Sizes{4}, Sizes{3}).replaced, 0U);
}

TEST(PlanFold, BothSidesHaveAsManyPages) {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    Sizes own(random() % 8);
    Sizes available(random() % 8);
    for (Sizes* sizes : {&own, &available}) {
      for (std::size_t& size : *sizes) {
        size = 1 + random() % 6;
      }
    }
    const FoldPlan plan = plan_fold(own, available);
    ASSERT_LE(plan.replaced, own.size());
    std::size_t taken = 0;
    for (const std::size_t i : plan.taken) {
      taken += available.at(i);
    }
    ASSERT_EQ(std::set(plan.taken.begin(), plan.taken.end()).size(), plan.taken.size());
    const auto end = own.begin() + static_cast<std::ptrdiff_t>(plan.replaced);
    ASSERT_EQ(taken, std::accumulate(own.begin(), end, std::size_t{0}));
  }
}

TEST(PagesWhenFolded, TheLargestServesAll) {
  EXPECT_EQ(pages_when_folded({}), 0U);
  EXPECT_EQ(pages_when_folded({{{1, 1}}, {}, {{1, 1, 1}, {2}}, {{1}, {1, 1}}}), 5U);
}

TEST(PagesWhenFolded, NoHandleServesAUserTwice) {
  // The smaller user has two runs of a page, and the larger one handle that fits.
  EXPECT_EQ(pages_when_folded({{{1, 4}}, {{1}, {1}}}), 6U);
}

TEST(PagesWhenFolded, HandlesThatDoNotFitStay) {
  EXPECT_EQ(pages_when_folded({{{4, 4}}, {{2, 1}}, {{2}}}), 11U);
}

TEST(PagesWhenFolded, DoubledHandlesWantOneOfAsManyPages) {
  EXPECT_EQ(pages_when_folded({{{1, 1, 1, 1}}, {{1}}}, {{}, {1}}), 4U);
  EXPECT_EQ(pages_when_folded({{{1, 1, 1, 1}}, {{1}}}, {{}, {2}}), 6U);
  // The handles of the user with the most scratch serve the others.
  EXPECT_EQ(pages_when_folded({{{1, 1, 1}}, {{1, 1}}}, {{}, {1, 2}}), 5U);
}

TEST(PlanLending, EndsWithALargerHandleWhereNoOtherIsLeft) {
  const Sizes available{8, 2, 4, 1};
  EXPECT_EQ(plan_lending(7, available, LastHandle::kFits), (Sizes{2, 1, 3}));
  EXPECT_EQ(plan_lending(20, available, LastHandle::kMayBeLarger), (Sizes{0, 2, 1, 3}));
  EXPECT_EQ(plan_lending(3, Sizes{8, 2}, LastHandle::kMayBeLarger), (Sizes{1, 0}));
  EXPECT_EQ(plan_lending(3, Sizes{8, 2}, LastHandle::kFits), (Sizes{1}));
}

TEST(LargestBorrowedHandle, IsAPageUnlessARequestTakesManyHandles) {
  EXPECT_EQ(largest_borrowed_handle(1), 1U);
  EXPECT_EQ(largest_borrowed_handle(127), 1U);
  EXPECT_EQ(largest_borrowed_handle(1024), 16U);
}

}  // namespace scratch_folds_test
}  // namespace ferro
