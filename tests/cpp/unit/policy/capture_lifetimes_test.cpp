// Predictions of the blocks that a capture keeps, and the separation of pools.
#include "ferro/core/policy/capture_lifetimes.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace ferro {
namespace capture_lifetimes_test {

struct Given {
  DevicePtr ptr;
};

void capture(CaptureLifetimes& lifetimes, const std::vector<Given>& given,
             const std::set<DevicePtr>& live) {
  lifetimes.learn(given, [&](DevicePtr ptr) { return live.contains(ptr); });
}

TEST(CaptureLifetimesTest, TheFirstCaptureHasNoPrediction) {
  EXPECT_EQ(CaptureLifetimes().of(0), Lifetime::kUnknown);
}

TEST(CaptureLifetimesTest, ThePredictionIsTheLifetimeOfTheSameNumber) {
  CaptureLifetimes lifetimes;
  capture(lifetimes, {{DevicePtr{512}}, {DevicePtr{1024}}, {DevicePtr{512}}}, {DevicePtr{512}});
  EXPECT_EQ(lifetimes.of(0), Lifetime::kDies);  // at the address of the third, which lives
  EXPECT_EQ(lifetimes.of(1), Lifetime::kDies);
  EXPECT_EQ(lifetimes.of(2), Lifetime::kSurvives);
  EXPECT_EQ(lifetimes.of(3), Lifetime::kUnknown);
}

TEST(CaptureLifetimesTest, TheLastCaptureCounts) {
  CaptureLifetimes lifetimes;
  capture(lifetimes, {{DevicePtr{512}}, {DevicePtr{1024}}}, {DevicePtr{512}});
  capture(lifetimes, {{DevicePtr{2048}}}, {});
  EXPECT_EQ(lifetimes.of(0), Lifetime::kDies);
  EXPECT_EQ(lifetimes.of(1), Lifetime::kUnknown);
}

}  // namespace capture_lifetimes_test
}  // namespace ferro
