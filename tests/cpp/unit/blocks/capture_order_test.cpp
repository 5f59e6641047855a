#include "ferro/core/streams/capture_order.h"

#include "ferro/driver/error.h"
#include "support/device_fixture.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace ferro {
namespace capture_order_test {

using testing::FaultyApi;
using testing::kPageBytes;
using testing::SimGpu;

class CaptureOrderTest : public testing::DeviceFixture {
 protected:
  CaptureOrderTest() : third_(SimGpu::make_stream()) { target_ = allocate(kPageBytes, stream_); }
  ~CaptureOrderTest() override { SimGpu::abandon_capture(stream_); }

  void work(StreamId stream) { SimGpu::fill(stream, target_, 1, 1); }
  bool is_behind(const std::optional<CaptureFrontier>& mark) {
    order_.scan();
    return mark && order_.is_behind(*mark);
  }

  const StreamId third_;
  DevicePtr target_;
  CaptureOrder order_{device_->driver(), stream_};
};

TEST_F(CaptureOrderTest, OutsideOfACaptureThereIsNoMark) {
  EXPECT_FALSE(order_.mark({side_}));
  SimGpu::begin_capture(side_);
  EXPECT_FALSE(order_.mark({side_}));
  SimGpu::end_capture(side_);
}

TEST_F(CaptureOrderTest, AStreamOutsideOfTheCaptureHasNoMarkInIt) {
  SimGpu::begin_capture(stream_);
  EXPECT_FALSE(order_.mark({side_}));
  SimGpu::fork(stream_, side_);
  EXPECT_TRUE(order_.mark({side_}));
  EXPECT_FALSE(order_.mark({side_, third_}));
}

TEST_F(CaptureOrderTest, WorkIsBehindOnceItsStreamIsJoined) {
  SimGpu::begin_capture(stream_);
  SimGpu::fork(stream_, side_);
  work(side_);
  const auto mark = order_.mark({side_});
  EXPECT_FALSE(is_behind(mark));
  work(stream_);
  EXPECT_FALSE(is_behind(mark));
  SimGpu::fork(side_, stream_);
  EXPECT_TRUE(is_behind(mark));
  work(stream_);
  EXPECT_TRUE(is_behind(mark)) << "earlier work stays before";
}

TEST_F(CaptureOrderTest, LaterWorkOfAJoinedStreamIsNotOrdered) {
  SimGpu::begin_capture(stream_);
  SimGpu::fork(stream_, side_);
  work(side_);
  SimGpu::fork(side_, stream_);
  const auto joined = order_.mark({side_});
  work(side_);
  const auto later = order_.mark({side_});
  EXPECT_TRUE(is_behind(joined));
  EXPECT_FALSE(is_behind(later));
  SimGpu::fork(side_, stream_);
}

TEST_F(CaptureOrderTest, EveryStreamMustBeJoined) {
  SimGpu::begin_capture(stream_);
  SimGpu::fork(stream_, side_);
  SimGpu::fork(stream_, third_);
  work(side_);
  work(third_);
  const auto mark = order_.mark({side_, third_});
  SimGpu::fork(side_, stream_);
  EXPECT_FALSE(is_behind(mark));
  SimGpu::fork(third_, side_);
  EXPECT_FALSE(is_behind(mark)) << "joined by another stream alone";
  SimGpu::fork(side_, stream_);
  EXPECT_TRUE(is_behind(mark));
}

TEST_F(CaptureOrderTest, AllPredecessorsOfANodeAreRead) {
  SimGpu::begin_capture(stream_);
  std::vector<StreamId> streams;
  for (int i = 0; i < 20; ++i) {
    streams.push_back(SimGpu::make_stream());
    SimGpu::fork(stream_, streams.back());
    work(streams.back());
  }
  const auto mark = order_.mark(streams);
  for (const StreamId stream : streams) {
    EXPECT_FALSE(is_behind(mark));
    SimGpu::fork(stream, stream_);
  }
  work(stream_);
  EXPECT_TRUE(is_behind(mark));
}

TEST_F(CaptureOrderTest, AMarkOfACaptureThatIsOverIsBehindNothing) {
  SimGpu::begin_capture(stream_);
  SimGpu::fork(stream_, side_);
  work(side_);
  const auto mark = order_.mark({side_});
  SimGpu::fork(side_, stream_);
  EXPECT_TRUE(is_behind(mark));
  SimGpu::end_capture(stream_);
  EXPECT_FALSE(is_behind(mark));
  SimGpu::begin_capture(stream_);
  EXPECT_FALSE(is_behind(mark));
}

// The table of a driver whose graphs have one node each.
struct OneNode {
  static inline CUgraphNode node = nullptr;
  static inline cuuint64_t capture = 0;
  static const CudaApi& table() {
    static const CudaApi table = [] {
      CudaApi made = FaultyApi::table();
      made.stream_get_capture_info = [](CUstream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                        CUgraph*, const CUgraphNode** nodes,
                                        const CUgraphEdgeData**, std::size_t* count) {
        *status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
        *id = capture;
        *nodes = &node;
        *count = 1;
        return CUDA_SUCCESS;
      };
      made.graph_node_get_dependencies = [](CUgraphNode, CUgraphNode*, CUgraphEdgeData*,
                                            std::size_t* count) {
        *count = 0;
        return CUDA_SUCCESS;
      };
      return made;
    }();
    return table;
  }
  static void show(std::uintptr_t name) { node = reinterpret_cast<CUgraphNode>(name); }
};

// A node is the address of an object, which a later graph may reuse.
TEST_F(CaptureOrderTest, ANodeOfAnEarlierCaptureIsForgotten) {
  Driver driver(OneNode::table(), 0);
  CaptureOrder order(driver, stream_);
  OneNode::capture = 1;
  OneNode::show(0x100);
  order.scan();
  const auto of_the_first = order.mark({side_});
  ASSERT_TRUE(of_the_first);
  OneNode::capture = 2;
  const auto mark = order.mark({side_});
  ASSERT_TRUE(mark);
  OneNode::show(0x200);
  order.scan();
  EXPECT_FALSE(order.is_behind(*mark)) << "it preceded only the work of the first capture";
  OneNode::show(0x100);
  order.scan();
  EXPECT_TRUE(order.is_behind(*mark));
  EXPECT_FALSE(order.is_behind(*of_the_first));
}

TEST_F(CaptureOrderTest, AFailedQueryIsRepeatedByTheNext) {
  SimGpu::begin_capture(stream_);
  for (int i = 0; i < 4; ++i) {
    work(stream_);
  }
  SimGpu::fork(stream_, side_);
  work(side_);
  const auto mark = order_.mark({side_});
  SimGpu::fork(side_, stream_);
  for (std::uint64_t call = 1; call <= 5; ++call) {
    FaultyApi::fail_only("cuGraphNodeGetDependencies_v2", call, CUDA_ERROR_UNKNOWN);
    CaptureOrder order(device_->driver(), stream_);
    EXPECT_THROW(order.scan(), DriverError);
    order.scan();
    EXPECT_TRUE(order.is_behind(*mark));
  }
  FaultyApi::reset();
}

TEST_F(CaptureOrderTest, EachNodeIsQueriedOnce) {
  SimGpu::begin_capture(stream_);
  for (int i = 0; i < 10; ++i) {
    work(stream_);
    order_.scan();
    order_.scan();
  }
  EXPECT_EQ(SimGpu::calls("cuGraphNodeGetDependencies_v2"), 10U);
}

// The same with a device: a block is reused within the capture if the graph's order allows it.
TEST_F(CaptureOrderTest, ABlockIsReusedOnceItsUsesAreJoined) {
  device_->pools().hold(kGraphPool);
  SimGpu::begin_capture(stream_);
  const DevicePtr block = allocate(3 * kPageBytes, stream_, kGraphPool);
  SimGpu::fork(stream_, side_);
  free_used_by(block, side_);
  const DevicePtr other = allocate(3 * kPageBytes, stream_, kGraphPool);
  EXPECT_NE(other, block) << "the side stream has not joined";
  free(other);
  SimGpu::fork(side_, stream_);
  const std::size_t held = device_->report().held_bytes();
  const DevicePtr first = allocate(3 * kPageBytes, stream_, kGraphPool);
  const DevicePtr second = allocate(3 * kPageBytes, stream_, kGraphPool);
  EXPECT_EQ(device_->report().held_bytes(), held);
  EXPECT_TRUE(first == block || second == block);
  SimGpu::end_capture(stream_);
  free(first);
  free(second);
  EXPECT_TRUE(device_->pools().release(kGraphPool));
}

TEST_F(CaptureOrderTest, AUseFromBeforeTheCaptureIsInNoGraph) {
  device_->pools().hold(kGraphPool);
  const DevicePtr block = allocate(3 * kPageBytes, stream_, kGraphPool);
  ASSERT_TRUE(heap_of(block).record_stream(*addresses_.find(block), block, side_));
  work(side_);
  SimGpu::begin_capture(stream_);
  SimGpu::fork(stream_, side_);
  free(block);
  SimGpu::fork(side_, stream_);
  device_->collect_pending();
  EXPECT_TRUE(heap_of(block).has_pending()) << "the graph is not ordered after it";
  SimGpu::end_capture(stream_);
  device_->collect_pending();
  EXPECT_TRUE(heap_of(block).has_pending()) << "now there is an event, which is not complete";
  SimGpu::finish(side_);
  device_->collect_pending();
  EXPECT_FALSE(heap_of(block).has_pending());
  EXPECT_TRUE(device_->pools().release(kGraphPool));
}

TEST_F(CaptureOrderTest, ABlockOfAnotherStreamWaitsForTheEndOfTheCapture) {
  const DevicePtr block = allocate(3 * kPageBytes, third_);
  SimGpu::begin_capture(stream_);
  free_used_by(block, stream_);
  SimGpu::fork(stream_, side_);
  SimGpu::fork(side_, stream_);
  device_->collect_pending();
  EXPECT_TRUE(heap_of(block).has_pending());
  SimGpu::end_capture(stream_);
  device_->collect_pending();
  EXPECT_FALSE(heap_of(block).has_pending());
}

}  // namespace capture_order_test
}  // namespace ferro
