// What a capture is expected to keep, and which pools are kept apart.
#include "ferro/core/policy/capture_lifetimes.h"

#include "ferro/core/policy/any_order.h"

#include <gtest/gtest.h>

#include <set>

namespace ferro {
namespace {

void capture(CaptureLifetimes& lifetimes, std::initializer_list<std::uint64_t> given,
             const std::set<DevicePtr>& live) {
  lifetimes.begin();
  for (const std::uint64_t ptr : given) {
    lifetimes.note(DevicePtr{ptr});
  }
  lifetimes.learn([&](DevicePtr ptr) { return live.contains(ptr); });
}

TEST(CaptureLifetimesTest, NothingIsKnownOfTheFirstCapture) {
  EXPECT_EQ(CaptureLifetimes().next(), Lifetime::kUnknown);
}

TEST(CaptureLifetimesTest, AnAllocationDoesAsTheOneWithItsNumberDid) {
  CaptureLifetimes lifetimes;
  capture(lifetimes, {512, 1024, 512}, {DevicePtr{512}});
  lifetimes.begin();
  EXPECT_EQ(lifetimes.next(), Lifetime::kDies);  // at the address of the third, which lives
  lifetimes.note(DevicePtr{4096});
  EXPECT_EQ(lifetimes.next(), Lifetime::kDies);
  lifetimes.note(DevicePtr{8192});
  EXPECT_EQ(lifetimes.next(), Lifetime::kIsKept);
  lifetimes.note(DevicePtr{4096});
  EXPECT_EQ(lifetimes.next(), Lifetime::kUnknown);
}

TEST(CaptureLifetimesTest, ACaptureThatIsGivenUpTeachesNothing) {
  CaptureLifetimes lifetimes;
  capture(lifetimes, {512}, {DevicePtr{512}});
  lifetimes.begin();
  lifetimes.note(DevicePtr{1024});
  lifetimes.note(DevicePtr{2048});
  lifetimes.begin();
  EXPECT_EQ(lifetimes.next(), Lifetime::kIsKept);
}

TEST(AnyOrderTest, LittleIsKeptApart) {
  const AnyOrderRules rules{.part_kept = 8};
  EXPECT_TRUE(are_kept_apart(0, 0, rules));
  EXPECT_TRUE(are_kept_apart(10, 80, rules));
  EXPECT_FALSE(are_kept_apart(11, 80, rules));
  EXPECT_TRUE(are_kept_apart(80, 80, {.part_kept = 0}));
}

}  // namespace
}  // namespace ferro
