// The policy that decides between the smallest and the lowest free block.
#include "ferro/core/policy/fits.h"

#include <gtest/gtest.h>

namespace ferro {
namespace fits_test {

TEST(CloseFit, LeavesAtMostAnEighthOfTheRequest) {
  EXPECT_TRUE(is_close_fit(800, 800));
  EXPECT_TRUE(is_close_fit(900, 800));
  EXPECT_FALSE(is_close_fit(901, 800));
  EXPECT_FALSE(is_close_fit(1600, 800));
}

}  // namespace fits_test
}  // namespace ferro
