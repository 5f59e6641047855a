// Old mappings that are removed beside the requests, one call at a time.
#include "ferro/core/pages/stale_mappings.h"

#include "ferro/driver/error.h"
#include "support/heap_fixture.h"
#include "support/idle_remover.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

namespace ferro {
namespace {

using testing::FaultyApi;
using testing::kPageBytes;
using testing::SimGpu;
using Unmapped = StaleMappings::Unmapped;

class StaleMappingsTest : public testing::HeapFixture {
 protected:
  StaleMappingsTest() { stale_.set_remover(&remover_); }
  ~StaleMappingsTest() override { drain(*heap_); }

  // Leaves a mapping for each hole of so many pages, behind work that is not finished.
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
    heap_->release_pages(~std::size_t{0}, ReleaseAfter::kStream);
    ASSERT_EQ(stale_.count(), holes.size());
  }
  std::uint64_t unmaps() { return driver_.calls().unmap; }
  // Pages of the store that the driver takes back.
  std::size_t trim() { return store_.trim(~std::size_t{0}); }

  testing::IdleRemover remover_;
  std::optional<ArenaHeap> heap_{std::in_place, context_, kDefaultPool, stream_};
  DevicePtr kept_{};
};

TEST_F(StaleMappingsTest, WhatHasNotPassedStays) {
  leave({2});
  EXPECT_EQ(stale_.unmap_next(), Unmapped::kNonePassed);
  EXPECT_EQ(stale_.remove_passed(), 0U);
  EXPECT_EQ(unmaps(), 0U);
  EXPECT_EQ(trim(), 0U);
}

TEST_F(StaleMappingsTest, TheHandlesAreFreeAtOnceAndTheOwnerHearsLater) {
  leave({2, 3});
  SimGpu::finish(stream_);
  EXPECT_EQ(stale_.unmap_next(), Unmapped::kSome);
  EXPECT_EQ(unmaps(), 1U);
  EXPECT_EQ(stale_.count(), 2U) << "the heap knows of none";
  const std::size_t first = trim();
  EXPECT_TRUE(first == 2 || first == 3) << first;
  EXPECT_EQ(stale_.unmap_next(), Unmapped::kSome);
  EXPECT_EQ(first + trim(), 5U);
  EXPECT_EQ(stale_.unmap_next(), Unmapped::kNoneLeft);
  EXPECT_EQ(stale_.notify_owners(), 2U);
  EXPECT_EQ(stale_.count(), 0U);
  EXPECT_EQ(stale_.counts().by_remover, 2U);
  EXPECT_EQ(stale_.counts().by_requests, 0U);
  check(*heap_);
}

TEST_F(StaleMappingsTest, ARequestTakesTheRestAndSettlesAll) {
  leave({1, 1, 1});
  SimGpu::finish(stream_);
  EXPECT_EQ(stale_.unmap_next(), Unmapped::kSome);
  EXPECT_EQ(stale_.remove_passed(), 3U);
  EXPECT_EQ(stale_.counts().by_remover, 1U);
  EXPECT_EQ(stale_.counts().by_requests, 2U);
}

TEST_F(StaleMappingsTest, AHeapIsNotEmptyUntilItHears) {
  const DevicePtr block = grow(*heap_, kPageBytes);
  free(*heap_, block);
  SimGpu::finish(stream_);
  ASSERT_EQ(heap_->release_pages(1, ReleaseAfter::kStream), 1U);
  SimGpu::finish(stream_);
  EXPECT_EQ(stale_.unmap_next(), Unmapped::kSome);
  EXPECT_FALSE(heap_->is_empty());
  EXPECT_EQ(stale_.notify_owners(), 1U);
  EXPECT_TRUE(heap_->is_empty());
}

TEST_F(StaleMappingsTest, ALargeMappingGoesInParts) {
  constexpr std::size_t kMost = StaleMappings::kHandlesAtOnce;
  leave({2 * kMost + 3});
  SimGpu::finish(stream_);
  for (std::uint64_t part = 1; part <= 2; ++part) {
    EXPECT_EQ(stale_.unmap_next(), Unmapped::kSome);
    EXPECT_EQ(unmaps(), part);
    EXPECT_EQ(trim(), 0U) << "its handles are free when all of it is gone";
  }
  EXPECT_EQ(stale_.unmap_next(), Unmapped::kSome);
  EXPECT_EQ(stale_.unmap_next(), Unmapped::kNoneLeft);
  EXPECT_EQ(unmaps(), 3U);
  EXPECT_EQ(trim(), 2 * kMost + 3);
  EXPECT_EQ(stale_.counts().by_remover, 1U);
  EXPECT_EQ(stale_.notify_owners(), 1U);
}

TEST_F(StaleMappingsTest, ARequestTakesTheRestOfAPartWithOneCall) {
  leave({3 * StaleMappings::kHandlesAtOnce});
  SimGpu::finish(stream_);
  EXPECT_EQ(stale_.unmap_next(), Unmapped::kSome);
  EXPECT_EQ(stale_.remove_passed(), 1U);
  EXPECT_EQ(unmaps(), 2U);
  EXPECT_EQ(trim(), 3 * StaleMappings::kHandlesAtOnce);
}

TEST_F(StaleMappingsTest, APartThatTheDriverRefusesStays) {
  leave({2 * StaleMappings::kHandlesAtOnce});
  SimGpu::finish(stream_);
  EXPECT_EQ(stale_.unmap_next(), Unmapped::kSome);
  FaultyApi::fail_only("cuMemUnmap", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(stale_.unmap_next(), Unmapped::kRefused);
  EXPECT_EQ(stale_.counts().refused, 1U);
  EXPECT_EQ(stale_.count(), 1U);
  EXPECT_EQ(stale_.unmap_next(), Unmapped::kSome);
  EXPECT_EQ(stale_.notify_owners(), 1U);
}

TEST_F(StaleMappingsTest, AnEventThatCannotBeAskedChangesNothing) {
  leave({1});
  SimGpu::finish(stream_);
  FaultyApi::fail_only("cuEventQuery", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_THROW(static_cast<void>(stale_.unmap_next()), DriverError);
  EXPECT_EQ(stale_.count(), 1U);
  EXPECT_EQ(stale_.unmap_next(), Unmapped::kSome);
}

}  // namespace
}  // namespace ferro
