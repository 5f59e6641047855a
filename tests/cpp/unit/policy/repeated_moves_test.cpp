// When a request grows memory rather than move pages again.
#include "ferro/core/policy/repeated_moves.h"

#include <gtest/gtest.h>

namespace ferro {
namespace repeated_moves_test {

constexpr RepeatedMove kMany{.moves = 8, .missing = kMiB, .held = kGiB, .peak_live = kGiB};

TEST(RepeatedMoves, AFewAreCheaperThanMemory) {
  RepeatedMove move = kMany;
  EXPECT_TRUE(prefers_growth(move));
  move.moves = 7;
  EXPECT_FALSE(prefers_growth(move));
}

TEST(RepeatedMoves, MemoryGrowsByAShareOfTheLargePeak) {
  RepeatedMove move = kMany;
  move.peak_live = move.held = 100 * kGiB;
  move.missing = kGiB;
  EXPECT_TRUE(prefers_growth(move));
  move.missing += 1;
  EXPECT_FALSE(prefers_growth(move));
}

TEST(RepeatedMoves, AndOfASmallOneByAFewPages) {
  RepeatedMove move = kMany;
  move.missing = 16 * kMiB;
  EXPECT_TRUE(prefers_growth(move));
  move.held += 1;
  EXPECT_FALSE(prefers_growth(move));
}

TEST(RepeatedMoves, WhatIsHeldBeyondThePeakCounts) {
  RepeatedMove move = kMany;
  move.held += 16 * kMiB;
  EXPECT_FALSE(prefers_growth(move));
}

}  // namespace repeated_moves_test
}  // namespace ferro
