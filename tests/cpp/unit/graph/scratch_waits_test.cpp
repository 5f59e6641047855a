// Pages of scratch change their owner after the work on them, only within pools that may have them,
// and not when the driver refuses.
#include "ferro/driver/error.h"
#include "ferro/graph/graph_memory.h"
#include "support/device_fixture.h"
#include "support/sim_gpu.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>

namespace ferro {
namespace scratch_waits_test {

using testing::bytes;
using testing::FaultyApi;
using testing::kPageBytes;
using testing::SimGpu;
using Outcome = GraphMemory::Outcome;

constexpr std::array kPools = {PoolId{0, 11}, PoolId{0, 12}, PoolId{0, 13}};
constexpr GroupId kGroup = 1;

class ScratchWaitsTest : public testing::DeviceFixture {
 protected:
  struct Range {
    DevicePtr ptr{};
    std::size_t size = 0;
  };
  struct Graph {
    Range scratch;
    Range result;
  };

  ScratchWaitsTest() : DeviceFixture(256) {
    for (const PoolId& pool : kPools) {
      device_->pools().hold(pool);
    }
  }
  ~ScratchWaitsTest() override { FaultyApi::set_watcher(nullptr); }

  // Sizes in pages.
  Graph capture(const PoolId& pool, std::size_t scratch, std::size_t result) {
    device_->set_captures(1);
    EXPECT_EQ(graphs_->begin_capture(pool), SharingResult::kOk);
    Graph graph{take(pool, scratch), take(pool, result)};
    free(graph.scratch.ptr);
    EXPECT_EQ(graphs_->end_capture(pool, Outcome::kSucceeded), SharingResult::kOk);
    device_->set_captures(0);
    device_->report().check_invariants();
    return graph;
  }
  Range take(const PoolId& pool, std::size_t pages) {
    return {graphs_->allocate(pool, stream_, bytes(pages * kPageBytes)).ptr, pages * kPageBytes};
  }
  void join(const PoolId& pool) {
    ASSERT_EQ(graphs_->join(kGroup, pool), SharingResult::kOk);
    device_->report().check_invariants();
  }
  void replay(const Range& range, unsigned char value) {
    SimGpu::fill(stream_, range.ptr, value, range.size);
  }
  // Queues work on `range`. Counts the mappings removed from now on; the work must be done before
  // the first.
  void expect_work_before_unmapping(const Range& range) {
    static constexpr unsigned char kValue = 7;
    replay(range, kValue);
    ASSERT_NE(SimGpu::peek(range.ptr), kValue);
    FaultyApi::set_watcher([this, range](const char* symbol) {
      if (std::strcmp(symbol, "cuMemUnmap") == 0 && unmapped_++ == 0) {
        EXPECT_EQ(SimGpu::peek(range.ptr), kValue);
        EXPECT_EQ(SimGpu::peek(range.ptr + (range.size - 1)), kValue);
      }
    });
  }
  // Two replays that the group orders.
  void expect_apart(const Range& kept, const Range& other) {
    replay(kept, 5);
    replay(other, 9);
    SimGpu::finish_all();
    for (std::size_t at = 0; at < kept.size; at += kPageBytes) {
      EXPECT_EQ(SimGpu::peek(kept.ptr + at), 5) << at / kPageBytes;
    }
  }

  int unmapped_ = 0;
};

TEST_F(ScratchWaitsTest, APoolJoinsBehindTheWorkOnItsScratch) {
  capture(kPools[0], 8, 1);
  const Graph smaller = capture(kPools[1], 4, 1);
  join(kPools[0]);
  expect_work_before_unmapping(smaller.scratch);
  join(kPools[1]);
  EXPECT_GT(unmapped_, 0);
}

TEST_F(ScratchWaitsTest, APoolLeavesBehindTheWorkOnItsScratch) {
  join(kPools[0]);
  join(kPools[1]);
  capture(kPools[0], 8, 1);
  const Graph smaller = capture(kPools[1], 4, 1);
  expect_work_before_unmapping(smaller.scratch);
  ASSERT_EQ(graphs_->leave(kPools[1]), SharingResult::kOk);
  EXPECT_GT(unmapped_, 0);
}

TEST_F(ScratchWaitsTest, ScratchOfGraphsThatAreGoneGoesBehindTheirWork) {
  join(kPools[0]);
  const Graph gone = capture(kPools[0], 8, 1);
  free(gone.result.ptr);
  ASSERT_TRUE(device_->pools().release(kPools[0]));
  graphs_->on_last_release(kPools[0]);
  device_->pools().hold(kPools[0]);
  expect_work_before_unmapping(gone.scratch);
  join(kPools[1]);
  EXPECT_GT(unmapped_, 0);
  EXPECT_EQ(graphs_->bytes_of(kGroup).scratch, 0U);
}

TEST_F(ScratchWaitsTest, WhatDiedAfterItsCaptureServesNoCaptureOfAnotherPool) {
  join(kPools[0]);
  join(kPools[1]);
  const Graph writer = capture(kPools[0], 1, 4);
  free(writer.result.ptr);  // another graph of the pool may read it
  capture(kPools[0], 1, 1);
  const Graph other = capture(kPools[1], 6, 1);
  expect_apart(writer.result, other.scratch);
}

TEST_F(ScratchWaitsTest, WhatDiedAfterItsCaptureIsBehindNoScratchOfAPoolThatJoins) {
  const Graph other = capture(kPools[1], 4, 1);
  join(kPools[0]);
  const Graph writer = capture(kPools[0], 1, 4);
  free(writer.result.ptr);
  capture(kPools[0], 1, 1);
  join(kPools[1]);
  expect_apart(writer.result, other.scratch);
}

TEST_F(ScratchWaitsTest, WhatDiesInACaptureDoesNotServeIt) {
  join(kPools[0]);
  const Graph writer = capture(kPools[0], 1, 4);
  device_->set_captures(1);
  ASSERT_EQ(graphs_->begin_capture(kPools[0]), SharingResult::kOk);
  free(writer.result.ptr);
  // Requests as large as the dead block, and small enough to be a part of it.
  for (const std::size_t size : {4 * kPageBytes, kPageBytes, kPageBytes / 4}) {
    for (int i = 0; i < 4; ++i) {
      const DevicePtr ptr = graphs_->allocate(kPools[0], stream_, bytes(size)).ptr;
      ASSERT_NE(ptr, kNull);
      EXPECT_TRUE(ptr + size <= writer.result.ptr || writer.result.ptr + writer.result.size <= ptr);
    }
  }
  ASSERT_EQ(graphs_->end_capture(kPools[0], Outcome::kSucceeded), SharingResult::kOk);
  device_->set_captures(0);
}

// The calls that map the pool's own pages at its scratch fail one after the other.
TEST_F(ScratchWaitsTest, APoolThatCannotLeaveHasThePagesThatItHad) {
  join(kPools[0]);
  join(kPools[1]);
  const Graph larger = capture(kPools[0], 8, 1);
  const Graph smaller = capture(kPools[1], 4, 1);
  const std::size_t shared = graphs_->bytes_of(kGroup).set;
  int refused = 0;
  for (std::uint64_t call = 1;; ++call) {
    for (const CUresult result : {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN}) {
      FaultyApi::fail_only("cuMemMap", call, result);
      try {
        if (graphs_->leave(kPools[1]) == SharingResult::kOk) {
          FaultyApi::reset();
          EXPECT_GE(refused, 4);
          device_->report().check_invariants();
          expect_apart(smaller.scratch, larger.scratch);
          return;
        }
      } catch (const DriverError&) {
        EXPECT_EQ(result, CUDA_ERROR_UNKNOWN);
      }
      FaultyApi::reset();
      ++refused;
      device_->report().check_invariants();
      EXPECT_EQ(graphs_->bytes_of(kGroup).set, shared);
      EXPECT_EQ(graphs_->join(kGroup, kPools[1]), SharingResult::kOk);  // is a member
      // An unshared page would keep its contents.
      replay(smaller.scratch, 5);
      replay(larger.scratch, 9);
      SimGpu::finish_all();
      for (std::size_t at = 0; at < smaller.scratch.size; at += kPageBytes) {
        EXPECT_EQ(SimGpu::peek(smaller.scratch.ptr + at), 9);
      }
    }
  }
}

// A graph's pending block on pages of the group becomes free when the cache is emptied for pages
// that the capture lacks. Its addresses were released with the cache, although the graph uses them.
TEST_F(ScratchWaitsTest, MemoryFreedBeforeARetriedEndIsTheGraphs) {
  join(kPools[0]);
  capture(kPools[0], 2, 1);
  const DevicePtr eager = allocate(512);  // for which emptying the cache waits
  device_->set_captures(1);
  ASSERT_EQ(graphs_->begin_capture(kPools[0]), SharingResult::kOk);
  const Range scratch = take(kPools[0], 3);
  for (const DevicePtr ptr : {scratch.ptr, eager}) {
    Heap& heap = heap_of(ptr);
    EXPECT_TRUE(heap.record_stream(*addresses_.find(ptr), ptr, side_));
    free(ptr);
    EXPECT_TRUE(heap.has_pending());
  }
  device_->store().set_limit(device_->report().held_bytes());
  device_->set_captures(0);
  EXPECT_EQ(graphs_->end_capture(kPools[0], Outcome::kSucceeded), SharingResult::kOk);
  device_->store().set_limit(PageStore::kNoLimit);
  device_->report().check_invariants();
  replay(scratch, 5);
  SimGpu::finish_all();
  for (std::size_t at = 0; at < scratch.size; at += kPageBytes) {
    EXPECT_EQ(SimGpu::peek(scratch.ptr + at), 5);
  }
}

}  // namespace scratch_waits_test
}  // namespace ferro
