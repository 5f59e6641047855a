#include "ferro/graph/footprints.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <random>
#include <set>
#include <vector>

namespace ferro {
namespace footprints_test {

constexpr PoolId kPool{0, 7};
constexpr PoolId kOther{0, 8};

AddressRanges ranges(std::initializer_list<std::array<std::uint64_t, 2>> spans) {
  AddressRanges made;
  for (const auto& [begin, end] : spans) {
    made.add(DevicePtr{begin}, end - begin);
  }
  return made;
}

TEST(AddressRangesTest, CountsEachByteOnce) {
  EXPECT_EQ(ranges({}).bytes(), 0U);
  EXPECT_EQ(ranges({{10, 20}, {30, 40}}).bytes(), 20U);
  EXPECT_EQ(ranges({{10, 20}, {20, 30}}).bytes(), 20U);
  EXPECT_EQ(ranges({{10, 20}, {30, 40}, {15, 35}}).bytes(), 30U);
  EXPECT_EQ(ranges({{10, 40}, {20, 30}}).bytes(), 30U);
  EXPECT_EQ(ranges({{20, 30}, {10, 40}}).bytes(), 30U);
}

TEST(AddressRangesTest, AgreesWithASetOfBytes) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::array<AddressRanges, 2> made;
    std::array<std::set<std::uint64_t>, 2> bytes;
    for (int i = 0; i < 20; ++i) {
      const std::size_t which = random() % 2;
      const std::uint64_t begin = random() % 100 + 1;
      const std::uint64_t length = random() % 12 + 1;
      made[which].add(DevicePtr{begin}, length);
      for (std::uint64_t byte = begin; byte < begin + length; ++byte) {
        bytes[which].insert(byte);
      }
    }
    std::vector<std::uint64_t> both;
    std::ranges::set_intersection(bytes[0], bytes[1], std::back_inserter(both));
    EXPECT_EQ(made[0].bytes(), bytes[0].size());
    EXPECT_EQ(made[0].intersection(made[1]).bytes(), both.size());
    made[0].unite(made[1]);
    bytes[0].insert(bytes[1].begin(), bytes[1].end());
    EXPECT_EQ(made[0].bytes(), bytes[0].size());
  }
}

TEST(FootprintsTest, AGraphsBytesArePrivateOrSharedAndLiveOrScratch) {
  Footprints footprints;
  footprints.note(kPool, 1, DevicePtr{1000}, 100);
  footprints.note(kPool, 1, DevicePtr{2000}, 50);
  footprints.note(kPool, 2, DevicePtr{1050}, 100);
  footprints.note(kOther, 3, DevicePtr{2000}, 50);
  const std::vector<BlockView> live{{DevicePtr{2000}, 50}, {DevicePtr{3000}, 70}};
  const GraphSizes first = footprints.sizes_of(kPool, 1, live);
  EXPECT_EQ(first.private_bytes, 100U);
  EXPECT_EQ(first.shared_bytes, 50U);
  EXPECT_EQ(first.live_bytes, 50U);
  EXPECT_EQ(first.scratch_bytes, 100U);
  EXPECT_EQ(footprints.shared_bytes(kPool), 50U);
  EXPECT_EQ(footprints.shared_bytes(kOther), 0U);
}

TEST(FootprintsTest, ACaptureThatWasGivenNothingHasNoBytes) {
  const Footprints footprints;
  EXPECT_EQ(footprints.sizes_of(kPool, 1, {}).private_bytes, 0U);
}

TEST(FootprintsTest, AGraphThatIsForgottenSharesNothing) {
  Footprints footprints;
  for (const std::uint64_t capture : {1, 2, 3}) {
    footprints.note(kPool, capture, DevicePtr{1000}, 100);
  }
  footprints.forget_capture(kPool, 2);
  EXPECT_EQ(footprints.shared_bytes(kPool), 100U);
  footprints.forget_capture(kPool, 3);
  footprints.forget_capture(kPool, 3);
  EXPECT_EQ(footprints.shared_bytes(kPool), 0U);
  EXPECT_EQ(footprints.sizes_of(kPool, 1, {}).private_bytes, 100U);
  footprints.note(kOther, 4, DevicePtr{1000}, 100);
  footprints.forget_pool(kPool);
  EXPECT_EQ(footprints.sizes_of(kPool, 1, {}).private_bytes, 0U);
  EXPECT_EQ(footprints.sizes_of(kOther, 4, {}).private_bytes, 100U);
}

}  // namespace footprints_test
}  // namespace ferro
