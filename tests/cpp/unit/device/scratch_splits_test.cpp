// Pools that join a group after their captures: handles on which results lie beside free pages are
// split, and the free pages are shared.
#include "ferro/core/device/scratch_sharing.h"
#include "ferro/driver/error.h"
#include "support/device_fixture.h"
#include "support/sim_gpu.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

namespace ferro {
namespace {

using testing::FaultyApi;
using testing::kPageBytes;
using testing::SimGpu;

constexpr std::array kPools = {PoolId{0, 31}, PoolId{0, 32}};
constexpr std::size_t kHandle = 8;  // pages

// What a graph writes at each replay: `scratch` is free when its capture has ended.
struct Graph {
  struct Range {
    DevicePtr ptr;
    std::size_t size;
  };
  PoolId pool;
  std::vector<Range> scratch;
  std::vector<Range> results;
};

class ScratchSplitsTest : public testing::DeviceFixture {
 protected:
  explicit ScratchSplitsTest(GraphOrder order = GraphOrder::kCaptured)
      : DeviceFixture(256, std::string(SimGpu::kManual) + ",devices=2",
                      AllocatorConfig{.handles = testing::kCoarseHandles, .graph_order = order}) {
    for (const PoolId& pool : kPools) {
      device_->pools().hold(pool);
    }
  }

  // On so many handles of eight pages, two or more, and on each of them a result at the beginning: of a part of a page,
  // and of as many pages more as `more` says.
  Graph capture(const PoolId& pool, std::size_t handles, std::size_t more = 0) {
    Graph graph{pool, {}, {}};
    const std::size_t size = more * kPageBytes + 3 * kPageBytes / 4;
    device_->set_captures(1);
    EXPECT_EQ(scratch().begin_capture(pool), SharingResult::kOk);
    free(allocate(handles * kHandle * kPageBytes, stream_, pool));
    for (std::size_t i = 0; i < handles; ++i) {
      graph.results.push_back({allocate(size, stream_, pool), size});
      const std::size_t rest = kHandle * kPageBytes - size;
      graph.scratch.push_back({allocate(rest, stream_, pool), rest});
    }
    for (const Graph::Range& range : graph.scratch) {
      free(range.ptr);
    }
    EXPECT_EQ(scratch().end_capture(pool, ScratchSharing::Outcome::kSucceeded), SharingResult::kOk);
    device_->set_captures(0);
    return graph;
  }
  // Each result has bytes of its own.
  static void replay(const Graph& graph, unsigned value, StreamId stream) {
    for (const Graph::Range& range : graph.scratch) {
      // Some of each page: filling all takes the simulated device long.
      for (std::size_t at = 0; at < range.size; at += kPageBytes) {
        SimGpu::fill(stream, range.ptr + at, 255, std::min<std::size_t>(range.size - at, 4096));
      }
    }
    for (const Graph::Range& range : graph.results) {
      SimGpu::fill(stream, range.ptr, static_cast<std::uint8_t>(value++), range.size);
    }
    SimGpu::finish_all();
  }
  void replay(const Graph& graph, unsigned value) { replay(graph, value, stream_); }
  static void expect_results(const Graph& graph, unsigned value) {
    for (const Graph::Range& range : graph.results) {
      EXPECT_EQ(SimGpu::peek(range.ptr), value);
      EXPECT_EQ(SimGpu::peek(range.ptr + range.size / 2), value);
      EXPECT_EQ(SimGpu::peek(range.ptr + (range.size - 1)), value);
      ++value;
    }
  }
  void join(const Graph& graph) {
    ASSERT_EQ(scratch().join(group_, graph.pool), SharingResult::kOk);
    device_->report().check_invariants();
    EXPECT_EQ(SimGpu::used_pages(), held());
  }
  GraphScratch& scratch() { return device_->scratch(); }
  std::size_t set_pages() { return scratch().bytes_of(group_).set / kPageBytes; }
  std::size_t held() { return device_->report().held_bytes() / kPageBytes; }
  std::size_t held_without_cache() {
    device_->empty_cache();
    return held();
  }
  // It is as before, and replays.
  void expect_no_split(const Graph& graph) {
    const DriverCalls before = device_->driver().calls();
    join(graph);
    EXPECT_EQ(device_->driver().calls().map, before.map);
    EXPECT_EQ(device_->driver().calls().create, before.create);
    EXPECT_EQ(set_pages(), 0U);
    replay(graph, 1);
    expect_results(graph, 1);
  }

  ScratchSharing::GroupId group_ = 1;
};

TEST_F(ScratchSplitsTest, FreePagesBesideResultsAreShared) {
  const Graph a = capture(kPools[0], 4);
  const Graph b = capture(kPools[1], 3);
  ASSERT_EQ(held_without_cache(), 7 * kHandle);
  replay(a, 1);
  replay(b, 11);
  join(a);
  join(b);
  expect_results(a, 1);
  expect_results(b, 11);
  EXPECT_EQ(set_pages(), 4 * (kHandle - 1));
  EXPECT_EQ(scratch().bytes_of(group_).scratch, 7 * (kHandle - 1) * kPageBytes);
  EXPECT_EQ(held_without_cache(), 4 * (kHandle - 1) + 7U);
  // They write to the addresses that they were captured with.
  replay(b, 21);
  replay(a, 31);
  expect_results(b, 21);
  expect_results(a, 31);
  EXPECT_EQ(SimGpu::peek(b.scratch[0].ptr + kPageBytes), 255);
  device_->report().check_invariants();
}

TEST_F(ScratchSplitsTest, TheDriverIsAskedForEachPageOnce) {
  const Graph graph = capture(kPools[0], 2, 1);
  device_->empty_cache();
  const DriverCalls before = device_->driver().calls();
  const std::size_t waits = SimGpu::calls("cuCtxSynchronize");
  join(graph);
  const DriverCalls after = device_->driver().calls();
  EXPECT_EQ(after.create - before.create, 2 * kHandle);
  EXPECT_EQ(after.reserve - before.reserve, 2U);
  EXPECT_EQ(after.unreserve - before.unreserve, 2U);
  EXPECT_EQ(after.map - before.map, 2 * (kHandle + 2)) << "in their place, and for the copy";
  EXPECT_EQ(after.set_access - before.set_access, 4U);
  EXPECT_EQ(after.unmap - before.unmap, 4U);
  EXPECT_EQ(after.event_wait - before.event_wait, 3U) << "for the device, and for each copy";
  EXPECT_EQ(SimGpu::calls("cuCtxSynchronize"), waits + 1);
  EXPECT_EQ(set_pages(), 2 * (kHandle - 2));
}

// What goes makes room for what comes: not all of it is held twice.
TEST_F(ScratchSplitsTest, RoomForOneHandleIsEnough) {
  const Graph graph = capture(kPools[0], 4);
  replay(graph, 1);
  device_->empty_cache();
  device_->store().set_limit((held() + kHandle) * kPageBytes);
  join(graph);
  expect_results(graph, 1);
  EXPECT_EQ(set_pages(), 4 * (kHandle - 1));
  EXPECT_EQ(held_without_cache(), 4 * kHandle);
}

TEST_F(ScratchSplitsTest, WithoutRoomLessIsShared) {
  const Graph graph = capture(kPools[0], 2);
  device_->empty_cache();
  device_->store().set_limit((held() + kHandle - 1) * kPageBytes);
  const std::uint64_t maps = device_->driver().calls().map;
  join(graph);
  EXPECT_EQ(device_->driver().calls().map, maps);
  EXPECT_EQ(set_pages(), 0U);
  EXPECT_LE(held(), 3 * kHandle - 1);
  EXPECT_EQ(held_without_cache(), 2 * kHandle);
  replay(graph, 1);
  expect_results(graph, 1);
}

TEST_F(ScratchSplitsTest, AHandleWithFewFreePagesStays) {
  expect_no_split(capture(kPools[0], 2, 4));
}

TEST_F(ScratchSplitsTest, HalfOfThePagesAreEnough) {
  join(capture(kPools[0], 2, 3));
  EXPECT_EQ(set_pages(), 2 * kHandle / 2);
}

TEST_F(ScratchSplitsTest, WhatOthersOpenedStays) {
  const Graph graph = capture(kPools[0], 2);
  for (const Graph::Range& result : graph.results) {
    SharedRange range;
    Span& span = *addresses_.find(result.ptr);
    ASSERT_EQ(device_->export_block(span, result.ptr, {}, &range), ExportResult::kOk);
  }
  expect_no_split(graph);
}

TEST_F(ScratchSplitsTest, AndWhatIsPinned) {
  const Graph graph = capture(kPools[0], 2);
  for (const Graph::Range& result : graph.results) {
    ASSERT_TRUE(device_->pin(*addresses_.find(result.ptr), result.ptr, result.size));
  }
  expect_no_split(graph);
  for (const Graph::Range& result : graph.results) {
    device_->unpin(*addresses_.find(result.ptr), result.ptr, result.size);
  }
}

TEST_F(ScratchSplitsTest, AndWhatOtherDevicesReach) {
  const Graph graph = capture(kPools[0], 2);
  device_->add_peer(1);
  EXPECT_EQ(scratch().bytes_if_joined({kPools.data(), 1}).set, 0U);
  expect_no_split(graph);
}

TEST_F(ScratchSplitsTest, AndPoolsOfTrees) {
  const Graph graph = capture(kPools[0], 2);
  ASSERT_TRUE(scratch().expect_checkpoints(kPools[0]));
  expect_no_split(graph);
}

TEST_F(ScratchSplitsTest, WhatIsPendingIsOverByThen) {
  const Graph graph = capture(kPools[0], 2);
  replay(graph, 7);
  const DevicePtr result = graph.results[0].ptr;
  Span& span = *addresses_.find(result);
  ASSERT_TRUE(heap_of(result).record_stream(span, result, side_));
  SimGpu::fill(side_, result, 8, graph.results[0].size);  // not over
  free(result);
  join(graph);
  // It was waited for, so the whole handle was free.
  EXPECT_EQ(set_pages(), kHandle + kHandle - 1);
  EXPECT_EQ(SimGpu::peek(result), 8);
}

TEST_F(ScratchSplitsTest, WhatThePoolWouldShareIsWhatItShares) {
  const Graph a = capture(kPools[0], 4, 2);
  const Graph b = capture(kPools[1], 3);
  const std::uint64_t maps = device_->driver().calls().map;
  const GroupBytes expected = scratch().bytes_if_joined(kPools);
  EXPECT_EQ(device_->driver().calls().map, maps);
  join(a);
  join(b);
  EXPECT_EQ(expected.set, set_pages() * kPageBytes);
  EXPECT_EQ(expected.scratch, scratch().bytes_of(group_).scratch);
}

class UndeclaredSplitsTest : public ScratchSplitsTest {
 protected:
  UndeclaredSplitsTest() : ScratchSplitsTest(GraphOrder::kAny) {}
};

TEST_F(UndeclaredSplitsTest, APoolThatNobodyDeclaredIsNotSplit) {
  const Graph graph = capture(kPools[0], 2);
  replay(graph, 1);
  const DriverCalls before = device_->driver().calls();
  ASSERT_EQ(scratch().begin_capture(kPools[0]), SharingResult::kOk);
  EXPECT_EQ(device_->driver().calls().map, before.map);
  EXPECT_EQ(device_->driver().calls().create, before.create);
  ASSERT_EQ(scratch().end_capture(kPools[0], ScratchSharing::Outcome::kFailed), SharingResult::kOk);
  device_->report().check_invariants();
  expect_results(graph, 1);
}

TEST_F(ScratchSplitsTest, TheHistorySaysSo) {
  struct Observer final : MemoryObserver {
    void on_event(const EventFacts& event) noexcept override {
      if (event.what == MemoryEvent::kMapped || event.what == MemoryEvent::kUnmapped) {
        text += (event.what == MemoryEvent::kMapped ? "+" : "-") +
                std::to_string(event.size / kPageBytes) + event.range.reason + " ";
      }
    }
    std::string text;
  } observer;
  const Graph graph = capture(kPools[0], 2);
  device_->set_observer(&observer);
  join(graph);
  device_->set_observer(nullptr);
  EXPECT_EQ(observer.text, "-8vacated +8split -8vacated +8split ");
}

// Every call fails once, in either way: the results are there, and each graph has its own.
TEST_F(ScratchSplitsTest, WhateverCallFailsTheResultsStay) {
  for (const CUresult error : {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN}) {
    for (std::uint64_t call = 1;; ++call) {
      ++group_;
      const std::array pools = {PoolId{group_, 1}, PoolId{group_, 2}};
      for (const PoolId& pool : pools) {
        device_->pools().hold(pool);
      }
      const Graph a = capture(pools[0], 3);
      const Graph b = capture(pools[1], 2, 1);
      replay(a, 1);
      replay(b, 11);
      join(a);
      FaultyApi::fail_at(call, error);
      SharingResult result = SharingResult::kCapturing;
      try {
        result = scratch().join(group_, b.pool);
      } catch (const DriverError&) {
      }
      const std::string failed = FaultyApi::failed();
      SCOPED_TRACE("call " + std::to_string(call) + " (" + failed + ") fails with " +
                   std::to_string(static_cast<int>(error)));
      FaultyApi::reset();
      device_->report().check_invariants();
      expect_results(a, 1);
      expect_results(b, 11);
      if (result != SharingResult::kOk) {
        ASSERT_FALSE(failed.empty());
        join(b);
      }
      for (const Graph* graph : {&b, &a, &b}) {
        replay(*graph, 21);
        expect_results(*graph, 21);
      }
      expect_results(a, 21);
      EXPECT_LE(set_pages(), 3 * (kHandle - 1) + 2 * (kHandle - 2)) << "not folded";
      // Nothing is left of it.
      free_everything();
      for (const PoolId& pool : pools) {
        ASSERT_TRUE(device_->pools().release(pool));
        scratch().on_unheld(pool);
      }
      ASSERT_EQ(held_without_cache(), 0U);
      ASSERT_EQ(SimGpu::used_pages(), 0U);
      if (failed.empty()) {
        ASSERT_GT(call, 30U);
        break;
      }
    }
  }
}

}  // namespace
}  // namespace ferro
