// What a capture is expected to keep, and which pools are kept apart.
#include "ferro/core/policy/capture_lifetimes.h"

#include <gtest/gtest.h>

#include <set>

namespace ferro {
namespace capture_lifetimes_test {

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

}  // namespace capture_lifetimes_test
}  // namespace ferro
