// The choice between waiting for a stream and growing.
#include "ferro/core/policy/stream_waits.h"

#include <gtest/gtest.h>

namespace ferro {
namespace stream_waits_test {

TEST(StreamWaits, GrowsWithinTheShare) {
  EXPECT_FALSE(
      prefers_stream_wait({.request = 10, .pending = 50, .held = 129, .peak_live = 100}, 0.4));
  EXPECT_FALSE(
      prefers_stream_wait({.request = 10, .pending = 50, .held = 130, .peak_live = 100}, 0.4));
  EXPECT_TRUE(
      prefers_stream_wait({.request = 10, .pending = 50, .held = 131, .peak_live = 100}, 0.4));
}

TEST(StreamWaits, WaitsOnlyForEnough) {
  EXPECT_FALSE(
      prefers_stream_wait({.request = 51, .pending = 50, .held = 200, .peak_live = 100}, 0.4));
  EXPECT_TRUE(
      prefers_stream_wait({.request = 50, .pending = 50, .held = 200, .peak_live = 100}, 0.4));
}

TEST(StreamWaits, AShareOfNothingWaitsForAllThatIsInFlight) {
  EXPECT_TRUE(prefers_stream_wait({.request = 1, .pending = 1, .held = 100, .peak_live = 100}, 0));
}

TEST(StreamWaits, CanBeSwitchedOff) {
  EXPECT_FALSE(prefers_stream_wait({.request = 1, .pending = 9, .held = 900, .peak_live = 1}, -1));
}

}  // namespace stream_waits_test
}  // namespace ferro
