// Moving whole free pages of a line to where a request fits.
#include "ferro/core/relocation.h"

#include "support/heap_fixture.h"

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

namespace ferro {

void PrintTo(const HoleShare& share, std::ostream* out) {
  *out << "{hole " << share.hole << ", pages " << share.pages << "}";
}

namespace {

using testing::bytes;
using testing::FaultyApi;
using testing::kPageBytes;
using testing::SimGpu;

struct MovesCase {
  std::string name;
  std::vector<std::size_t> holes;
  std::size_t wanted;
  std::vector<HoleShare> shares;
};

class PlanMovesTest : public ::testing::TestWithParam<MovesCase> {};

TEST_P(PlanMovesTest, Shares) {
  EXPECT_EQ(plan_moves(GetParam().holes, GetParam().wanted), GetParam().shares);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, PlanMovesTest,
    ::testing::Values(MovesCase{"NoHole", {}, 3, {}}, MovesCase{"NothingWanted", {4}, 0, {}},
                      MovesCase{"APartOfOne", {4}, 3, {{0, 3}}},
                      MovesCase{"LargeHolesFirst", {1, 4, 2}, 6, {{1, 4}, {2, 2}}},
                      MovesCase{"LowestAddressAmongEquals", {2, 2, 2}, 3, {{0, 2}, {1, 1}}},
                      MovesCase{"AllThatThereIs", {1, 2}, 9, {{1, 2}, {0, 1}}}),
    [](const auto& given) { return given.param.name; });

class RelocationTest : public testing::HeapFixture {
 protected:
  // Live and free pages in turns: "L1p F1p L1p F1p ...", with eight holes of a page each.
  RelocationTest() {
    for (int i = 0; i < 16; ++i) {
      blocks_.push_back(grow(heap_, kPageBytes));
    }
    for (std::size_t i = 1; i < blocks_.size(); i += 2) {
      free(heap_, blocks_[i]);
    }
  }
  ~RelocationTest() override { drain(heap_); }

  DevicePtr move(std::size_t pages) {
    DevicePtr ptr = kNull;
    const GrowResult result =
        heap_.allocate_grown(bytes(pages * kPageBytes), GrowFrom::kOwnPages, &ptr);
    EXPECT_EQ(result == GrowResult::kGrown, ptr != kNull);
    check(heap_);
    return ptr;
  }

  Heap heap_{context_, kDefaultPool, stream_};
  std::vector<DevicePtr> blocks_;
};

TEST_F(RelocationTest, HolesBecomeALineWithoutNewPagesAndWithoutWaiting) {
  const DriverCalls before = driver_.calls();
  const DevicePtr ptr = move(5);
  EXPECT_NE(ptr, kNull);
  const DriverCalls after = driver_.calls();
  EXPECT_EQ(after.create - before.create, 0U);
  EXPECT_EQ(after.event_record - before.event_record, 1U);
  EXPECT_EQ(after.event_wait - before.event_wait, 0U);
  EXPECT_EQ(after.unmap - before.unmap, 0U) << "work before the fence may use the old addresses";
  EXPECT_EQ(store_.counts().held, 16U);
  EXPECT_EQ(heap_.view().backed_bytes, 16 * kPageBytes);
}

TEST_F(RelocationTest, OldMappingsGoWhenTheirFenceHasPassed) {
  make_busy(stream_, blocks_[0]);
  ASSERT_NE(move(4), kNull);
  const std::uint64_t before = driver_.calls().unmap;
  ASSERT_NE(move(1), kNull);
  EXPECT_EQ(driver_.calls().unmap, before) << "the fence has not passed";
  SimGpu::finish(stream_);
  ASSERT_NE(move(1), kNull);
  EXPECT_GT(driver_.calls().unmap, before);
}

TEST_F(RelocationTest, TooFewPagesMoveNothing) {
  const std::string before = layout_of(heap_);
  const DriverCalls calls = driver_.calls();
  EXPECT_EQ(move(10), kNull);
  EXPECT_EQ(layout_of(heap_), before);
  EXPECT_EQ(driver_.calls().map, calls.map);
  EXPECT_EQ(driver_.calls().event_record, calls.event_record);
}

TEST_F(RelocationTest, MovedPagesAreCompletedFromTheStore) {
  const DevicePtr ptr = grow(heap_, 12 * kPageBytes);
  EXPECT_NE(ptr, kNull);
  EXPECT_LT(store_.counts().created, 16U + 12U);
}

TEST_F(RelocationTest, ACapturingStreamMovesNothing) {
  SimGpu::begin_capture(stream_);
  EXPECT_EQ(move(5), kNull);
  EXPECT_EQ(driver_.capture_info(stream_).status, CaptureStatus::kActive);
  SimGpu::end_capture(stream_);
  EXPECT_NE(move(5), kNull);
}

TEST_F(RelocationTest, APrivatePoolKeepsItsPagesWhereTheyAre) {
  Heap pool(context_, PoolId{0, 3}, stream_);
  DevicePtr ptr = kNull;
  std::vector<DevicePtr> blocks;
  for (int i = 0; i < 4; ++i) {
    ASSERT_EQ(pool.allocate_grown(bytes(kPageBytes), GrowFrom::kAnyPages, &ptr),
              GrowResult::kGrown);
    blocks.push_back(ptr);
  }
  free(pool, blocks[0]);
  free(pool, blocks[2]);
  EXPECT_EQ(pool.allocate_grown(bytes(2 * kPageBytes), GrowFrom::kOwnPages, &ptr),
            GrowResult::kTooFewPages);
  free(pool, blocks[1]);
  free(pool, blocks[3]);
  EXPECT_EQ(pool.give_back_pages(4), 4U);
}

TEST_F(RelocationTest, GiveBackRemovesOldMappingsFirst) {
  make_busy(stream_, blocks_[0]);
  const DevicePtr ptr = move(4);
  ASSERT_NE(ptr, kNull);
  free(heap_, ptr);
  EXPECT_EQ(heap_.give_back_pages(~std::size_t{0}), 8U);
  check(heap_);
  EXPECT_EQ(store_.trim(8), 8U);
  EXPECT_EQ(SimGpu::used_pages(), 8U) << "no mapping keeps a released page";
}

TEST_F(RelocationTest, ARefusedRemovalIsTriedAgain) {
  ASSERT_NE(move(4), kNull);
  SimGpu::finish(stream_);
  FaultyApi::fail_only("cuMemUnmap", 1, CUDA_ERROR_UNKNOWN);
  const DevicePtr b = move(1);
  EXPECT_NE(b, kNull);
  EXPECT_STREQ(FaultyApi::failed(), "cuMemUnmap");
  SimGpu::finish(stream_);
  EXPECT_NE(move(1), kNull);
}

}  // namespace
}  // namespace ferro
