// Graphs of one pool without a declared group, which may replay in any order; and memory that a
// capture gets again.
#include "ferro/driver/error.h"
#include "ferro/graph/checkpoint.h"
#include "ferro/graph/graph_memory.h"
#include "support/device_fixture.h"
#include "support/sim_gpu.h"

#include <gtest/gtest.h>

#include <vector>

namespace ferro {
namespace undeclared_pools_test {

using testing::bytes;
using testing::FaultyApi;
using testing::kPageBytes;
using testing::SimGpu;
using Outcome = GraphMemory::Outcome;

constexpr PoolId kPool{0, 21};
constexpr GroupId kGroup = 1;

class UndeclaredPoolsTest : public testing::DeviceFixture {
 protected:
  struct Range {
    DevicePtr ptr;
    std::size_t size;
  };
  struct Graph {
    Range scratch;
    Range result;
  };

  explicit UndeclaredPoolsTest(GraphOrder order = GraphOrder::kAny)
      : DeviceFixture(256, SimGpu::kManual, {.graph_order = order}) {
    device_->pools().hold(kPool);
  }

  Range take(std::size_t size, StreamId stream) {
    const DevicePtr ptr = graphs_->allocate(kPool, stream, bytes(size)).ptr;
    EXPECT_NE(ptr, kNull);
    return {ptr, size};
  }
  Range take(std::size_t size) { return take(size, stream_); }
  void begin() {
    device_->set_captures(1);
    ASSERT_EQ(graphs_->begin_capture(kPool), SharingResult::kOk);
  }
  void end() {
    EXPECT_EQ(graphs_->end_capture(kPool, Outcome::kSucceeded), SharingResult::kOk);
    device_->set_captures(0);
    device_->report().check_invariants();
  }
  Graph capture(std::size_t scratch, std::size_t result) {
    begin();
    Graph graph;
    graph.scratch = take(scratch);
    free(graph.scratch.ptr);
    graph.result = take(result);
    end();
    return graph;
  }
  void replay(const Graph& graph, unsigned char value) {
    for (const Range& range : {graph.scratch, graph.result}) {
      SimGpu::fill(stream_, range.ptr, value, range.size);
    }
    SimGpu::finish_all();
  }
  static void expect_result(const Graph& graph, unsigned char value) {
    EXPECT_EQ(SimGpu::peek(graph.result.ptr), value);
    EXPECT_EQ(SimGpu::peek(graph.result.ptr + (graph.result.size - 1)), value);
  }
  std::size_t held() { return device_->report().held_bytes() / kPageBytes; }
};

class OrderOfCapturesTest : public UndeclaredPoolsTest {
 protected:
  OrderOfCapturesTest() : UndeclaredPoolsTest(GraphOrder::kCaptured) {}
};

TEST_F(UndeclaredPoolsTest, GraphsReplayInAnyOrder) {
  // Small scratch, where the result of a later graph would otherwise lie.
  std::vector<Graph> graphs;
  begin();
  const Range small = take(4096);
  const Range large = take(8 * kPageBytes);
  free(small.ptr);
  const Range result = take(1024);
  free(large.ptr);
  end();
  graphs.push_back({{small.ptr, 4096}, result});
  const std::size_t one = held();
  for (int i = 0; i < 3; ++i) {
    graphs.push_back(capture(8 * kPageBytes, 1024));
  }
  EXPECT_EQ(held(), one);
  for (const std::size_t i : {3U, 1U, 0U, 2U}) {
    replay(graphs[i], static_cast<unsigned char>(i + 1));
  }
  for (std::size_t i = 0; i < graphs.size(); ++i) {
    expect_result(graphs[i], static_cast<unsigned char>(i + 1));
  }
}

TEST_F(UndeclaredPoolsTest, GraphsThatKeepMuchDoToo) {
  const Graph first = capture(8 * kPageBytes, 2 * kPageBytes);
  const Graph second = capture(6 * kPageBytes, kPageBytes);
  replay(second, 2);
  replay(first, 1);
  expect_result(second, 2);
  expect_result(first, 1);
}

TEST_F(OrderOfCapturesTest, GraphsUseTheSameAddresses) {
  const Graph first = capture(8 * kPageBytes, 2 * kPageBytes);
  const Graph second = capture(6 * kPageBytes, kPageBytes);
  EXPECT_EQ(first.result.ptr, first.scratch.ptr);
  EXPECT_EQ(second.scratch.ptr, first.scratch.ptr + 2 * kPageBytes);
  EXPECT_EQ(held(), 8U);
}

TEST_F(UndeclaredPoolsTest, CheckpointsEndIt) {
  capture(8 * kPageBytes, 1024);
  const Graph second = capture(8 * kPageBytes, 1024);
  PoolCheckpoint checkpoint;
  EXPECT_EQ(take_checkpoint(*graphs_, kPool, &checkpoint), CheckpointError::kNone);
  const Graph third = capture(4 * kPageBytes, 1024);
  EXPECT_NE(third.scratch.ptr, second.scratch.ptr);
  CheckpointChange change;
  EXPECT_EQ(restore_checkpoint(*graphs_, checkpoint, &change), CheckpointError::kNone);
  EXPECT_EQ(change.freed.size(), 3U);
  EXPECT_EQ(change.allocated.size(), 2U);
  device_->report().check_invariants();
}

TEST_F(UndeclaredPoolsTest, ScatteredPagesServeALaterRequestOfTheSameCapture) {
  ASSERT_EQ(graphs_->join(kGroup, kPool), SharingResult::kOk);
  begin();
  std::vector<Range> dying;
  for (int i = 0; i < 4; ++i) {
    dying.push_back(take(2 * kPageBytes));
    take(kPageBytes);  // between them, and alive
  }
  for (const Range& range : dying) {
    free(range.ptr);
  }
  const std::size_t before = held();
  take(8 * kPageBytes);
  EXPECT_EQ(held(), before);
  end();
  EXPECT_EQ(held(), before);  // what lives has pages that no other graph has
}

TEST_F(UndeclaredPoolsTest, WhatDiedOnAnotherStreamDoesNot) {
  ASSERT_EQ(graphs_->join(kGroup, kPool), SharingResult::kOk);
  begin();
  free(take(4 * kPageBytes).ptr);
  const std::size_t before = held();
  const Range other = take(4 * kPageBytes, SimGpu::make_stream());
  EXPECT_EQ(held(), before + 4);
  free(other.ptr);
  end();
}

TEST_F(UndeclaredPoolsTest, AResultLiesOnPagesThatItsOwnGraphHadAsScratch) {
  ASSERT_EQ(graphs_->join(kGroup, kPool), SharingResult::kOk);
  const Graph first = capture(4 * kPageBytes, 512);
  const std::size_t before = held();
  const Graph second = capture(8 * kPageBytes, 4 * kPageBytes);
  // The first graph's result lies on a page of its scratch, so that five pages are new; the result
  // keeps three of them, and has one more.
  EXPECT_EQ(held() - before, 6U);
  replay(second, 2);
  replay(first, 1);
  expect_result(second, 2);
  expect_result(first, 1);
}

TEST_F(UndeclaredPoolsTest, ADriverThatRefusesLeavesEachGraphItsOwn) {
  const Graph first = capture(8 * kPageBytes, 1024);
  for (int call = 1; call < 12; ++call) {
    for (const char* name : {"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap"}) {
      FaultyApi::fail_only(name, call, CUDA_ERROR_UNKNOWN);
      device_->set_captures(1);
      try {
        if (graphs_->begin_capture(kPool) == SharingResult::kOk) {
          std::vector<DevicePtr> taken;
          for (const std::size_t size : {std::size_t{1024}, 12 * kPageBytes, 3 * kPageBytes}) {
            if (const DevicePtr ptr = graphs_->allocate(kPool, stream_, bytes(size)).ptr;
                ptr != kNull) {
              taken.push_back(ptr);
            }
          }
          for (const DevicePtr ptr : taken) {
            free(ptr);
          }
        }
      } catch (const DriverError&) {  // NOLINT(bugprone-empty-catch): the state is what counts
      }
      FaultyApi::reset();
      EXPECT_EQ(graphs_->end_capture(kPool, Outcome::kFailed), SharingResult::kOk);
      device_->set_captures(0);
      device_->report().check_invariants();
    }
  }
  const Graph second = capture(8 * kPageBytes, 1024);
  replay(second, 2);
  replay(first, 1);
  expect_result(second, 2);
  expect_result(first, 1);
}

}  // namespace undeclared_pools_test
}  // namespace ferro
