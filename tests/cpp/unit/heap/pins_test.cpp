// Pinned memory stays at its addresses, and is exported in place.
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
  SharedRange share(DevicePtr ptr) {
    SharedRange range;
    EXPECT_EQ(heap_.export_block(span(ptr), ptr, &range), ExportResult::kOk);
    check(heap_);
    return range;
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

TEST_F(PinsTest, PagesStayUntilAllPinsAreRemoved) {
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

TEST_F(PinsTest, PinnedPagesServeTheNextBlock) {
  const DevicePtr block = grow(heap_, 2 * kPageBytes);
  ASSERT_TRUE(pin(block, 2 * kPageBytes));
  free(heap_, block);
  EXPECT_EQ(allocate(heap_, 2 * kPageBytes), block);
  unpin(block, 2 * kPageBytes);
}

TEST_F(PinsTest, ARangeWithoutPagesCannotBePinned) {
  const DevicePtr block = grow(heap_, 4 * kPageBytes);
  const DevicePtr behind = block + 4 * kPageBytes;
  EXPECT_FALSE(pin(block, span(block).bytes()));
  EXPECT_FALSE(pin(behind, 512));
  free(heap_, block);
  EXPECT_EQ(release_all(), 4U) << "nothing was pinned";
}

TEST_F(PinsTest, PinnedPagesAreExportedInPlace) {
  const DevicePtr block = grow(heap_, 20 * kPageBytes);
  ASSERT_TRUE(pin(block + kPageBytes, 512));
  const SharedRange range = share(block);
  EXPECT_EQ(range.units.size(), 20U);
  unpin(block + kPageBytes, 512);
  EXPECT_EQ(share(block).units[1].id, range.units[1].id);
}

TEST_F(PinsTest, SharedPagesStaySharedWhenTheyAreUnpinned) {
  const DevicePtr block = grow(heap_, 2 * kPageBytes);
  const SharedRange first = share(block);
  ASSERT_TRUE(pin(block, 2 * kPageBytes));
  unpin(block, 2 * kPageBytes);
  EXPECT_EQ(share(block).units[0].id, first.units[0].id);
}

}  // namespace pins_test
}  // namespace ferro
