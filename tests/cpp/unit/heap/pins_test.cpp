// Memory that the program pinned stays behind its addresses, and is shared as it is.
#include "support/heap_fixture.h"

#include <gtest/gtest.h>

namespace ferro {
namespace pins_test {

using testing::kPageBytes;

constexpr std::size_t kAll = ~std::size_t{0};

class PinsTest : public testing::HeapFixture {
 protected:
  ~PinsTest() override { drain(heap_); }

  Span& span(DevicePtr ptr) { return *addresses_.find(ptr); }
  void unpin(DevicePtr ptr, std::size_t bytes) {
    EXPECT_TRUE(heap_.change_pins(span(ptr), ptr, bytes, -1));
    check(heap_);
  }
  bool pin(DevicePtr ptr, std::size_t bytes) {
    const bool pinned = heap_.change_pins(span(ptr), ptr, bytes, 1);
    check(heap_);
    return pinned;
  }
  std::size_t release_all() {
    const std::size_t released = release(heap_, kAll);
    check(heap_);
    return released;
  }
  ExportResult share(DevicePtr ptr, std::size_t max_units, SharedRange* out) {
    const ExportResult result = heap_.export_block(span(ptr), ptr, {.max_units = max_units}, out);
    check(heap_);
    return result;
  }

  Heap heap_{context_, kDefaultPool, stream_};
};

TEST_F(PinsTest, PinnedPagesStayWithoutABlock) {
  const DevicePtr block = grow(heap_, 8 * kPageBytes);
  ASSERT_TRUE(pin(block + 2 * kPageBytes, 3 * kPageBytes));
  free(heap_, block);
  EXPECT_EQ(release_all(), 5U);
  EXPECT_EQ(release_all(), 0U);
  unpin(block + 2 * kPageBytes, 3 * kPageBytes);
  EXPECT_EQ(release_all(), 3U);
}

TEST_F(PinsTest, TheyStayUntilTheyAreUnpinnedAsOften) {
  const DevicePtr block = grow(heap_, 4 * kPageBytes);
  ASSERT_TRUE(pin(block, 4 * kPageBytes));
  ASSERT_TRUE(pin(block, kPageBytes));
  free(heap_, block);
  unpin(block, 4 * kPageBytes);
  EXPECT_EQ(release_all(), 3U);
  unpin(block, kPageBytes);
  EXPECT_EQ(release_all(), 1U);
}

TEST_F(PinsTest, AByteOfAPagePinsThePage) {
  const DevicePtr block = grow(heap_, 4 * kPageBytes);
  ASSERT_TRUE(pin(block + kPageBytes + 512, 512));
  free(heap_, block);
  EXPECT_EQ(release_all(), 3U);
  unpin(block + kPageBytes + 512, 512);
  EXPECT_EQ(release_all(), 1U);
}

TEST_F(PinsTest, TheyServeTheNextBlock) {
  const DevicePtr block = grow(heap_, 2 * kPageBytes);
  ASSERT_TRUE(pin(block, 2 * kPageBytes));
  free(heap_, block);
  EXPECT_EQ(allocate(heap_, 2 * kPageBytes), block);
  unpin(block, 2 * kPageBytes);
}

TEST_F(PinsTest, WhatHasNoPagesCannotBePinned) {
  const DevicePtr block = grow(heap_, 4 * kPageBytes);
  const DevicePtr behind = block + 4 * kPageBytes;
  EXPECT_FALSE(pin(block, span(block).bytes()));
  EXPECT_FALSE(pin(behind, 512));
  free(heap_, block);
  EXPECT_EQ(release_all(), 4U) << "nothing was pinned";
}

TEST_F(PinsTest, TheyAreSharedAsTheyAre) {
  const DevicePtr block = grow(heap_, 20 * kPageBytes);
  ASSERT_TRUE(pin(block + kPageBytes, 512));
  const std::uint64_t created = driver_.calls().create;
  SharedRange range;
  EXPECT_EQ(share(block, 19, &range), ExportResult::kKept);
  EXPECT_EQ(driver_.calls().exported, 0U);
  EXPECT_EQ(share(block, 20, &range), ExportResult::kOk);
  EXPECT_EQ(range.units.size(), 20U);
  EXPECT_EQ(driver_.calls().create, created) << "no other handle";
  unpin(block + kPageBytes, 512);
}

TEST_F(PinsTest, SharedPagesStaySharedWhenTheyAreUnpinned) {
  const DevicePtr block = grow(heap_, 2 * kPageBytes);
  SharedRange first;
  ASSERT_EQ(share(block, 16, &first), ExportResult::kOk);
  ASSERT_TRUE(pin(block, 2 * kPageBytes));
  unpin(block, 2 * kPageBytes);
  SharedRange again;
  ASSERT_EQ(share(block, 16, &again), ExportResult::kOk);
  EXPECT_EQ(again.units[0].id, first.units[0].id);
}

TEST_F(PinsTest, ABlockThatWasSharedKeepsItsHandles) {
  const DevicePtr block = grow(heap_, 20 * kPageBytes);
  SharedRange first;
  ASSERT_EQ(heap_.export_block(span(block), block,
                               {.max_units = 20, .exchange = ExportResult::kBusy}, &first),
            ExportResult::kOk);
  EXPECT_EQ(first.units.size(), 20U);
  const std::uint64_t created = driver_.calls().create;
  SharedRange again;
  EXPECT_EQ(share(block, 20, &again), ExportResult::kOk);
  EXPECT_EQ(again.units.size(), 20U);
  EXPECT_EQ(driver_.calls().create, created);
}

TEST_F(PinsTest, WhyHandlesCannotBeExchangedIsTheResult) {
  const DevicePtr block = grow(heap_, 20 * kPageBytes);
  SharedRange range;
  EXPECT_EQ(heap_.export_block(span(block), block, {.exchange = ExportResult::kBusy}, &range),
            ExportResult::kBusy);
  EXPECT_EQ(driver_.calls().exported, 0U);
}

}  // namespace pins_test
}  // namespace ferro
