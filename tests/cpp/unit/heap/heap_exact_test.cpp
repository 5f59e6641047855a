// Allocation at an address that the program names.
#include "support/heap_fixture.h"

#include <gtest/gtest.h>

#include <vector>

namespace ferro {
namespace heap_exact_test {

using testing::bytes;
using testing::kPageBytes;
using testing::SimGpu;

class HeapExactTest : public testing::HeapFixture {
 protected:
  ~HeapExactTest() override { drain(heap_); }

  DevicePtr place(DevicePtr ptr, std::size_t size) {
    const DevicePtr placed = heap_.allocate_at(ptr, bytes(size)).ptr;
    check(heap_);
    return placed;
  }

  Heap heap_{context_, kDefaultPool, stream_};
};

TEST_F(HeapExactTest, AFreedAddressComesBackWithoutNewPages) {
  const DevicePtr a = grow(heap_, 4096);
  const DevicePtr b = allocate(heap_, 4096);
  free(heap_, a);
  const std::uint64_t before = driver_.calls().map;
  EXPECT_EQ(place(a, 4096), a);
  EXPECT_EQ(driver_.calls().map, before);
  EXPECT_EQ(allocate(heap_, 4096), b + 4096) << "it is not handed out twice";
}

TEST_F(HeapExactTest, TheMiddleOfAFreeBlockLeavesBothSidesFree) {
  const DevicePtr a = grow(heap_, kPageBytes);
  free(heap_, a);
  EXPECT_EQ(place(a + 1024, 2048), a + 1024);
  EXPECT_EQ(layout_of(heap_), "F1024 L2048 F2094080");
  EXPECT_EQ(place(a, 1024), a);
  EXPECT_EQ(place(a + 3072, kPageBytes - 3072), a + 3072);
  EXPECT_EQ(layout_of(heap_), "L1024 L2048 L2094080");
}

TEST_F(HeapExactTest, ARangeThatOverlapsALiveBlockIsRefused) {
  const DevicePtr a = grow(heap_, kPageBytes);
  free(heap_, a);
  ASSERT_EQ(place(a + 4096, 4096), a + 4096);
  const std::string before = layout_of(heap_);
  EXPECT_EQ(place(a, 4096 + 512), kNull) << "its end";
  EXPECT_EQ(place(a + 4096, 512), kNull) << "its start";
  EXPECT_EQ(place(a + 7680, 1024), kNull) << "its start inside";
  EXPECT_EQ(layout_of(heap_), before);
}

TEST_F(HeapExactTest, FreedAndCompletedBlocksAreFree) {
  const DevicePtr a = grow(heap_, 1024);
  const DevicePtr b = allocate(heap_, 1024);
  ASSERT_TRUE(record(heap_, b, side_));
  make_busy(side_, b);
  free(heap_, a);
  free(heap_, b);
  EXPECT_EQ(place(a, 2048), kNull) << "the other stream still uses it";
  SimGpu::finish(side_);
  EXPECT_EQ(place(a, 2048), a);
}

TEST_F(HeapExactTest, PagesThatLeftAreReplaced) {
  const DevicePtr a = grow(heap_, 4 * kPageBytes);
  free(heap_, a);
  SimGpu::finish_all();
  ASSERT_EQ(release(heap_, ~std::size_t{0}), 4U);
  const DevicePtr wanted = a + kPageBytes + 512;
  EXPECT_EQ(place(wanted, kPageBytes), wanted);
  EXPECT_EQ(layout_of(heap_), "F512 L1p F2096640") << "no more pages than it touches";
  EXPECT_EQ(store_.counts().held, 4U) << "the idle ones came back";
}

TEST_F(HeapExactTest, SeveralGapsInOneRequestAreFilled) {
  const DevicePtr a = grow(heap_, kPageBytes);
  std::vector<DevicePtr> pages{a};
  for (int i = 1; i < 5; ++i) {
    pages.push_back(grow(heap_, kPageBytes));
    ASSERT_EQ(pages.back(), a + static_cast<std::size_t>(i) * kPageBytes);
  }
  for (const int i : {1, 3}) {
    free(heap_, pages[static_cast<std::size_t>(i)]);
  }
  SimGpu::finish_all();
  ASSERT_EQ(release(heap_, ~std::size_t{0}), 2U);
  for (const int i : {0, 2, 4}) {
    free(heap_, pages[static_cast<std::size_t>(i)]);
  }
  ASSERT_EQ(layout_of(heap_), "F1p | F1p | F1p");
  EXPECT_EQ(place(a + 512, 4 * kPageBytes), a + 512);
  EXPECT_EQ(layout_of(heap_), "F512 L4p F2096640");
}

TEST_F(HeapExactTest, NothingIsAllocatedWithoutPages) {
  const DevicePtr a = grow(heap_, kPageBytes);
  free(heap_, a);
  SimGpu::finish_all();
  ASSERT_EQ(release(heap_, 1), 1U);
  store_.trim(1);
  store_.set_limit(0);
  EXPECT_EQ(place(a, kPageBytes), kNull);
  store_.set_limit(PageStore::kNoLimit);
  EXPECT_EQ(place(a, kPageBytes), a);
}

TEST_F(HeapExactTest, BeyondTheSpanOrInAnotherHeapIsRefused) {
  const DevicePtr a = grow(heap_, kPageBytes);
  Span& span = *addresses_.find(a);
  EXPECT_EQ(place(span.base() + (span.bytes() - 512), 1024), kNull);
  Heap other{context_, kDefaultPool, side_};
  EXPECT_EQ(other.allocate_at(a + kPageBytes, bytes(512)).ptr, kNull);
  EXPECT_EQ(heap_.allocate_at(span.base() + span.bytes(), bytes(512)).ptr, kNull);
}

}  // namespace heap_exact_test
}  // namespace ferro
