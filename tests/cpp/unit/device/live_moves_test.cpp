// Before a request fails: live bytes that strand the rest of a large handle move, where the program
// has promised that this is safe.
#include "support/device_fixture.h"

#include <gtest/gtest.h>

#include <vector>

namespace ferro {
namespace {

using testing::FaultyApi;
using testing::kPageBytes;
using testing::SimGpu;

constexpr std::size_t kDevicePages = 40;

// The device has handles of eight pages, each with a live block on its first page, and `spare` pages
// that nobody has.
class LiveMovesTest : public testing::DeviceFixture {
 protected:
  explicit LiveMovesTest(bool move_live = true)
      : DeviceFixture(kDevicePages, std::string(SimGpu::kManual) + ",devices=2",
                      AllocatorConfig{.handles = testing::kCoarseHandles,
                                      .in_flight_share = -1,
                                      .move_live = move_live}) {}

  // `handles` of them on a stream.
  void fill_with_live(std::size_t handles, StreamId stream) {
    free(allocate(handles * 8 * kPageBytes, stream));
    std::vector<DevicePtr> between;
    for (std::size_t i = 0; i < handles; ++i) {
      live_.push_back(allocate(512, stream));
      SimGpu::fill(stream, live_.back(), static_cast<std::uint8_t>(live_.size()), 512);
      between.push_back(allocate(8 * kPageBytes - 512, stream));
    }
    for (const DevicePtr block : between) {
      free(block);
    }
  }
  void expect_contents() {
    SimGpu::finish_all();
    for (std::size_t i = 0; i < live_.size(); ++i) {
      EXPECT_EQ(SimGpu::peek(live_[i]), i + 1);
      EXPECT_EQ(SimGpu::peek(live_[i] + 511), i + 1);
    }
  }
  // As if another program had them.
  void leave_spare(std::size_t pages) {
    const std::size_t free_pages = kDevicePages - SimGpu::used_pages();
    device_->store().set_limit(device_->report().held_bytes() + pages * kPageBytes);
    ASSERT_GE(free_pages, pages);
  }
  void expect_no_move() {
    EXPECT_EQ(device_->report().counters().live_moves, 0U);
    EXPECT_EQ(ended_by(LadderStep::kMoveLive), 0U);
    EXPECT_EQ(ended_by(LadderStep::kOutOfMemory), 1U);
    expect_contents();
  }

  std::vector<DevicePtr> live_;
};

TEST_F(LiveMovesTest, ARequestGetsThePagesBesideLiveBytes) {
  fill_with_live(4, stream_);
  // Eight pages are nobody's, and each handle has seven to give.
  const DevicePtr large = allocate(28 * kPageBytes, side_);
  SimGpu::fill(side_, large, 99, 28 * kPageBytes);
  expect_contents();
  EXPECT_EQ(ended_by(LadderStep::kMoveLive), 1U);
  const DeviceCounters counters = device_->report().counters();
  EXPECT_EQ(counters.live_moves, 3U) << "as many as it takes";
  EXPECT_EQ(counters.live_bytes_copied, 3 * kPageBytes);
  EXPECT_EQ(counters.live_pages_freed, 21U);
  EXPECT_LE(pages().held, kDevicePages);
  free(large);
  device_->empty_cache();
  expect_contents();
}

TEST_F(LiveMovesTest, OfAllStreams) {
  fill_with_live(2, stream_);
  fill_with_live(2, side_);
  allocate(34 * kPageBytes, SimGpu::make_stream());
  EXPECT_EQ(device_->report().counters().live_moves, 4U);
  expect_contents();
}

TEST_F(LiveMovesTest, AndForAPrivatePool) {
  device_->pools().hold(kGraphPool);
  fill_with_live(4, stream_);
  allocate(20 * kPageBytes, stream_, kGraphPool);
  EXPECT_EQ(device_->report().counters().live_moves, 2U);
  expect_contents();
}

TEST_F(LiveMovesTest, OnePageIsRoomEnoughForOneHandleAfterTheOther) {
  fill_with_live(4, stream_);
  leave_spare(1);
  allocate(29 * kPageBytes, side_);
  EXPECT_EQ(device_->report().counters().live_moves, 4U);
  EXPECT_EQ(pages().held, 33U);
  expect_contents();
}

TEST_F(LiveMovesTest, WithoutAnyRoomNothingMoves) {
  fill_with_live(4, stream_);
  leave_spare(0);
  const auto facts = refuse(9 * kPageBytes, side_);
  expect_no_move();
  EXPECT_EQ(facts->beside_live, 28 * kPageBytes);
  EXPECT_EQ(facts->live_moves, LiveMoves::kAllowed);
}

TEST_F(LiveMovesTest, NothingMovesUnlessItIsEnough) {
  fill_with_live(4, stream_);
  leave_spare(1);
  const std::string before = layout_of(kDefaultPool);
  const std::uint64_t maps = device_->driver().calls().map;
  refuse(30 * kPageBytes, side_);
  expect_no_move();
  EXPECT_EQ(layout_of(kDefaultPool), before);
  EXPECT_EQ(device_->driver().calls().map, maps);
}

TEST_F(LiveMovesTest, NothingMovesWhileACaptureRuns) {
  fill_with_live(4, stream_);
  device_->set_captures(1);
  EXPECT_EQ(refuse(20 * kPageBytes, side_)->live_moves, LiveMoves::kCapturing);
  expect_no_move();
  device_->set_captures(0);
}

TEST_F(LiveMovesTest, NothingMovesWhileACaptureRunsThatNobodyToldOf) {
  fill_with_live(4, stream_);
  SimGpu::finish_all();
  SimGpu::begin_capture(stream_, CU_STREAM_CAPTURE_MODE_RELAXED);
  refuse(20 * kPageBytes, side_);
  SimGpu::end_capture(stream_);  // was not invalidated
  expect_no_move();
}

TEST_F(LiveMovesTest, NothingMovesWhereAnotherDeviceHasAccess) {
  fill_with_live(4, stream_);
  device_->add_peer(1);
  EXPECT_EQ(refuse(20 * kPageBytes, side_)->live_moves, LiveMoves::kPeers);
  expect_no_move();
}

TEST_F(LiveMovesTest, WhatOtherStreamsAreDoingIsDoneBefore) {
  fill_with_live(4, stream_);
  SimGpu::finish_all();
  SimGpu::fill(side_, live_[0], 77, 512);  // not waited for
  allocate(34 * kPageBytes, SimGpu::make_stream());
  EXPECT_EQ(SimGpu::peek(live_[0] + 511), 77);
  SimGpu::fill(side_, live_[0], 1, 512);
  expect_contents();
}

class LiveMovesOffTest : public LiveMovesTest {
 protected:
  LiveMovesOffTest() : LiveMovesTest(AllocatorConfig{}.move_live) {}
};

TEST_F(LiveMovesOffTest, NothingMovesUnlessThatWasAskedFor) {
  fill_with_live(4, stream_);
  const auto facts = refuse(20 * kPageBytes, side_);
  expect_no_move();
  EXPECT_EQ(facts->beside_live, 28 * kPageBytes);
  EXPECT_EQ(facts->live_moves, LiveMoves::kOff);
}

TEST_F(LiveMovesOffTest, WhatIsAskedForLaterCounts) {
  fill_with_live(4, stream_);
  refuse(20 * kPageBytes, side_);
  AllocatorConfig wanted;
  wanted.in_flight_share = -1;
  wanted.move_live = true;
  device_->adjust(wanted);
  free(allocate(20 * kPageBytes, side_));
  EXPECT_EQ(ended_by(LadderStep::kMoveLive), 1U);
  expect_contents();
  wanted.headroom = 30 * kPageBytes;
  device_->adjust(wanted);
  device_->empty_cache();
  EXPECT_EQ(refuse(20 * kPageBytes, side_)->headroom, 30 * kPageBytes);
}

}  // namespace
}  // namespace ferro
