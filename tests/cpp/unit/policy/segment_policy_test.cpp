#include "ferro/core/policy/segment_policy.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace ferro {
namespace segment_policy_test {

using Indices = std::vector<std::size_t>;

TEST(SegmentPolicy, SegmentsOfRequests) {
  constexpr SegmentRules kRules;
  EXPECT_EQ(segment_bytes(512, kRules), 2 * kMiB);
  EXPECT_EQ(segment_bytes(kMiB, kRules), 2 * kMiB);
  EXPECT_EQ(segment_bytes(kMiB + 512, kRules), 20 * kMiB);
  EXPECT_EQ(segment_bytes(10 * kMiB - 512, kRules), 20 * kMiB);
  EXPECT_EQ(segment_bytes(10 * kMiB, kRules), 10 * kMiB);
  EXPECT_EQ(segment_bytes(10 * kMiB + 512, kRules), 12 * kMiB);
  EXPECT_EQ(segment_bytes(2 * kMiB, {.large_segment = 24 * kMiB}), 24 * kMiB);
  EXPECT_EQ(segment_kind(kMiB), HeapKind::kSmallSegments);
  EXPECT_EQ(segment_kind(kMiB + 512), HeapKind::kLargeSegments);
}

TEST(SegmentPolicy, RestsAreCutOffWhereTheyCanServeSomebody) {
  constexpr SegmentRules kRules;
  constexpr auto kSmall = HeapKind::kSmallSegments;
  constexpr auto kLarge = HeapKind::kLargeSegments;
  EXPECT_TRUE(is_split(1024, 512, kSmall, false, kRules));
  EXPECT_FALSE(is_split(512, 512, kSmall, false, kRules));
  EXPECT_FALSE(is_split(1024, 512, kSmall, true, kRules));
  EXPECT_FALSE(is_split(20 * kMiB, 19 * kMiB, kLarge, false, kRules));
  EXPECT_TRUE(is_split(20 * kMiB, 19 * kMiB - 512, kLarge, false, kRules));
  EXPECT_FALSE(is_split(50 * kMiB, 30 * kMiB, kLarge, false, {.max_split = 30 * kMiB}));
}

TEST(SegmentPolicy, OversizeBlocksServeOversizeRequestsThatNearlyFillThem) {
  constexpr SegmentRules kRules{.max_split = 30 * kMiB, .max_non_split_rounding = 20 * kMiB};
  EXPECT_TRUE(may_serve(29 * kMiB, kMiB, kRules));
  EXPECT_FALSE(may_serve(30 * kMiB, kMiB, kRules));
  EXPECT_TRUE(may_serve(49 * kMiB, 30 * kMiB, kRules));
  EXPECT_FALSE(may_serve(50 * kMiB, 30 * kMiB, kRules));
  EXPECT_TRUE(may_serve(500 * kMiB, kMiB, {}));
}

TEST(SegmentPolicy, TheOldestGoFirstUntilItIsEnough) {
  const std::array<std::size_t, 4> sizes{10, 10, 10, 10};
  const std::array<std::uint32_t, 4> ages{1, 2, 3, 10};  // 4 on average
  EXPECT_EQ(plan_collection(sizes, ages, 1), (Indices{3}));
  // Of what is left, 2 on average.
  EXPECT_EQ(plan_collection(sizes, ages, 11), (Indices{3, 1, 2}));
  EXPECT_EQ(plan_collection(sizes, ages, 100), (Indices{3, 1, 2, 0}));
  EXPECT_TRUE(plan_collection(sizes, ages, 0).empty());
  EXPECT_TRUE(plan_collection({}, {}, 100).empty());
}

TEST(SegmentPolicy, SegmentsOfOneAgeGoTogether) {
  const std::array<std::size_t, 3> sizes{10, 20, 30};
  const std::array<std::uint32_t, 3> ages{0, 0, 0};
  EXPECT_EQ(plan_collection(sizes, ages, 1), (Indices{0, 1, 2}));
}

TEST(SegmentPolicy, OneOversizeSegmentThatDoesElseTheLargest) {
  constexpr SegmentRules kRules{.max_split = 30};
  const std::array<std::size_t, 5> sizes{10, 30, 40, 50, 60};
  const auto chosen = [&](std::size_t size) {
    return plan_oversize_release(sizes, size, kRules).segments;
  };
  EXPECT_EQ(chosen(5), (Indices{1})) << "at least max_split";
  EXPECT_EQ(chosen(45), (Indices{3}));
  EXPECT_EQ(chosen(100), (Indices{4, 3}));
  EXPECT_TRUE(plan_oversize_release(sizes, 100, kRules).enough);
  // Never those that may be split.
  EXPECT_EQ(chosen(1000), (Indices{4, 3, 2, 1}));
  EXPECT_FALSE(plan_oversize_release(sizes, 1000, kRules).enough);
  EXPECT_FALSE(plan_oversize_release({}, 5, kRules).enough);
}

}  // namespace segment_policy_test
}  // namespace ferro
