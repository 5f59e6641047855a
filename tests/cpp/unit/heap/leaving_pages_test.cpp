// Handles that have left an arena while its stream still works: which arenas may take them.
#include "support/heap_fixture.h"

#include <gtest/gtest.h>

namespace ferro {
namespace leaving_pages_test {

using testing::bytes;
using testing::kPageBytes;
using testing::SimGpu;

class LeavingPagesTest : public testing::HeapFixture {
 protected:
  LeavingPagesTest() {
    const DevicePtr ptr = grow(heap_, 2 * kPageBytes);
    make_busy(stream_, ptr);
    free(heap_, ptr);
    EXPECT_TRUE(timeline_.record());
    EXPECT_EQ(heap_.release_pages(2, ReleaseAfter::kStreamWait), 2U);
  }
  ~LeavingPagesTest() override {
    SimGpu::finish_all();
    stale_.remove_passed();
    drain(heap_);
  }

  GrowResult take_idle(Heap& heap, GrowFrom from = GrowFrom::kIdlePages) {
    return take_idle(heap, bytes(2 * kPageBytes), from);
  }
  GrowResult take_idle(Heap& heap, const Request& request, GrowFrom from) {
    DevicePtr ptr = kNull;
    const GrowResult result = heap.allocate_grown(request, from, &ptr);
    check(heap);
    return result;
  }

  Heap heap_{context_, kDefaultPool, stream_};
};

// Another stream may still work on them at another address.
TEST_F(LeavingPagesTest, TheirOwnStreamWaitsForThemWhereItMay) {
  EXPECT_EQ(take_idle(heap_), GrowResult::kTooFewPages);
  const Request request = testing::movable_bytes(2 * kPageBytes);
  EXPECT_EQ(take_idle(heap_, request, GrowFrom::kIdlePages), GrowResult::kGrown);
  EXPECT_EQ(driver_.calls().stream_wait, 1U);
  EXPECT_EQ(driver_.calls().event_wait, 0U);
  EXPECT_EQ(store_.counts().transferred, 0U);
}

TEST_F(LeavingPagesTest, AnotherStreamWaitsForThemOnlyWhereItMay) {
  Heap other(context_, kDefaultPool, side_);
  EXPECT_EQ(take_idle(other), GrowResult::kTooFewPages);
  EXPECT_EQ(driver_.calls().stream_wait, 0U);
  EXPECT_EQ(take_idle(other, GrowFrom::kWaitedPages), GrowResult::kGrown);
  EXPECT_NE(driver_.calls().stream_wait, 0U);
  EXPECT_EQ(driver_.calls().event_wait, 0U);
  drain(other);
}

// Graphs of the pool replay on any stream, which is not ordered after the remaining work of this
// one.
TEST_F(LeavingPagesTest, APrivatePoolOfTheirStreamHasThemWhenTheirEpochHasPassed) {
  Heap pool(context_, PoolId{0, 3}, stream_);
  EXPECT_EQ(take_idle(pool), GrowResult::kTooFewPages);
  SimGpu::finish(stream_);
  EXPECT_EQ(take_idle(pool), GrowResult::kTooFewPages);
  ASSERT_TRUE(timeline_.record());
  timeline_.update();
  EXPECT_EQ(take_idle(pool), GrowResult::kGrown);
  drain(pool);
}

TEST_F(LeavingPagesTest, TheirStreamDoesNotHaveThemWhileItCaptures) {
  const Request request = testing::movable_bytes(2 * kPageBytes);
  SimGpu::begin_capture(stream_);
  EXPECT_EQ(take_idle(heap_, request, GrowFrom::kIdlePages), GrowResult::kTooFewPages)
      << "the graph replays on any stream";
  SimGpu::end_capture(stream_);
  EXPECT_EQ(take_idle(heap_, request, GrowFrom::kIdlePages), GrowResult::kGrown);
}

}  // namespace leaving_pages_test
}  // namespace ferro
