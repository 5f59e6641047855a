// Points of a device whose memory another device may use.
#include "ferro/core/streams/device_timeline.h"
#include "ferro/driver/error.h"
#include "support/device_fixture.h"
#include "support/faulty_api.h"
#include "support/sim_gpu.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ferro::testing {
namespace timeline_peers_test {

constexpr DeviceId kPeer = 1;
const std::string kTwoDevices = std::string(SimGpu::kManual) + ",devices=2";

CUcontext context_of_peer() {
  CUcontext context = nullptr;
  SimGpu::expect(SimGpu::api().primary_ctx_retain(&context, kPeer));
  return context;
}

StreamId make_stream_of_peer(unsigned flags = CU_STREAM_NON_BLOCKING) {
  SimGpu::expect(SimGpu::api().ctx_set_current(context_of_peer()));
  CUstream stream = nullptr;
  SimGpu::expect(SimGpu::api().stream_create(&stream, flags));
  SimGpu::make_current();
  return static_cast<StreamId>(reinterpret_cast<std::uint64_t>(stream));
}

// Queues work that is done only when the stream is finished.
void work_on(StreamId stream) {
  SimGpu::expect(SimGpu::api().launch_host_func(
      raw(stream), [](void*) {}, nullptr));
}

bool is_idle(StreamId stream) { return SimGpu::api().stream_query(raw(stream)) == CUDA_SUCCESS; }

class TimelinePeersTest : public ::testing::Test {
 protected:
  TimelinePeersTest() { FaultyApi::reset(); }
  ~TimelinePeersTest() override { FaultyApi::reset(); }

  SimGpu gpu_{4, kTwoDevices};
  const StreamId stream_ = SimGpu::make_stream();
  const StreamId other_ = SimGpu::make_stream();
  const StreamId peers_ = make_stream_of_peer();
  Driver driver_{FaultyApi::table(), 0};
  EventPool events_{driver_};
  CaptureCount captures_;
  std::vector<StreamId> known_;
  DeviceTimeline timeline_{
      driver_, events_, captures_, [this](std::span<StreamId> to) {
        return static_cast<std::size_t>(std::ranges::copy(known_, to.begin()).out - to.begin());
      }};
};

TEST_F(TimelinePeersTest, AnEpochPassesWithTheWorkOfPeers) {
  timeline_.add_peer(kPeer);
  work_on(peers_);
  const Epoch freed = timeline_.now();
  ASSERT_TRUE(timeline_.record());
  work_on(peers_);
  SimGpu::finish(stream_);
  EXPECT_LT(timeline_.update(), freed);
  EXPECT_EQ(timeline_.points(), 1U);
  SimGpu::finish(peers_);
  EXPECT_EQ(timeline_.update(), freed);
  EXPECT_EQ(timeline_.points(), 0U);
}

TEST_F(TimelinePeersTest, AnEpochPassesWithTheWorkOfTheDeviceToo) {
  timeline_.add_peer(kPeer);
  work_on(stream_);
  const Epoch freed = timeline_.now();
  ASSERT_TRUE(timeline_.record());
  SimGpu::finish(peers_);
  EXPECT_LT(timeline_.update(), freed);
  SimGpu::finish(stream_);
  EXPECT_EQ(timeline_.update(), freed);
}

TEST_F(TimelinePeersTest, TheHostWaitsForPeers) {
  timeline_.add_peer(kPeer);
  work_on(peers_);
  EXPECT_TRUE(timeline_.wait_for_all());
  EXPECT_TRUE(is_idle(peers_));
  EXPECT_EQ(driver_.calls().event_wait, 2U);
}

// The peer's work may be its part of a collective, and wait for this device's part behind the stream.
TEST_F(TimelinePeersTest, NoStreamWaitsForWorkOfPeers) {
  timeline_.add_peer(kPeer);
  work_on(stream_);
  const Epoch early = timeline_.now();
  ASSERT_TRUE(timeline_.record());
  EXPECT_EQ(timeline_.last_orderable(), early) << "the peer is idle";
  work_on(peers_);
  const Epoch late = timeline_.now();
  ASSERT_TRUE(timeline_.record());
  EXPECT_EQ(timeline_.last_orderable(), early);
  EXPECT_FALSE(timeline_.order_before(late, other_));
  EXPECT_TRUE(timeline_.order_before(early, other_));
  EXPECT_EQ(driver_.calls().stream_wait, 1U);
  EXPECT_FALSE(is_idle(peers_));
  SimGpu::finish(peers_);
  EXPECT_LT(timeline_.update(), early);
  EXPECT_EQ(timeline_.last_orderable(), late);
  EXPECT_TRUE(timeline_.order_before(late, other_));
  work_on(other_);
  SimGpu::finish(other_);
  EXPECT_TRUE(is_idle(stream_));
  EXPECT_EQ(driver_.calls().event_wait, 0U);
}

TEST_F(TimelinePeersTest, AReplacedPointLeavesEarlierEpochsToStreams) {
  timeline_.add_peer(kPeer);
  work_on(stream_);
  for (int i = 0; i < 256; ++i) {
    ASSERT_TRUE(timeline_.record());
  }
  const Epoch early = timeline_.last_orderable();
  EXPECT_EQ(early, timeline_.recorded());
  work_on(peers_);
  ASSERT_TRUE(timeline_.record());
  EXPECT_EQ(timeline_.points(), 256U);
  EXPECT_TRUE(timeline_.order_before(early, other_));
  EXPECT_FALSE(timeline_.order_before(timeline_.recorded(), other_));
  work_on(other_);
  SimGpu::finish(other_);
  EXPECT_TRUE(is_idle(stream_));
  EXPECT_FALSE(is_idle(peers_));
}

TEST_F(TimelinePeersTest, PointsFromBeforeThePeerAreTheDevicesAlone) {
  work_on(stream_);
  work_on(peers_);
  const Epoch before = timeline_.now();
  ASSERT_TRUE(timeline_.record());
  timeline_.add_peer(kPeer);
  timeline_.add_peer(kPeer);
  const Epoch after = timeline_.now();
  ASSERT_TRUE(timeline_.record());
  EXPECT_EQ(SimGpu::calls("cuCtxRecordEvent"), 3U);
  SimGpu::finish(stream_);
  EXPECT_EQ(timeline_.update(), before);
  SimGpu::finish(peers_);
  EXPECT_EQ(timeline_.update(), after);
}

TEST_F(TimelinePeersTest, EventsOfPassedPointsServeLaterPoints) {
  ASSERT_TRUE(timeline_.record());
  timeline_.update();
  timeline_.add_peer(kPeer);
  for (int i = 0; i < 100; ++i) {
    work_on(peers_);
    ASSERT_TRUE(timeline_.record());
    SimGpu::finish(peers_);
    EXPECT_EQ(timeline_.update(), timeline_.recorded());
  }
  EXPECT_EQ(SimGpu::calls("cuEventCreate"), 2U);
}

// The numbers of calls are those from before peers were supported.
TEST_F(TimelinePeersTest, WithoutPeersTheDriverIsCalledAsOften) {
  known_ = {stream_, other_};
  ASSERT_TRUE(timeline_.record());
  timeline_.update();
  work_on(stream_);
  work_on(peers_);
  const DriverCalls before = driver_.calls();
  FaultyApi::reset();
  ASSERT_TRUE(timeline_.record());
  EXPECT_EQ(FaultyApi::calls(), 4U) << "three queries whether a stream captures, and the record";
  FaultyApi::reset();
  timeline_.update();
  EXPECT_EQ(FaultyApi::calls(), 1U);
  FaultyApi::reset();
  ASSERT_TRUE(timeline_.order_before(timeline_.recorded(), other_));
  EXPECT_EQ(FaultyApi::calls(), 2U) << "does the stream capture? It waits";
  FaultyApi::reset();
  ASSERT_TRUE(timeline_.wait(timeline_.recorded()));
  EXPECT_EQ(FaultyApi::calls(), 1U);
  FaultyApi::reset();
  timeline_.wait_during_captures();
  EXPECT_EQ(FaultyApi::calls(), 2U) << "pinned memory is allocated and freed";
  EXPECT_EQ(driver_.calls().event_record, before.event_record + 1);
}

// The contexts that are current when pinned host memory is freed.
std::set<CUcontext> contexts_waited_for(DeviceTimeline& timeline) {
  std::set<CUcontext> found;
  FaultyApi::set_watcher([&](const char* symbol) {
    if (std::string_view(symbol) == "cuMemFreeHost") {
      CUcontext current = nullptr;
      SimGpu::api().ctx_get_current(&current);
      found.insert(current);
    }
  });
  timeline.wait_during_captures();
  FaultyApi::set_watcher(nullptr);
  return found;
}

TEST_F(TimelinePeersTest, AWaitDuringCapturesCoversPeers) {
  EXPECT_EQ(contexts_waited_for(timeline_).size(), 1U);
  timeline_.add_peer(kPeer);
  captures_.set(1);
  SimGpu::begin_capture(other_);
  work_on(peers_);
  const Epoch freed = timeline_.now();
  const std::set<CUcontext> contexts = contexts_waited_for(timeline_);
  EXPECT_EQ(contexts.size(), 2U);
  EXPECT_TRUE(contexts.contains(context_of_peer()));
  EXPECT_TRUE(timeline_.has_passed(freed));
  EXPECT_EQ(timeline_.last_orderable(), freed);
  SimGpu::end_capture(other_);  // it was not invalidated
  EXPECT_TRUE(is_idle(peers_));
}

TEST_F(TimelinePeersTest, AnAnnouncedCaptureOfAPeerSurvives) {
  timeline_.add_peer(kPeer);
  captures_.set(1);
  SimGpu::begin_capture(peers_);
  EXPECT_FALSE(timeline_.record());
  EXPECT_FALSE(timeline_.wait(timeline_.now()));
  SimGpu::end_capture(peers_);  // it was not invalidated
  captures_.set(0);
  EXPECT_TRUE(timeline_.record());
}

TEST_F(TimelinePeersTest, AnUnannouncedCaptureOfABlockingStreamOfAPeerSurvives) {
  const StreamId blocking = make_stream_of_peer(CU_STREAM_DEFAULT);
  SimGpu::begin_capture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_TRUE(timeline_.record());
  timeline_.add_peer(kPeer);
  EXPECT_FALSE(timeline_.record());
  SimGpu::end_capture(blocking);  // it was not invalidated
  EXPECT_TRUE(timeline_.record());
}

TEST_F(TimelinePeersTest, OnlyTheFirstUnannouncedCaptureOfAPeerFails) {
  Driver driver_of_peer(FaultyApi::table(), kPeer);
  EventPool events_of_peer(driver_of_peer);
  DeviceTimeline timeline_of_peer(driver_of_peer, events_of_peer, captures_, nullptr);
  timeline_.add_peer(kPeer);
  work_on(stream_);
  const Epoch freed = timeline_.now();
  SimGpu::begin_capture(peers_, CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_FALSE(timeline_.record());
  SimGpu::abandon_capture(peers_);
  EXPECT_FALSE(timeline_.has_points());
  EXPECT_FALSE(timeline_of_peer.has_points()) << "nor do its own points disturb the next one";
  SimGpu::begin_capture(peers_, CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_FALSE(timeline_.record());
  EXPECT_FALSE(timeline_of_peer.record());
  EXPECT_LT(timeline_.update(), freed) << "the device's event is not enough";
  EXPECT_TRUE(timeline_.wait(freed));
  EXPECT_TRUE(is_idle(stream_));
  SimGpu::end_capture(peers_);  // it was not invalidated
}

// Each driver call fails in turn; later waits still include the peer.
TEST_F(TimelinePeersTest, AfterARefusalEpochsStillWaitForPeers) {
  timeline_.add_peer(kPeer);
  work_on(peers_);
  work_on(stream_);
  const auto use_timeline = [this] {
    static_cast<void>(timeline_.record());
    timeline_.update();
    static_cast<void>(timeline_.order_before(timeline_.last_orderable(), other_));
  };
  std::map<std::string, int> refused;
  for (const char* symbol :
       {"cuEventCreate", "cuStreamIsCapturing", "cuCtxRecordEvent", "cuEventQuery"}) {
    for (std::uint64_t call : {1U, 2U}) {
      const Epoch freed = timeline_.now();
      FaultyApi::fail_only(symbol, call, CUDA_ERROR_UNKNOWN);
      try {
        use_timeline();
      } catch (const DriverError&) {
        ++refused[symbol];
      }
      FaultyApi::reset();
      use_timeline();
      EXPECT_LT(timeline_.passed(), freed) << symbol << call;
      EXPECT_LT(timeline_.last_orderable(), freed) << symbol << call;
    }
  }
  EXPECT_EQ(refused, (std::map<std::string, int>{{"cuStreamIsCapturing", 2},
                                                 {"cuEventCreate", 2},
                                                 {"cuCtxRecordEvent", 2},
                                                 {"cuEventQuery", 2}}));
  SimGpu::finish(peers_);
  timeline_.update();
  EXPECT_EQ(timeline_.last_orderable(), timeline_.recorded());
  SimGpu::finish(stream_);
  EXPECT_EQ(timeline_.update(), timeline_.recorded());
}

TEST_F(TimelinePeersTest, ARefusedHostWaitLeavesTheEpochOpen) {
  timeline_.add_peer(kPeer);
  work_on(peers_);
  const Epoch freed = timeline_.now();
  for (std::uint64_t call : {1U, 2U}) {
    FaultyApi::fail_only("cuEventSynchronize", call, CUDA_ERROR_UNKNOWN);
    EXPECT_THROW(timeline_.wait_for_all(), DriverError);
    EXPECT_FALSE(timeline_.has_passed(freed));
  }
  for (std::uint64_t call : {1U, 2U}) {
    FaultyApi::fail_only("cuMemFreeHost", call, CUDA_ERROR_UNKNOWN);
    EXPECT_THROW(timeline_.wait_during_captures(), DriverError);
    EXPECT_FALSE(timeline_.has_passed(freed));
  }
  FaultyApi::reset();
  EXPECT_TRUE(timeline_.wait(freed));
  EXPECT_TRUE(is_idle(peers_));
}

// After an error such as a failed assertion of a kernel, every call about the peer's context fails.
TEST_F(TimelinePeersTest, APeerThatIsLostHoldsUpNothing) {
  for (const auto& [symbol, call] : std::map<std::string, std::uint64_t>{
           {"cuCtxRecordEvent", 2}, {"cuStreamIsCapturing", 2}, {"cuEventQuery", 1}}) {
    SCOPED_TRACE(symbol);
    timeline_.add_peer(kPeer);
    const Epoch freed = timeline_.now();
    FaultyApi::fail_only(symbol, call, CUDA_ERROR_ASSERT);
    ASSERT_TRUE(timeline_.record());
    SimGpu::finish(stream_);
    SimGpu::finish(peers_);
    EXPECT_EQ(timeline_.update(), freed);
    EXPECT_STREQ(FaultyApi::failed(), symbol.c_str());
    FaultyApi::fail_only(symbol, call, CUDA_ERROR_UNKNOWN);
    EXPECT_THROW(timeline_.record() && timeline_.update() != 0, DriverError);
    FaultyApi::reset();
    timeline_.record();
    timeline_.update();
  }
}

TEST_F(TimelinePeersTest, ARefusedContextAddsNoPeer) {
  ASSERT_TRUE(timeline_.record());
  FaultyApi::fail_only("cuDevicePrimaryCtxRetain", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_THROW(timeline_.add_peer(kPeer), DriverError);
  FaultyApi::reset();
  work_on(peers_);
  ASSERT_TRUE(timeline_.record());
  EXPECT_EQ(timeline_.update(), timeline_.recorded());
  timeline_.add_peer(kPeer);
  ASSERT_TRUE(timeline_.record());
  EXPECT_LT(timeline_.update(), timeline_.recorded());
}

// A device whose memory the peer may use.
class MemoryOfPeersTest : public DeviceFixture {
 protected:
  MemoryOfPeersTest() : MemoryOfPeersTest(std::make_shared<std::vector<StreamId>>()) {}

  const StreamId peers_ = make_stream_of_peer();
  const std::shared_ptr<std::vector<StreamId>> known_of_peer_;

 private:
  explicit MemoryOfPeersTest(const std::shared_ptr<std::vector<StreamId>>& known)
      : DeviceFixture(16, kTwoDevices, config_with(known)), known_of_peer_(known) {}
  // The device queries these streams until it is destroyed, after the test's members.
  static AllocatorConfig config_with(const std::shared_ptr<std::vector<StreamId>>& known) {
    AllocatorConfig config;
    config.streams_of = [known](DeviceId device, std::span<StreamId> to) {
      EXPECT_EQ(device, kPeer);
      std::ranges::copy(*known, to.begin());
      return known->size();
    };
    return config;
  }
};

// A peer reads memory that its stream has freed. That stream waits for the peer before its own next
// request; other streams request memory meanwhile.
TEST_F(MemoryOfPeersTest, PagesLeaveTheirArenaAfterThePeersWork) {
  const DevicePtr block = allocate(4 * kPageBytes);
  device_->add_peer(kPeer);
  work_on(peers_);
  free(block);
  const std::size_t held = pages().held;
  const DevicePtr other = allocate(4 * kPageBytes, side_);
  EXPECT_EQ(pages().held, held + 4) << "memory grows";
  EXPECT_EQ(device_->driver().calls().stream_wait, 0U);
  EXPECT_FALSE(is_idle(peers_));
  free(other);
  SimGpu::finish(peers_);
  allocate(8 * kPageBytes, SimGpu::make_stream());
  EXPECT_EQ(pages().held, held + 4) << "the peer has finished";
}

// Without access of the peer, points cover its recorded use only behind the stream's wait for it.
// That wait is for another block, and this one has a second use, which ends later.
TEST_F(MemoryOfPeersTest, APageLeavesBehindAUseThatItsStreamWaitedForEarlier) {
  const DevicePtr twice = allocate(4 * kPageBytes);
  const DevicePtr once = allocate(8 * kPageBytes);
  for (const DevicePtr block : {twice, once}) {
    EXPECT_TRUE(heap_of(block).record_stream(*addresses_.find(block), block, peers_));
  }
  work_on(peers_);
  free_used_by(twice, side_);
  free(once);
  EXPECT_EQ(allocate(8 * kPageBytes), once);
  EXPECT_EQ(device_->driver().calls().stream_wait, 1U);
  SimGpu::finish(side_);
  device_->collect_pending();
  EXPECT_FALSE(is_idle(peers_));
  const StreamId third = SimGpu::make_stream();
  allocate(8 * kPageBytes, third);
  EXPECT_EQ(pages().held, 16U) << "the request has pages of the first block";
  SimGpu::finish(third);
  EXPECT_TRUE(is_idle(peers_));
}

TEST_F(MemoryOfPeersTest, AFullDeviceWaitsForThePeersWork) {
  const DevicePtr block = allocate(16 * kPageBytes);
  device_->add_peer(kPeer);
  work_on(peers_);
  free(block);
  allocate(16 * kPageBytes, side_);
  EXPECT_TRUE(is_idle(peers_));
  EXPECT_EQ(device_->driver().calls().stream_wait, 0U);
}

TEST_F(MemoryOfPeersTest, AnUnannouncedCaptureOfAKnownStreamOfAPeerSurvives) {
  *known_of_peer_ = {peers_};
  SimGpu::begin_capture(peers_, CU_STREAM_CAPTURE_MODE_RELAXED);
  allocate(kPageBytes);
  device_->add_peer(kPeer);
  allocate(4 * kPageBytes);
  SimGpu::end_capture(peers_);  // it was not invalidated
}

TEST_F(MemoryOfPeersTest, AFailedGrantStillCountsAsAccess) {
  const DevicePtr block = allocate(4 * kPageBytes);
  allocate(kPageBytes, side_);
  FaultyApi::fail_only("cuMemSetAccess", 2, CUDA_ERROR_UNKNOWN);
  EXPECT_THROW(device_->add_peer(kPeer), DriverError);
  FaultyApi::reset();
  work_on(peers_);
  free(block);
  const std::size_t held = pages().held;
  allocate(4 * kPageBytes, SimGpu::make_stream());
  EXPECT_EQ(pages().held, held + 4);
}

}  // namespace timeline_peers_test
}  // namespace ferro::testing
