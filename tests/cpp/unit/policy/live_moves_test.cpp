#include "ferro/core/policy/live_moves.h"

#include <gtest/gtest.h>

namespace ferro {
namespace {

using Order = std::vector<std::size_t>;
using Handles = std::vector<HandleUse>;

TEST(PlanLiveMovesTest, WhatIsAtHandAlreadyNeedsNoMove) {
  EXPECT_EQ(plan_live_moves(Handles{{8, 1}}, 5, 5), Order{});
  EXPECT_EQ(plan_live_moves(Handles{}, 0, 0), Order{});
}

TEST(PlanLiveMovesTest, TheHandleComesFirstThatCostsTheLeastCopiesForAPage) {
  // 1/3, 1/7 and 6/58 copies a page.
  EXPECT_EQ(plan_live_moves(Handles{{4, 1}, {8, 1}, {64, 6}}, 40, 10), Order({2}));
  EXPECT_EQ(plan_live_moves(Handles{{4, 1}, {8, 1}, {64, 6}}, 75, 10), Order({2, 1}));
  EXPECT_EQ(plan_live_moves(Handles{{4, 1}, {8, 1}, {64, 6}}, 78, 10), Order({2, 1, 0}));
}

TEST(PlanLiveMovesTest, OfEqualCostTheOneThatFreesMoreComesFirst) {
  EXPECT_EQ(plan_live_moves(Handles{{4, 1}, {16, 4}, {8, 2}}, 11, 4), Order({1}));
}

TEST(PlanLiveMovesTest, EachHandleMakesRoomForTheNext) {
  // One page is at hand: the first makes three of it, the second five, and so the last fits.
  EXPECT_EQ(plan_live_moves(Handles{{64, 5}, {4, 2}, {3, 1}, {4, 3}}, 60, 1), Order({2, 1, 0}));
}

TEST(PlanLiveMovesTest, NothingMovesWhereItIsNotEnough) {
  EXPECT_EQ(plan_live_moves(Handles{{8, 1}, {8, 1}}, 20, 5), Order{});
  EXPECT_EQ(plan_live_moves(Handles{{8, 1}, {8, 1}}, 19, 5), Order({0, 1}));
}

TEST(PlanLiveMovesTest, NothingMovesWithoutRoomForTheFirstCopy) {
  EXPECT_EQ(plan_live_moves(Handles{{64, 1}}, 10, 0), Order{});
  EXPECT_EQ(plan_live_moves(Handles{{64, 3}}, 10, 2), Order{});
  EXPECT_EQ(plan_live_moves(Handles{{64, 3}}, 10, 3), Order({0}));
}

}  // namespace
}  // namespace ferro
