// Free pages of a pool without a group serve its captures at other addresses, and stay mapped at
// the old ones, where graphs write.
#include "ferro/driver/error.h"
#include "ferro/graph/checkpoint.h"
#include "ferro/graph/graph_memory.h"
#include "support/device_fixture.h"
#include "support/sim_gpu.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <utility>
#include <vector>

namespace ferro {
namespace moves_in_captures_test {

using testing::bytes;
using testing::FaultyApi;
using testing::kPageBytes;
using testing::SimGpu;
using Outcome = GraphMemory::Outcome;

constexpr PoolId kPool{0, 31};
constexpr PoolId kOther{0, 32};
constexpr GroupId kGroup = 1;
constexpr std::size_t kHoles = 4;
constexpr std::size_t kDead = 2 * kHoles;  // pages
constexpr std::size_t kAlive = kHoles;

class MovesInCapturesTest : public testing::DeviceFixture {
 protected:
  struct Range {
    DevicePtr ptr{};
    std::size_t size = 0;
  };
  // The ranges that the graph writes, in that order.
  struct Graph {
    std::vector<Range> dead;
    std::vector<Range> kept;
    Range last;  // made of the pages of those that died
  };

  explicit MovesInCapturesTest(GraphOrder order = GraphOrder::kCaptured)
      : DeviceFixture(256, SimGpu::kManual, {.graph_order = order}) {
    device_->pools().hold(kPool);
    device_->pools().hold(kOther);
  }
  ~MovesInCapturesTest() override {
    for (const PoolId& pool : {kPool, kOther}) {
      if (device_->pools().use_count(pool) > 0) {
        release_pool(pool);
      }
    }
  }

  void begin(const PoolId& pool = kPool) {
    device_->set_captures(1);
    SimGpu::begin_capture(stream_);
    ASSERT_EQ(graphs_->begin_capture(pool), SharingResult::kOk);
  }
  void end(const PoolId& pool = kPool, Outcome outcome = Outcome::kSucceeded) {
    EXPECT_EQ(graphs_->end_capture(pool, outcome), SharingResult::kOk);
    SimGpu::abandon_capture(stream_);
    device_->set_captures(0);
    device_->report().check_invariants();
  }
  void release_pool(const PoolId& pool) {
    device_->pools().release(pool);
    graphs_->on_last_release(pool);
  }
  Range take(std::size_t size, const PoolId& pool = kPool) {
    return {allocate(size, stream_, pool), size};
  }
  // Makes holes in the arena: live blocks between dead ones.
  void make_holes(Graph& graph, const PoolId& pool = kPool) {
    for (std::size_t i = 0; i < kHoles; ++i) {
      graph.dead.push_back(take(2 * kPageBytes, pool));
      graph.kept.push_back(take(kPageBytes, pool));
    }
    for (const Range& range : graph.dead) {
      free(range.ptr);
    }
  }
  Graph capture() {
    Graph graph;
    begin();
    make_holes(graph);
    graph.last = take(kDead * kPageBytes);
    end();
    return graph;
  }
  // Captures a graph of kPool, and one of a member of the group with twice its scratch.
  std::pair<Graph, Graph> capture_beside_a_larger_member() {
    const Graph graph = capture();
    free(graph.last.ptr);
    Graph other;
    begin(kOther);
    other.last = take(2 * kDead * kPageBytes, kOther);
    free(other.last.ptr);
    end(kOther);
    EXPECT_EQ(graphs_->join(kGroup, kOther), SharingResult::kOk);
    return {graph, other};
  }
  // Writes each range with a different value, from `value` on.
  void replay(const Graph& graph, unsigned char value) {
    for (const std::vector<Range>* ranges : {&graph.dead, &graph.kept}) {
      for (const Range& range : *ranges) {
        SimGpu::fill(stream_, range.ptr, value++, range.size);
      }
    }
    if (graph.last.size != 0) {
      SimGpu::fill(stream_, graph.last.ptr, value, graph.last.size);
    }
    SimGpu::finish_all();
  }
  static void expect_kept(const Graph& graph, unsigned char value) {
    value += static_cast<unsigned char>(graph.dead.size());
    for (const Range& range : graph.kept) {
      EXPECT_EQ(SimGpu::peek(range.ptr), value);
      EXPECT_EQ(SimGpu::peek(range.ptr + (range.size - 1)), value++);
    }
    if (graph.last.size != 0) {
      EXPECT_EQ(SimGpu::peek(graph.last.ptr), value);
      EXPECT_EQ(SimGpu::peek(graph.last.ptr + (graph.last.size - 1)), value);
    }
  }
  // Leaves four pages of a graph that an eager stream has yet to read.
  Range leave_result_in_use() {
    begin();
    const Range result = take(4 * kPageBytes);
    take(kPageBytes);
    end();
    SimGpu::fill(side_, result.ptr, 1, 1);
    return result;
  }
  std::size_t held() { return device_->report().held_bytes() / kPageBytes; }
};

TEST_F(MovesInCapturesTest, SizesCountAPageOnceAtWhateverAddressesItWas) {
  const auto give = [this](std::size_t pages) {
    const auto size = bytes(pages * kPageBytes);
    return graphs_->allocate(kPool, stream_, size, GraphMemory::InCapture::kYes).ptr;
  };
  begin();
  const std::uint64_t id = device_->driver().capture_info(stream_).id;
  std::vector<DevicePtr> dead;
  for (std::size_t i = 0; i < kHoles; ++i) {
    dead.push_back(give(2));
    give(1);
  }
  for (const DevicePtr ptr : dead) {
    free(ptr);
  }
  const std::vector<BlockView> live{{give(kDead), kDead * kPageBytes}};
  end();
  const GraphSizes sizes = graphs_->sizes_of(kPool, id, live);
  EXPECT_EQ(sizes.private_bytes, (kDead + kAlive) * kPageBytes);
  EXPECT_EQ(sizes.live_bytes, kDead * kPageBytes);
}

TEST_F(MovesInCapturesTest, ScatteredPagesServeALaterRequestOfTheSameCapture) {
  begin();
  Graph graph;
  make_holes(graph);
  const DriverCalls before = device_->driver().calls();
  graph.last = take(kDead * kPageBytes);
  const DriverCalls after = device_->driver().calls();
  EXPECT_EQ(held(), kDead + kAlive);
  EXPECT_EQ(after.create, before.create);
  EXPECT_EQ(after.unmap, before.unmap);
  EXPECT_EQ(ended_by(LadderStep::kMovePages), 1U);
  end();
  // Each old address is an alias of one of the pages.
  replay(graph, 1);
  expect_kept(graph, 1);
  for (const Range& range : graph.dead) {
    EXPECT_EQ(SimGpu::peek(range.ptr), SimGpu::peek(graph.last.ptr));
  }
}

TEST_F(MovesInCapturesTest, OldAddressesAreNotHandedOutAgain) {
  const Graph graph = capture();
  free(graph.last.ptr);
  begin();
  const Range next = take(kDead * kPageBytes);
  EXPECT_EQ(next.ptr, graph.last.ptr);
  EXPECT_EQ(held(), kDead + kAlive);
  end();
}

TEST_F(MovesInCapturesTest, PagesOfAnEarlierGraphServeALaterOneOfItsPool) {
  Graph first;
  begin();
  make_holes(first);
  end();
  Graph second;
  begin();
  second.last = take(kDead * kPageBytes);
  end();
  EXPECT_EQ(held(), kDead + kAlive);
  replay(first, 1);
  expect_kept(first, 1);
  replay(second, 50);
  expect_kept(second, 50);
  expect_kept(first, 1);
  // The graphs replay in the order of their captures, twice.
  replay(first, 60);
  replay(second, 90);
  expect_kept(first, 60);
  expect_kept(second, 90);
}

// The next graph may replay before an eager stream has read what an earlier one left.
TEST_F(MovesInCapturesTest, MemoryThatEagerWorkMayStillUseDoesNotMove) {
  const Range result = leave_result_in_use();
  free(result.ptr);
  begin();
  const std::size_t before = held();
  take(8 * kPageBytes);
  EXPECT_EQ(held(), before + 8);
  EXPECT_EQ(take(4 * kPageBytes).ptr, result.ptr) << "at its old address it serves at once";
  end();
}

TEST_F(MovesInCapturesTest, MemoryThatTheCaptureFreesDoesNotMoveWhileEagerWorkUsesIt) {
  const Range result = leave_result_in_use();
  begin();
  free(result.ptr);
  const std::size_t before = held();
  take(8 * kPageBytes);
  EXPECT_EQ(held(), before + 8);
  end();
}

// A busy device has enough points, so that an announcement records none.
TEST_F(MovesInCapturesTest, MemoryFromRightBeforeTheCaptureDoesNotCountAsItsOwn) {
  const DevicePtr busy = allocate(kPageBytes, side_);
  SimGpu::fill(side_, busy, 1, 1);
  const Range result = take(4 * kPageBytes);
  take(kPageBytes);
  while (device_->parts().timeline.points() < 2) {
    ASSERT_TRUE(device_->parts().timeline.record());
  }
  const Range eager = take(2 * kPageBytes);
  SimGpu::fill(side_, eager.ptr, 1, 1);
  SimGpu::fill(side_, result.ptr, 1, 1);
  const Epoch before_capture = device_->parts().timeline.now();
  begin();
  EXPECT_GT(device_->parts().timeline.now(), before_capture);
  free(eager.ptr);
  const std::size_t before = held();
  take(8 * kPageBytes);
  EXPECT_EQ(held(), before + 8);
  end();
}

TEST_F(MovesInCapturesTest, MemoryMovesOnceItsEagerUsesAreOver) {
  const Range result = leave_result_in_use();
  free(result.ptr);
  SimGpu::finish_all();
  begin();
  const std::size_t before = held();
  take(8 * kPageBytes);
  EXPECT_EQ(held(), before + 4);
  end();
}

// A branch of the graph may still read memory that its own stream frees.
TEST_F(MovesInCapturesTest, NothingMovesBesideABranchThatHasNotJoinedUnlessMemoryIsShort) {
  const DevicePtr known = allocate(kPageBytes, side_);
  begin();
  Graph graph;
  make_holes(graph);
  SimGpu::fork(stream_, side_);
  SimGpu::fill(side_, graph.kept[0].ptr, 1, 1);
  const std::size_t before = held();
  take(kPageBytes * 5);
  EXPECT_GE(held(), before + 5);
  device_->store().set_limit(held() * kPageBytes);
  const std::size_t full = held();
  take(kDead * kPageBytes);
  EXPECT_EQ(held(), full) << "the stream joins the branch rather than to run out of memory";
  EXPECT_EQ(device_->driver().capture_info(stream_).status, CaptureStatus::kActive);
  end();
  device_->store().set_limit(PageStore::kNoLimit);
  free(known);
}

// The driver refuses points during captures, so the host waits for the device.
TEST_F(MovesInCapturesTest, EagerRequestsBesideACaptureAreServedWhereMemoryIsShort) {
  const DevicePtr large = allocate(4 * kPageBytes, stream_);
  const DevicePtr between = allocate(kPageBytes, stream_);
  const DevicePtr small = allocate(2 * kPageBytes, stream_);
  const DevicePtr known = allocate(kPageBytes, side_);
  device_->set_captures(1);
  const StreamId capturing = SimGpu::make_stream();
  SimGpu::begin_capture(capturing);
  device_->store().set_limit(held() * kPageBytes);
  const StreamId unknown = SimGpu::make_stream();
  SimGpu::fill(unknown, large, 1, 1);
  free(large);
  const DevicePtr middle = allocate(3 * kPageBytes, stream_);
  free(small);
  const DriverCalls before = device_->driver().calls();
  const DevicePtr moved = allocate(3 * kPageBytes, stream_);
  EXPECT_EQ(device_->driver().calls().event_wait, before.event_wait + 1);
  EXPECT_EQ(device_->driver().capture_info(capturing).status, CaptureStatus::kActive);
  SimGpu::abandon_capture(capturing);
  EXPECT_EQ(SimGpu::api().stream_query(testing::raw(unknown)), CUDA_SUCCESS);
  device_->set_captures(0);
  device_->store().set_limit(PageStore::kNoLimit);
  for (const DevicePtr ptr : {middle, moved, known, between}) {
    free(ptr);
  }
}

TEST_F(MovesInCapturesTest, AllPagesReturnAfterTheLastRelease) {
  const Graph graph = capture();
  for (const Range& range : graph.kept) {
    free(range.ptr);
  }
  free(graph.last.ptr);
  device_->empty_cache();
  EXPECT_EQ(held(), kDead + kAlive);
  const std::uint64_t unmapped = device_->driver().calls().unmap;
  release_pool(kPool);
  device_->empty_cache();
  EXPECT_EQ(held(), 0U);
  EXPECT_EQ(SimGpu::used_pages(), 0U);
  // One call for each hole of old addresses, and one for the rest.
  EXPECT_GE(device_->driver().calls().unmap - unmapped, kHoles + 1);
}

TEST_F(MovesInCapturesTest, ACaptureForbidsToRemoveThem) {
  capture();
  free_everything();
  release_pool(kPool);
  begin(kOther);
  device_->empty_cache();
  end(kOther);
  device_->empty_cache();
  EXPECT_EQ(held(), 0U);
}

// Else another pool would get pages that the old addresses still reach.
TEST_F(MovesInCapturesTest, PagesStayWhileTheDriverKeepsTheirOldAddresses) {
  capture();
  free_everything();
  release_pool(kPool);
  FaultyApi::fail_only("cuMemUnmap", 1, CUDA_ERROR_UNKNOWN);
  device_->empty_cache();
  EXPECT_STREQ(FaultyApi::failed(), "cuMemUnmap");
  FaultyApi::reset();
  EXPECT_EQ(held(), kDead + kAlive);
  EXPECT_EQ(SimGpu::used_pages(), held());
  device_->report().check_invariants();
  device_->empty_cache();
  EXPECT_EQ(held(), 0U);
  EXPECT_EQ(SimGpu::used_pages(), 0U);
}

TEST_F(MovesInCapturesTest, AFailedCaptureLeavesAddressesToEarlierGraphs) {
  Graph first;
  begin();
  make_holes(first);
  end();
  begin();
  free(take(kDead * kPageBytes).ptr);
  end(kPool, Outcome::kFailed);
  device_->empty_cache();
  replay(first, 1);
  expect_kept(first, 1);
}

TEST_F(MovesInCapturesTest, PendingMemoryDoesNotMove) {
  begin();
  Graph graph;
  make_holes(graph);
  const Range used = take(2 * kPageBytes);  // in one of the holes
  EXPECT_TRUE(heap_of(used.ptr).record_stream(*addresses_.find(used.ptr), used.ptr, side_));
  free(used.ptr);
  const std::size_t before = held();
  graph.last = take(kDead * kPageBytes);
  EXPECT_EQ(held(), before + 2);
  end();
}

TEST_F(MovesInCapturesTest, OutsideOfCapturesAPoolWithAGraphGrows) {
  begin();
  end();
  Graph graph;
  make_holes(graph);
  const std::size_t before = held();
  graph.last = take(kDead * kPageBytes);
  EXPECT_EQ(held(), before + kDead);
}

TEST_F(MovesInCapturesTest, TreesRelyOnTheirAddresses) {
  Graph graph;
  begin();
  make_holes(graph);
  end();
  PoolCheckpoint checkpoint;
  ASSERT_EQ(take_checkpoint(*graphs_, kPool, &checkpoint), CheckpointError::kNone);
  const std::size_t before = held();
  begin();
  take(kDead * kPageBytes);
  end();
  EXPECT_EQ(held(), before + kDead);
}

// Both addresses of a page get other pages, those of a larger member.
TEST_F(MovesInCapturesTest, AMemberWithMoreScratchGivesBothAddressesItsOwn) {
  const auto [graph, other] = capture_beside_a_larger_member();
  ASSERT_EQ(graphs_->join(kGroup, kPool), SharingResult::kOk);
  device_->report().check_invariants();
  device_->empty_cache();  // of the pages that were behind the addresses before
  EXPECT_EQ(held(), kAlive + 2 * kDead);
  replay(graph, 1);
  for (const Range& range : graph.dead) {
    EXPECT_EQ(SimGpu::peek(range.ptr), SimGpu::peek(graph.last.ptr));
  }
  replay(other, 100);
  EXPECT_EQ(SimGpu::peek(graph.dead.front().ptr), 100);
  replay(graph, 1);
  Graph kept = graph;
  kept.last = {};
  expect_kept(kept, 1);
  // It leaves with pages of its own, which have two addresses again.
  ASSERT_EQ(graphs_->leave(kPool), SharingResult::kOk);
  device_->report().check_invariants();
  EXPECT_EQ(held(), kAlive + 3 * kDead);
  replay(graph, 1);
  replay(other, 100);
  EXPECT_EQ(SimGpu::peek(graph.dead.front().ptr), SimGpu::peek(graph.last.ptr));
  EXPECT_NE(SimGpu::peek(graph.last.ptr), 100);
}

TEST_F(MovesInCapturesTest, AMemberWithLessScratchGetsTheirs) {
  const Graph graph = capture();
  free(graph.last.ptr);
  ASSERT_EQ(graphs_->join(kGroup, kPool), SharingResult::kOk);
  ASSERT_EQ(graphs_->join(kGroup, kOther), SharingResult::kOk);
  const std::size_t before = held();
  begin(kOther);
  const Range other = take(kDead * kPageBytes, kOther);
  EXPECT_EQ(held(), before);
  free(other.ptr);
  end(kOther);
  free_everything();
  release_pool(kPool);
  release_pool(kOther);
  device_->empty_cache();
  EXPECT_EQ(held(), 0U);
}

TEST_F(MovesInCapturesTest, APoolEstimatesWhatItsMovedPagesWouldShare) {
  const Graph graph = capture();
  free(graph.last.ptr);
  begin(kOther);
  free(take(2 * kDead * kPageBytes, kOther).ptr);
  end(kOther);
  // A handle with two addresses counts once.
  EXPECT_EQ(graphs_->bytes_if_joined({{kPool}}).scratch, kDead * kPageBytes);
  const GroupBytes joined = graphs_->bytes_if_joined({{kPool, kOther}});
  EXPECT_EQ(joined.scratch, 3 * kDead * kPageBytes);
  EXPECT_EQ(joined.set, 2 * kDead * kPageBytes);
  ASSERT_EQ(graphs_->join(kGroup, kOther), SharingResult::kOk);
  ASSERT_EQ(graphs_->join(kGroup, kPool), SharingResult::kOk);
  EXPECT_EQ(graphs_->bytes_of(kGroup).set, joined.set);
}

TEST_F(MovesInCapturesTest, LiveMemoryIsNotShared) {
  const Graph graph = capture();
  EXPECT_EQ(graphs_->bytes_if_joined({{kPool}}).set, 0U);
  ASSERT_EQ(graphs_->join(kGroup, kPool), SharingResult::kOk);
  ASSERT_EQ(graphs_->join(kGroup, kOther), SharingResult::kOk);
  const std::size_t before = held();
  Graph other;
  begin(kOther);
  other.last = take(kDead * kPageBytes, kOther);
  EXPECT_EQ(held(), before + kDead);
  free(other.last.ptr);
  end(kOther);
  replay(graph, 1);
  replay(other, 100);
  expect_kept(graph, 1);
  // Once free, the memory serves captures of its own pool, and is released with it.
  free(graph.last.ptr);
  const std::size_t with_other = held();
  begin();
  free(take(kDead * kPageBytes).ptr);
  end();
  EXPECT_EQ(held(), with_other);
}

TEST_F(MovesInCapturesTest, ADriverThatRefusesToFoldLeavesEachGraphItsOwn) {
  for (const char* name : {"cuMemMap", "cuMemSetAccess", "cuMemUnmap"}) {
    for (int call = 1; call <= static_cast<int>(2 * kDead); ++call) {
      const auto [graph, other] = capture_beside_a_larger_member();
      FaultyApi::fail_only(name, call, CUDA_ERROR_UNKNOWN);
      try {
        static_cast<void>(graphs_->join(kGroup, kPool));
      } catch (const DriverError&) {  // NOLINT(bugprone-empty-catch): the state is what counts
      }
      FaultyApi::reset();
      device_->report().check_invariants();
      replay(other, 100);
      replay(graph, 1);
      for (const Range& range : graph.dead) {
        EXPECT_EQ(SimGpu::peek(range.ptr), SimGpu::peek(graph.last.ptr)) << name << call;
      }
      free_everything();
      for (const PoolId& pool : {kPool, kOther}) {
        release_pool(pool);
        device_->empty_cache();
        device_->pools().hold(pool);
      }
      EXPECT_EQ(held(), 0U);
    }
  }
}

class MovesInAnyOrderTest : public MovesInCapturesTest {
 protected:
  MovesInAnyOrderTest() : MovesInCapturesTest(GraphOrder::kAny) {}
};

TEST_F(MovesInAnyOrderTest, ALaterGraphKeepsNothingOnThem) {
  const Graph first = capture();
  free(first.last.ptr);
  Graph second;
  begin();
  second.last = take(kDead * kPageBytes);
  end();
  replay(second, 50);
  replay(first, 1);
  expect_kept(second, 50);
}

TEST_F(MovesInCapturesTest, ADriverThatRefusesLeavesThemWhereTheyWere) {
  begin();
  Graph graph;
  make_holes(graph);
  const std::size_t before = held();
  std::vector<DevicePtr> grown;
  for (const char* name : {"cuMemMap", "cuMemSetAccess"}) {
    for (int call = 1; call <= static_cast<int>(kDead); ++call) {
      for (const CUresult error : {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN}) {
        FaultyApi::fail_only(name, call, error);
        try {
          const AllocateResult result =
              graphs_->allocate(kPool, stream_, bytes(kDead * kPageBytes));
          if (result.ptr != kNull) {
            grown.push_back(result.ptr);
          }
        } catch (const DriverError&) {  // NOLINT(bugprone-empty-catch): the state is what counts
        }
        FaultyApi::reset();
        device_->report().check_invariants();
        for (const DevicePtr ptr : grown) {
          free(ptr);
        }
        grown.clear();
      }
    }
  }
  EXPECT_GE(held(), before);
  graph.last = take(kDead * kPageBytes);
  end();
  replay(graph, 1);
  expect_kept(graph, 1);
}

}  // namespace moves_in_captures_test
}  // namespace ferro
