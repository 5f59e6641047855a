// Free pages of a private pool into which nothing was captured move within the pool.
#include "ferro/graph/checkpoint.h"
#include "support/device_fixture.h"
#include "support/sim_gpu.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ferro {
namespace pools_without_graphs_test {

using testing::bytes;
using testing::FaultyApi;
using testing::kPageBytes;
using testing::SimGpu;

constexpr std::size_t kDevicePages = 16;
constexpr GroupId kGroup = 1;

class PoolsWithoutGraphsTest : public testing::DeviceFixture {
 protected:
  PoolsWithoutGraphsTest() : DeviceFixture(kDevicePages) { device_->pools().hold(kGraphPool); }
  ~PoolsWithoutGraphsTest() override {
    free_everything();
    release_pool();
  }

  void release_pool() {
    if (device_->pools().use_count(kGraphPool) > 0) {
      device_->pools().release(kGraphPool);
      graphs_->on_last_release(kGraphPool);
      device_->empty_pool(kGraphPool);
    }
  }
  DevicePtr take(std::size_t pages, StreamId stream) {
    return allocate(pages * kPageBytes, stream, kGraphPool);
  }
  DevicePtr take(std::size_t pages) { return take(pages, stream_); }
  // Every second of `pages` blocks of a page is free, and perhaps another stream still uses it.
  enum class InUse { kNo, kYes };
  std::vector<DevicePtr> make_holes(std::size_t pages, InUse in_use = InUse::kNo) {
    std::vector<DevicePtr> kept;
    std::vector<DevicePtr> freed;
    for (std::size_t i = 0; i < pages; ++i) {
      (i % 2 == 0 ? freed : kept).push_back(take(1));
    }
    for (const DevicePtr ptr : freed) {
      if (in_use == InUse::kYes) {
        SimGpu::fill(side_, ptr, 1, 1);
      }
      free(ptr);
    }
    return kept;
  }
  std::size_t held() { return device_->report().held_bytes() / kPageBytes; }
  StatValue reserved() { return device_->pools().reserved().at(kGraphPool)[kAll]; }
  std::uint64_t moved(DevicePtr ptr) { return heap_of(ptr).pages_moved(); }

  // Expects that a request of four pages takes four new pages instead of those of four holes, and
  // none on a full card.
  void expect_pages_stay(DevicePtr kept) {
    const std::uint64_t moved_before = moved(kept);
    const std::size_t before = held();
    const DevicePtr grown = take(4);
    EXPECT_EQ(held(), before + 4);
    device_->store().set_limit(held() * kPageBytes);
    refuse(5 * kPageBytes, stream_, kGraphPool);
    device_->store().set_limit(PageStore::kNoLimit);
    EXPECT_EQ(moved(kept), moved_before);
    free(grown);
  }
};

TEST_F(PoolsWithoutGraphsTest, PagesMoveBeforeThePoolGrows) {
  make_holes(kDevicePages);
  const StatValue before = reserved();
  const DriverCalls calls = device_->driver().calls();
  const std::uint64_t ended = ended_by(LadderStep::kMovePages);
  const DevicePtr moved = take(kDevicePages / 2);
  EXPECT_EQ(ended_by(LadderStep::kMovePages), ended + 1);
  EXPECT_EQ(this->moved(moved), kDevicePages / 2);
  EXPECT_EQ(pages().created, kDevicePages);
  EXPECT_EQ(device_->driver().calls().map, calls.map + kDevicePages / 2);
  EXPECT_EQ(device_->driver().calls().event_wait, 0U);
  EXPECT_EQ(device_->driver().calls().stream_wait, 0U);
  EXPECT_EQ(reserved().current, before.current);
  EXPECT_EQ(reserved().increased, before.increased) << "no page has left the pool";
  EXPECT_EQ(reserved().peak, before.peak);
}

TEST_F(PoolsWithoutGraphsTest, AFreeBlockOfMostOfTheCardServesALargerRequest) {
  const DevicePtr first = take(9);
  const DevicePtr between = take(1);
  free(first);
  const DevicePtr larger = take(15 - 1);
  EXPECT_EQ(pages().created, 15U);
  free(larger);
  free(between);
  free(take(kDevicePages));
  EXPECT_EQ(pages().created, kDevicePages);
}

// A graph that is captured into the pool later replays on any stream, so no stream waits for work.
TEST_F(PoolsWithoutGraphsTest, PagesInUseMoveOnlyAfterAWaitOfTheHost) {
  make_holes(kDevicePages / 2, InUse::kYes);
  const DevicePtr grown = take(kDevicePages / 4);
  EXPECT_EQ(pages().created, kDevicePages / 4 * 3) << "it grows while there is room";
  EXPECT_EQ(moved(grown), 0U);
  const std::uint64_t ended = ended_by(LadderStep::kWait);
  allocate(kDevicePages / 4 * kPageBytes);
  const DevicePtr waited = take(kDevicePages / 4);
  EXPECT_EQ(ended_by(LadderStep::kWait), ended + 1);
  EXPECT_EQ(pages().created, kDevicePages);
  EXPECT_EQ(SimGpu::api().stream_query(testing::raw(side_)), CUDA_SUCCESS);
  EXPECT_EQ(device_->driver().calls().stream_wait, 0U);
  free(waited);
}

TEST_F(PoolsWithoutGraphsTest, PassedPagesGoToOtherStreamsOfThePoolAlone) {
  free(take(4, side_));
  const std::uint64_t ended = ended_by(LadderStep::kPassedPages);
  const DevicePtr first = take(4);
  EXPECT_EQ(ended_by(LadderStep::kPassedPages), ended + 1);
  EXPECT_EQ(pages().created, 4U);
  EXPECT_EQ(reserved().current, static_cast<std::int64_t>(4 * kPageBytes));
  free(first);
  const std::uint64_t grown = ended_by(LadderStep::kGrow);
  allocate(4 * kPageBytes);
  EXPECT_EQ(ended_by(LadderStep::kGrow), grown + 1);
  EXPECT_EQ(layout_of(kGraphPool), "F4p");
}

TEST_F(PoolsWithoutGraphsTest, OwnPoolGivesBeforeTheDefaultPool) {
  free(take(4, side_));
  free(allocate(4 * kPageBytes, side_));
  take(4);
  EXPECT_EQ(pages().created, 8U);
  EXPECT_EQ(layout_of(kDefaultPool), "F4p");
}

TEST_F(PoolsWithoutGraphsTest, AFullCardWaitsForPagesOfOtherStreams) {
  const DevicePtr other = take(kDevicePages - 2, side_);
  SimGpu::fill(side_, other, 1, kPageBytes);
  free(other);
  refuse(kDevicePages * kPageBytes, stream_);
  EXPECT_EQ(layout_of(kGraphPool), "F14p") << "the default pool takes nothing";
  SimGpu::fill(side_, other, 1, kPageBytes);
  const std::uint64_t ended = ended_by(LadderStep::kWait);
  take(kDevicePages - 1);
  EXPECT_EQ(ended_by(LadderStep::kWait), ended + 1);
}

TEST_F(PoolsWithoutGraphsTest, ACaptureElsewhereLetsPassedPagesMove) {
  const std::vector<DevicePtr> kept = make_holes(8);
  device_->set_captures(1);  // records the last point
  const StreamId capturing = SimGpu::make_stream();
  SimGpu::begin_capture(capturing);
  const std::uint64_t before = moved(kept[0]);
  take(4);
  EXPECT_EQ(moved(kept[0]), before + 4);
  SimGpu::abandon_capture(capturing);
  device_->set_captures(0);
}

// While another stream captures, the driver answers for the default stream as if it captured too.
TEST_F(PoolsWithoutGraphsTest, TheDefaultStreamUsesItsMemoryBesideACapture) {
  device_->set_captures(1);
  const DevicePtr ptr = take(4, kLegacyStream);
  SimGpu::fill(kLegacyStream, ptr, 1, kPageBytes);
  CUstream blocking = nullptr;
  SimGpu::expect(SimGpu::api().stream_create(&blocking, CU_STREAM_DEFAULT));
  const auto capturing = static_cast<StreamId>(reinterpret_cast<std::uint64_t>(blocking));
  SimGpu::begin_capture(capturing, CU_STREAM_CAPTURE_MODE_RELAXED);
  ASSERT_EQ(device_->driver().capture_info(kLegacyStream).status, CaptureStatus::kActive);
  free(ptr);
  const DevicePtr other = take(4, side_);
  EXPECT_EQ(pages().created, 8U);
  SimGpu::fill(side_, other, 2, kPageBytes);
  SimGpu::finish(side_);
  SimGpu::abandon_capture(capturing);
  SimGpu::finish_all();
  EXPECT_EQ(SimGpu::peek(other), 2);
  device_->set_captures(0);
}

TEST_F(PoolsWithoutGraphsTest, ACaptureOfItsStreamKeepsThem) {
  const std::vector<DevicePtr> kept = make_holes(8);
  SimGpu::begin_capture(stream_, CU_STREAM_CAPTURE_MODE_RELAXED);
  const std::size_t before = held();
  take(4);
  EXPECT_EQ(held(), before + 4);
  EXPECT_EQ(moved(kept[0]), 0U);
  SimGpu::abandon_capture(stream_);
  // The capture was not announced, and a library's graph may replay.
  expect_pages_stay(kept[0]);
}

TEST_F(PoolsWithoutGraphsTest, TheyStayFromTheFirstCaptureOn) {
  const std::vector<DevicePtr> kept = make_holes(8);
  ASSERT_EQ(graphs_->begin_capture(kGraphPool), SharingResult::kOk);
  expect_pages_stay(kept[0]);
  ASSERT_EQ(graphs_->end_capture(kGraphPool, GraphMemory::Outcome::kFailed), SharingResult::kOk);
}

TEST_F(PoolsWithoutGraphsTest, TheyStayAfterACheckpoint) {
  const std::vector<DevicePtr> kept = make_holes(8);
  PoolCheckpoint checkpoint;
  ASSERT_EQ(take_checkpoint(*graphs_, kGraphPool, &checkpoint), CheckpointError::kNone);
  expect_pages_stay(kept[0]);
}

TEST_F(PoolsWithoutGraphsTest, MembersKeepThem) {
  const std::vector<DevicePtr> kept = make_holes(8);
  ASSERT_EQ(graphs_->join(kGroup, kGraphPool), SharingResult::kOk);
  ASSERT_EQ(graphs_->leave(kGraphPool), SharingResult::kOk);
  EXPECT_EQ(moved(kept[0]), 0U);
}

// It is unknown then whether the stream captures.
TEST_F(PoolsWithoutGraphsTest, TheyStayAfterARefusedQuery) {
  const std::vector<DevicePtr> kept = make_holes(8);
  FaultyApi::fail_only("cuStreamGetCaptureInfo_v3", 1, CUDA_ERROR_UNKNOWN);
  free(graphs_->allocate(kGraphPool, stream_, bytes(kPageBytes)).ptr);
  FaultyApi::reset();
  expect_pages_stay(kept[0]);
}

// A destroyed graph may still run.
TEST_F(PoolsWithoutGraphsTest, TheyStayAsLongAsThePoolWithAGraphExists) {
  const std::vector<DevicePtr> kept = make_holes(8);
  ASSERT_EQ(graphs_->begin_capture(kGraphPool), SharingResult::kOk);
  ASSERT_EQ(graphs_->end_capture(kGraphPool, GraphMemory::Outcome::kSucceeded), SharingResult::kOk);
  device_->pools().release(kGraphPool);
  graphs_->on_last_release(kGraphPool);
  device_->pools().hold(kGraphPool);
  expect_pages_stay(kept[0]);
  free_everything();
  release_pool();
  device_->empty_cache();
  device_->pools().hold(kGraphPool);
  const std::vector<DevicePtr> fresh = make_holes(8);
  take(4);
  EXPECT_EQ(moved(fresh[0]), 4U);
}

TEST_F(PoolsWithoutGraphsTest, PinnedPagesStay) {
  const DevicePtr pinned = take(2);
  const DevicePtr between = take(1);
  ASSERT_TRUE(device_->pin(*addresses_.find(pinned), pinned, 2 * kPageBytes));
  free(pinned);
  take(4);
  EXPECT_EQ(moved(between), 0U);
  device_->unpin(*addresses_.find(pinned), pinned, 2 * kPageBytes);
}

}  // namespace pools_without_graphs_test
}  // namespace ferro
