// Stale mappings, which are removed once their epochs have passed.
#include "ferro/core/pages/stale_mappings.h"

#include "ferro/driver/error.h"
#include "support/heap_fixture.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

namespace ferro {
namespace stale_mappings_test {

using testing::FaultyApi;
using testing::kPageBytes;
using testing::SimGpu;

class StaleMappingsTest : public testing::HeapFixture {
 protected:
  ~StaleMappingsTest() override { drain(*heap_); }

  // Leaves a stale mapping for each hole of so many pages, after unfinished work.
  void leave(std::initializer_list<std::size_t> holes) {
    std::vector<DevicePtr> blocks;
    for (const std::size_t pages : holes) {
      blocks.push_back(grow(*heap_, pages * kPageBytes));
      kept_ = grow(*heap_, kPageBytes);
    }
    make_busy(stream_, kept_);
    for (const DevicePtr block : blocks) {
      free(*heap_, block);
    }
    ASSERT_TRUE(timeline_.record());
    heap_->release_pages(~std::size_t{0}, ReleaseAfter::kStreamWait);
    ASSERT_EQ(stale_.count(), holes.size());
  }
  std::uint64_t unmaps() { return driver_.calls().unmap; }
  // Releases pages of the store to the driver.
  std::size_t trim() { return store_.trim(~std::size_t{0}); }

  std::optional<Heap> heap_{std::in_place, context_, kDefaultPool, stream_};
  DevicePtr kept_{};
};

TEST_F(StaleMappingsTest, WhatHasNotPassedStays) {
  leave({2});
  EXPECT_EQ(stale_.remove_passed(), 0U);
  EXPECT_EQ(unmaps(), 0U);
  EXPECT_EQ(trim(), 0U);
}

TEST_F(StaleMappingsTest, WhatHasPassedGoesAndItsHandlesAreFree) {
  leave({2, 3});
  SimGpu::finish(stream_);
  EXPECT_EQ(stale_.remove_passed(), 2U);
  EXPECT_EQ(unmaps(), 2U);
  EXPECT_EQ(stale_.count(), 0U);
  EXPECT_EQ(stale_.counts().removed, 2U);
  EXPECT_EQ(trim(), 5U);
  check(*heap_);
}

TEST_F(StaleMappingsTest, ALargeMappingGoesWithOneCall) {
  leave({35});
  SimGpu::finish(stream_);
  EXPECT_EQ(stale_.remove_passed(), 1U);
  EXPECT_EQ(unmaps(), 1U);
  EXPECT_EQ(trim(), 35U);
}

TEST_F(StaleMappingsTest, AHeapIsNotEmptyUntilItsMappingsAreGone) {
  const DevicePtr block = grow(*heap_, kPageBytes);
  free(*heap_, block);
  make_busy(stream_, block);
  ASSERT_TRUE(timeline_.record());
  ASSERT_EQ(heap_->release_pages(1, ReleaseAfter::kStreamWait), 1U);
  SimGpu::finish(stream_);
  EXPECT_FALSE(heap_->is_empty());
  EXPECT_EQ(stale_.remove_passed(), 1U);
  EXPECT_TRUE(heap_->is_empty());
}

TEST_F(StaleMappingsTest, AMappingStaysWhileAStreamThatWasNeverNamedHasWork) {
  const DevicePtr block = grow(*heap_, kPageBytes);
  make_busy(side_, block);
  free(*heap_, block);
  ASSERT_TRUE(timeline_.record());
  ASSERT_EQ(heap_->release_pages(1, ReleaseAfter::kStreamWait), 1U);
  SimGpu::finish(stream_);
  EXPECT_EQ(stale_.remove_passed(), 0U);
  SimGpu::finish(side_);
  EXPECT_EQ(stale_.remove_passed(), 1U);
}

TEST_F(StaleMappingsTest, AMergedHoleHasTheLatestStamp) {
  const DevicePtr first = grow(*heap_, kPageBytes);
  const DevicePtr second = grow(*heap_, 2 * kPageBytes);
  make_busy(side_, first);
  free(*heap_, first);
  ASSERT_TRUE(timeline_.record());
  make_busy(stream_, second);
  free(*heap_, second);
  ASSERT_TRUE(timeline_.record());
  ASSERT_EQ(heap_->release_pages(3, ReleaseAfter::kStreamWait), 3U);
  SimGpu::finish(side_);
  EXPECT_EQ(stale_.remove_passed(), 0U) << "one hole: its stamp is the later one";
  SimGpu::finish(stream_);
  EXPECT_EQ(stale_.remove_passed(), 1U);
}

TEST_F(StaleMappingsTest, WhatTheDriverRefusesStays) {
  leave({1, 1});
  SimGpu::finish(stream_);
  FaultyApi::fail_only("cuMemUnmap", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(stale_.remove_passed(), 0U);
  EXPECT_EQ(stale_.counts().refused, 1U);
  EXPECT_EQ(stale_.count(), 2U);
  EXPECT_EQ(stale_.remove_passed(), 2U);
}

TEST_F(StaleMappingsTest, AnEventThatCannotBeAskedChangesNothing) {
  leave({1});
  SimGpu::finish(stream_);
  FaultyApi::fail_only("cuEventQuery", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_THROW(static_cast<void>(stale_.remove_passed()), DriverError);
  EXPECT_EQ(stale_.count(), 1U);
  EXPECT_EQ(stale_.remove_passed(), 1U);
}

}  // namespace stale_mappings_test
}  // namespace ferro
