// Numbers about a device's memory, and forecasts of the memory that a request would take.
#include "support/device_fixture.h"

#include <gtest/gtest.h>

namespace ferro {
namespace device_view_test {

using testing::bytes;
using testing::kPageBytes;
using testing::SimGpu;

class DeviceViewTest : public testing::DeviceFixture {
 protected:
  std::size_t forecast(std::size_t size) {
    return device_->report().bytes_from_driver(stream_, bytes(size));
  }
};

TEST_F(DeviceViewTest, AnUnusedDeviceIsEmpty) {
  const DeviceView view = device_->report().view();
  EXPECT_EQ(view.hits + view.misses + view.free_blocks + view.free_bytes, 0U);
}

TEST_F(DeviceViewTest, HitsAreTheRequestsThatDidNotClimb) {
  const DevicePtr a = allocate(512);
  allocate(512);
  free(a);
  allocate(512);
  allocate(512, side_);
  refuse(17 * kPageBytes, stream_);
  const DeviceView view = device_->report().view();
  EXPECT_EQ(view.hits, 2U);
  EXPECT_EQ(view.misses, 3U) << "the first of each stream, and the one that failed";
  EXPECT_EQ(view.late_hits, 0U);
  EXPECT_EQ(view.free_blocks, 2U) << "the remainder of each page";
  EXPECT_EQ(view.free_bytes, 2 * kPageBytes - 3 * 512);
  device_->stats().reset_accumulated();
  EXPECT_EQ(device_->report().view().hits, 2U) << "since construction";
}

TEST_F(DeviceViewTest, RequestsThatNeedNoNewPageAreLateHits) {
  std::vector<DevicePtr> pages;
  for (int i = 0; i < 4; ++i) {
    pages.push_back(allocate(kPageBytes));
  }
  free(pages[0]);
  free(pages[2]);
  const DeviceView before = device_->report().view();
  allocate(2 * kPageBytes);
  DeviceView after = device_->report().view();
  EXPECT_EQ(after.late_hits - before.late_hits, 1U) << "two pages moved";
  EXPECT_EQ(after.misses, before.misses);
  EXPECT_EQ(after.hits, before.hits);
  allocate(kPageBytes);
  after = device_->report().view();
  EXPECT_EQ(after.late_hits - before.late_hits, 1U);
  EXPECT_EQ(after.misses - before.misses, 1U);
  device_->report().reset_accumulated();
  EXPECT_EQ(device_->report().view().late_hits, after.late_hits) << "since construction";
  EXPECT_EQ(device_->report().view().misses, after.misses);
}

TEST_F(DeviceViewTest, PagesAreCountedSinceTheReset) {
  free(allocate(6 * kPageBytes));
  device_->empty_cache();
  const DevicePtr kept = allocate(4 * kPageBytes);
  const DeviceCounters before = device_->report().counters();
  EXPECT_EQ(before.pages_created, 10U);
  EXPECT_EQ(before.pages_released, 6U);
  device_->report().reset_accumulated();
  const DeviceCounters reset = device_->report().counters();
  EXPECT_EQ(reset.pages_created + reset.pages_released, 0U);
  allocate(3 * kPageBytes);
  free(kept);
  device_->empty_cache();
  const DeviceCounters after = device_->report().counters();
  EXPECT_EQ(after.pages_created, 3U);
  EXPECT_EQ(after.pages_released, 4U);
}

TEST_F(DeviceViewTest, StrandedBytesAreFreeBytesBesideLiveOnes) {
  const DevicePtr a = allocate(2 * kPageBytes);
  const DevicePtr b = allocate(512);
  allocate(512, side_);
  EXPECT_EQ(device_->report().stranded_bytes(), 2 * (kPageBytes - 512));
  free(a);
  EXPECT_EQ(device_->report().stranded_bytes(), 2 * (kPageBytes - 512)) << "whole pages are not";
  free(b);
  EXPECT_EQ(device_->report().stranded_bytes(), kPageBytes - 512);
}

TEST_F(DeviceViewTest, StrandedBytesAreNamedByTheirHandle) {
  AllocatorConfig config;
  config.handles = testing::kCoarseHandles;
  make_device(testing::FaultyApi::table(), config);
  EXPECT_EQ(device_->report().stranded(), StrandedBytes{});
  free(allocate(8 * kPageBytes));
  EXPECT_EQ(device_->report().stranded(), StrandedBytes{}) << "two handles of four pages, free";
  allocate(5 * kPageBytes + 512);
  const DevicePtr small = allocate(512);
  const StrandedBytes expected{{1, kPageBytes - 512}, {4, 3 * kPageBytes - 512}};
  EXPECT_EQ(device_->report().stranded(), expected);
  EXPECT_EQ(refuse(16 * kPageBytes, stream_)->stranded, expected);
  free(small);
  EXPECT_EQ(device_->report().stranded(), (StrandedBytes{{4, 3 * kPageBytes - 512}}));
}

TEST_F(DeviceViewTest, AForecastEqualsTheMemoryThatTheRequestTakes) {
  for (const std::size_t size : {std::size_t{512}, kPageBytes / 2, 3 * kPageBytes, kPageBytes}) {
    const std::size_t expected = forecast(size);
    EXPECT_EQ(forecast(size), expected) << "a forecast changes nothing";
    const std::size_t before = pages().held;
    allocate(size);
    EXPECT_EQ(pages().held - before, expected / kPageBytes) << size;
  }
}

TEST_F(DeviceViewTest, FreeMemoryCostsNothing) {
  const DevicePtr a = allocate(2 * kPageBytes);
  EXPECT_EQ(forecast(kPageBytes), kPageBytes);
  free(a);
  EXPECT_EQ(forecast(kPageBytes), 0U);
  EXPECT_EQ(forecast(3 * kPageBytes), kPageBytes) << "the free block covers two of them";
  const DevicePtr again = allocate(kPageBytes);
  SimGpu::fill(stream_, again, 1, 1);
  free(again);
  EXPECT_EQ(device_->report().bytes_from_driver(side_, bytes(512)), kPageBytes)
      << "of another stream";
  SimGpu::finish(stream_);
  EXPECT_EQ(device_->report().bytes_from_driver(side_, bytes(512)), 0U) << "whose work is done";
}

TEST_F(DeviceViewTest, PagesThatWouldMoveCostNothing) {
  const DevicePtr a = allocate(2 * kPageBytes);
  allocate(kPageBytes);
  const DevicePtr b = allocate(2 * kPageBytes);
  allocate(kPageBytes);
  free(a);
  free(b);
  SimGpu::finish_all();
  EXPECT_EQ(forecast(4 * kPageBytes), 0U);
  allocate(4 * kPageBytes);
  EXPECT_EQ(pages().held, 6U);
  EXPECT_EQ(device_->report().view().pages_moved, 4U);
}

TEST_F(DeviceViewTest, IdlePagesCostNothing) {
  const DevicePtr a = allocate(3 * kPageBytes);
  free(a);
  SimGpu::finish_all();
  release_pages_of(a, ~std::size_t{0});
  EXPECT_EQ(pages().idle, 3U);
  EXPECT_EQ(device_->report().bytes_from_driver(side_, bytes(4 * kPageBytes)), kPageBytes);
}

}  // namespace device_view_test
}  // namespace ferro
