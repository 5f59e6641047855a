// The choice between transferring pages from other streams and creating new ones.
#include "ferro/core/policy/transfers.h"

#include <gtest/gtest.h>

namespace ferro {
namespace transfers_test {

constexpr TransferRules kRules{.handles_at_start = 10, .allocations_per_handle = 100};

TEST(Transfers, SomeAreFree) {
  EXPECT_TRUE(prefers_transfer(9, 0, kRules));
  EXPECT_FALSE(prefers_transfer(10, 0, kRules));
  EXPECT_FALSE(prefers_transfer(10, 99, kRules));
}

TEST(Transfers, TheOthersAreFewBesideTheAllocations) {
  EXPECT_TRUE(prefers_transfer(10, 100, kRules));
  EXPECT_FALSE(prefers_transfer(11, 100, kRules));
  EXPECT_TRUE(prefers_transfer(1009, 100'000, kRules));
  EXPECT_FALSE(prefers_transfer(1010, 100'000, kRules));
}

}  // namespace transfers_test
}  // namespace ferro
