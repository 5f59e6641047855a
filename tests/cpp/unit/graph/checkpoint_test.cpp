#include "ferro/graph/checkpoint.h"

#include "support/device_fixture.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace ferro {
namespace checkpoint_test {

using testing::kPageBytes;
using testing::SimGpu;

class CheckpointTest : public testing::DeviceFixture {
 protected:
  CheckpointTest() { device_->pools().hold(kGraphPool); }

  DevicePtr allocate_in_pool(std::size_t size) { return allocate(size, stream_, kGraphPool); }
  PoolCheckpoint take() {
    PoolCheckpoint checkpoint;
    EXPECT_EQ(take_checkpoint(*graphs_, kGraphPool, &checkpoint), CheckpointError::kNone);
    return checkpoint;
  }
  CheckpointError restore(const PoolCheckpoint& checkpoint) {
    change_ = {};
    const CheckpointError error = restore_checkpoint(*graphs_, checkpoint, &change_);
    device_->report().check_invariants();
    return error;
  }
  static bool contains(const std::vector<BlockView>& blocks, DevicePtr ptr) {
    return std::ranges::find(blocks, ptr, &BlockView::ptr) != blocks.end();
  }

  CheckpointChange change_;
};

TEST_F(CheckpointTest, RecordsTheLiveBlocksOfEveryStreamInOrder) {
  const DevicePtr a = allocate_in_pool(512);
  const DevicePtr b = allocate_in_pool(2048);
  const DevicePtr c = allocate(1024, side_, kGraphPool);
  allocate(512);
  const PoolCheckpoint checkpoint = take();
  EXPECT_EQ(checkpoint.pool, kGraphPool);
  ASSERT_EQ(checkpoint.heaps.size(), 2U);
  for (const PoolCheckpoint::HeapBlocks& heap : checkpoint.heaps) {
    if (heap.heap.stream == stream_) {
      ASSERT_EQ(heap.live.size(), 2U);
      EXPECT_EQ(heap.live[0].ptr, a);
      EXPECT_EQ(heap.live[1].ptr, b);
    } else {
      ASSERT_EQ(heap.live.size(), 1U);
      EXPECT_EQ(heap.live[0].ptr, c);
    }
  }
}

TEST_F(CheckpointTest, RestoringBringsBackExactlyTheBlocks) {
  const DevicePtr a = allocate_in_pool(3 * kPageBytes);
  const DevicePtr b = allocate_in_pool(2048);
  const PoolCheckpoint checkpoint = take();
  const std::string before = testing::layout(heap_of(a).segments());

  free(a);
  const DevicePtr c = allocate_in_pool(kPageBytes);
  const DevicePtr d = allocate(512, side_, kGraphPool);
  ASSERT_EQ(restore(checkpoint), CheckpointError::kNone);
  EXPECT_EQ(testing::layout(heap_of(a).segments()), before);
  EXPECT_EQ(change_.freed.size(), 3U);
  for (const DevicePtr ptr : {b, c, d}) {
    EXPECT_TRUE(contains(change_.freed, ptr));
  }
  EXPECT_EQ(change_.allocated.size(), 2U);
  for (const DevicePtr ptr : {a, b}) {
    EXPECT_TRUE(contains(change_.allocated, ptr));
  }
  EXPECT_EQ(device_->stats().read()[kBytes][kAll].current,
            static_cast<std::int64_t>(3 * kPageBytes + 2048));
}

TEST_F(CheckpointTest, TheSameRequestsAfterRestoringGetTheSameAddresses) {
  const DevicePtr a = allocate_in_pool(kPageBytes);
  allocate_in_pool(kPageBytes / 2);
  free(a);
  const PoolCheckpoint checkpoint = take();
  std::vector<DevicePtr> first;
  for (const std::size_t size : {4096UL, kPageBytes, 512UL}) {
    first.push_back(allocate_in_pool(size));
  }
  ASSERT_EQ(restore(checkpoint), CheckpointError::kNone);
  std::vector<DevicePtr> second;
  for (const std::size_t size : {4096UL, kPageBytes, 512UL}) {
    second.push_back(allocate_in_pool(size));
  }
  EXPECT_EQ(second, first);
}

TEST_F(CheckpointTest, RestoringMakesNoDriverCallForMemory) {
  allocate_in_pool(kPageBytes);
  const PoolCheckpoint checkpoint = take();
  allocate_in_pool(kPageBytes);
  const DriverCalls before = device_->driver().calls();
  ASSERT_EQ(restore(checkpoint), CheckpointError::kNone);
  const DriverCalls after = device_->driver().calls();
  EXPECT_EQ(after.map + after.unmap + after.create + after.release + after.event_wait,
            before.map + before.unmap + before.create + before.release + before.event_wait);
}

TEST_F(CheckpointTest, UnknownAndUnheldPoolsAreRefused) {
  PoolCheckpoint checkpoint;
  EXPECT_EQ(take_checkpoint(*graphs_, {8, 8}, &checkpoint), CheckpointError::kUnknownPool);
  checkpoint = take();
  EXPECT_TRUE(device_->pools().release(kGraphPool));
  EXPECT_EQ(restore(checkpoint), CheckpointError::kUnheldPool);
  EXPECT_EQ(take_checkpoint(*graphs_, kGraphPool, &checkpoint), CheckpointError::kUnheldPool);
}

TEST_F(CheckpointTest, PendingFreesRefuseAndLeaveEverythingAsItIs) {
  const DevicePtr a = allocate_in_pool(kPageBytes);
  const PoolCheckpoint checkpoint = take();
  allocate_in_pool(512);
  free_used_by(a, side_);
  const std::string before = layout_of(kGraphPool);
  EXPECT_EQ(restore(checkpoint), CheckpointError::kPendingFrees);
  EXPECT_EQ(layout_of(kGraphPool), before);
  EXPECT_TRUE(change_.freed.empty());
  EXPECT_TRUE(change_.allocated.empty());
  SimGpu::finish(side_);
  EXPECT_EQ(restore(checkpoint), CheckpointError::kNone) << "completed frees are noticed";
}

TEST_F(CheckpointTest, LiveBlocksThatOtherStreamsUseRefuseAndLeaveEverythingAsItIs) {
  const PoolCheckpoint checkpoint = take();
  const DevicePtr a = allocate_in_pool(kPageBytes);
  EXPECT_TRUE(heap_of(a).record_stream(*addresses_.find(a), a, side_));
  const std::string before = layout_of(kGraphPool);
  EXPECT_EQ(restore(checkpoint), CheckpointError::kPendingFrees) << "restoring would free it now";
  EXPECT_EQ(layout_of(kGraphPool), before);
  EXPECT_TRUE(change_.freed.empty());
  free(a);
  SimGpu::finish_all();
  EXPECT_EQ(restore(checkpoint), CheckpointError::kNone);
}

TEST_F(CheckpointTest, PagesThatAreGoneRefuseAndLeaveEverythingAsItIs) {
  const DevicePtr a = allocate_in_pool(kPageBytes);
  const DevicePtr b = allocate(kPageBytes, side_, kGraphPool);
  const PoolCheckpoint checkpoint = take();
  free(a);
  free(b);
  ASSERT_EQ(release_pages_of(b, 1), 1U);
  allocate_in_pool(512);
  const std::string before = layout_of(kGraphPool);
  EXPECT_EQ(restore(checkpoint), CheckpointError::kPagesGone);
  EXPECT_EQ(layout_of(kGraphPool), before);
  EXPECT_TRUE(change_.freed.empty());
}

TEST_F(CheckpointTest, AHeapThatIsNewerThanTheCheckpointIsEmptied) {
  const PoolCheckpoint checkpoint = take();
  const DevicePtr a = allocate(512, side_, kGraphPool);
  ASSERT_EQ(restore(checkpoint), CheckpointError::kNone);
  EXPECT_TRUE(contains(change_.freed, a));
  EXPECT_TRUE(change_.allocated.empty());
  EXPECT_EQ(layout_of(kGraphPool), "F1p");
}

}  // namespace checkpoint_test
}  // namespace ferro
