// Pools of trees in a group: memory that their graphs carry to one another is private, the rest is
// shared.
#include "ferro/graph/checkpoint.h"
#include "ferro/graph/graph_memory.h"
#include "support/device_fixture.h"
#include "support/sanitizers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <vector>

namespace ferro {
namespace tree_pools_test {

using testing::bytes;
using testing::kPageBytes;
using testing::SimGpu;
using Outcome = GraphMemory::Outcome;

constexpr PoolId kTree{0, 21};
constexpr PoolId kOther{0, 22};
constexpr GroupId kGroup = 1;

struct Range {
  DevicePtr ptr{};
  std::size_t size = 0;
  unsigned char value = 0;  // its contents
};

struct Node {
  const Node* parent = nullptr;
  Range input;  // copied there before each replay
  std::vector<Range> scratch;
  std::vector<Range> results;
  std::vector<DevicePtr> live;  // after its replay
  PoolCheckpoint checkpoint;
};

// The ranges that a graph writes at each replay.
struct Graph {
  std::vector<Range> scratch;
  Range result;
};

class TreePoolsTest : public testing::DeviceFixture {
 protected:
  TreePoolsTest() : DeviceFixture(512) {
    device_->pools().hold(kTree);
    device_->pools().hold(kOther);
  }

  Range take(const PoolId& pool, std::size_t size) {
    const DevicePtr ptr = graphs_->allocate(pool, stream_, bytes(size)).ptr;
    EXPECT_NE(ptr, kNull);
    return {ptr, size};
  }
  void begin(const PoolId& pool) {
    device_->set_captures(1);
    EXPECT_EQ(graphs_->begin_capture(pool), SharingResult::kOk);
  }
  void end(const PoolId& pool) {
    device_->set_captures(0);
    EXPECT_EQ(graphs_->end_capture(pool, Outcome::kSucceeded), SharingResult::kOk);
    device_->report().check_invariants();
  }
  PoolCheckpoint checkpoint() {
    PoolCheckpoint taken;
    EXPECT_EQ(take_checkpoint(*graphs_, kTree, &taken), CheckpointError::kNone);
    device_->report().check_invariants();
    return taken;
  }
  // Records a graph as trees do: the input lies in the pool before the capture begins, and is freed
  // in it.
  Node record(const Node* parent, std::size_t scratch, std::size_t result,
              std::size_t input = kPageBytes) {
    Node node;
    node.parent = parent;
    node.input = take(kTree, input);
    begin(kTree);
    // Each block is reused within the capture.
    node.scratch = {take(kTree, scratch / 2), take(kTree, scratch / 2)};
    node.results = {take(kTree, result)};
    free(node.input.ptr);
    for (const Range& range : node.scratch) {
      free(range.ptr);
    }
    end(kTree);
    node.checkpoint = checkpoint();
    for (const auto& heap : node.checkpoint.heaps) {
      for (const BlockView& block : heap.live) {
        node.live.push_back(block.ptr);
      }
    }
    return node;
  }
  void go_to(const Node& node) {
    CheckpointChange change;
    ASSERT_EQ(restore_checkpoint(*graphs_, node.checkpoint, &change), CheckpointError::kNone);
    device_->report().check_invariants();
  }
  Graph capture(std::size_t scratch, std::size_t result) {
    Graph graph;
    begin(kOther);
    graph.scratch = {take(kOther, scratch)};
    graph.result = take(kOther, result);
    free(graph.scratch[0].ptr);
    end(kOther);
    return graph;
  }
  void write(Range& range, unsigned char value) {
    SimGpu::fill(stream_, range.ptr, value, range.size);
    range.value = value;
  }
  void replay(Graph& graph, unsigned char value) {
    for (Range& range : graph.scratch) {
      write(range, value);
    }
    write(graph.result, value);
    SimGpu::finish_all();
  }
  void replay(Node& node, unsigned char value) {
    for (Range& range : node.scratch) {
      write(range, value);
    }
    for (Range& range : node.results) {
      write(range, value);
    }
    SimGpu::finish_all();
  }
  static void expect_held(const Range& range) {
    for (std::size_t at = 0; at < range.size; at += 512) {
      ASSERT_EQ(SimGpu::peek(range.ptr + at), range.value);
    }
    ASSERT_EQ(SimGpu::peek(range.ptr + (range.size - 1)), range.value);
  }
  void join_both() {
    ASSERT_EQ(graphs_->join(kGroup, kOther), SharingResult::kOk);
    ASSERT_EQ(graphs_->join(kGroup, kTree), SharingResult::kOk);
  }
  std::size_t set_pages() { return graphs_->bytes_of(kGroup).set / kPageBytes; }
  std::size_t scratch_pages() { return graphs_->bytes_of(kGroup).scratch / kPageBytes; }
  std::size_t held() {
    device_->empty_cache();
    return device_->report().held_bytes() / kPageBytes;
  }
};

TEST_F(TreePoolsTest, ATreeThatJoinsGivesWhatItsGraphsDoNotCarry) {
  Graph other = capture(16 * kPageBytes, kPageBytes);
  Node root = record(nullptr, 8 * kPageBytes, 2 * kPageBytes);
  EXPECT_EQ(held(), 17U + 11U);
  join_both();
  EXPECT_EQ(set_pages(), 16U);
  EXPECT_EQ(scratch_pages(), 16U + 8U);
  EXPECT_EQ(held(), 17U + 3U);  // its input and its result
  write(root.input, 1);
  replay(other, 2);
  expect_held(root.input);
  replay(root, 3);
  replay(other, 4);
  expect_held(root.results[0]);
  expect_held(other.result);
}

TEST_F(TreePoolsTest, ARecordingGivesItsScratchAfterItsCheckpoint) {
  ASSERT_TRUE(graphs_->expect_checkpoints(kTree));
  join_both();
  Graph other = capture(16 * kPageBytes, kPageBytes);
  Node root = record(nullptr, 8 * kPageBytes, 2 * kPageBytes);
  const Node left = record(&root, 16 * kPageBytes, kPageBytes);
  go_to(root);
  Node right = record(&root, 4 * kPageBytes, kPageBytes);
  EXPECT_EQ(set_pages(), 16U);
  // One page of the last scratch lies where the sibling has its result.
  EXPECT_EQ(scratch_pages(), 16U + 8U + 16U + 3U);
  EXPECT_EQ(held(), 17U + 3U + 1U + 1U);
  replay(root, 1);
  replay(other, 2);
  replay(right, 3);
  replay(other, 4);
  for (const Range& range : {root.results[0], right.results[0], other.result}) {
    expect_held(range);
  }
}

// A recording that no checkpoint followed keeps its results, whatever is restored afterwards.
TEST_F(TreePoolsTest, ResultsBeforeARestoreAreCarried) {
  ASSERT_TRUE(graphs_->expect_checkpoints(kTree));
  const Node root = record(nullptr, 8 * kPageBytes, 2 * kPageBytes);
  begin(kTree);
  const Range result = take(kTree, 16 * kPageBytes);
  end(kTree);
  go_to(root);
  checkpoint();
  join_both();
  EXPECT_EQ(set_pages(), 8U) << "the root's scratch";
  Graph other = capture(16 * kPageBytes, kPageBytes);
  replay(other, 2);
  SimGpu::fill(stream_, result.ptr, 1, result.size);
  SimGpu::finish_all();
  expect_held(other.result);
}

TEST_F(TreePoolsTest, AllocationsOfTheProgramHaveTheirOwnPages) {
  join_both();
  ASSERT_TRUE(graphs_->expect_checkpoints(kTree));
  Graph other = capture(16 * kPageBytes, kPageBytes);
  Node root = record(nullptr, 8 * kPageBytes, 2 * kPageBytes);
  Range warm = take(kTree, 12 * kPageBytes);
  write(warm, 7);
  replay(other, 1);
  replay(root, 2);
  expect_held(warm);
  free(warm.ptr);
}

TEST_F(TreePoolsTest, AFirstRecordingMayHaveBorrowed) {
  join_both();
  Graph other = capture(16 * kPageBytes, kPageBytes);
  Node root = record(nullptr, 8 * kPageBytes, 2 * kPageBytes);
  const std::size_t shared = scratch_pages();
  EXPECT_GT(shared, 16U);
  Node child = record(&root, 4 * kPageBytes, kPageBytes);
  EXPECT_EQ(scratch_pages(), shared + 4U);
  EXPECT_EQ(set_pages(), 16U);
  go_to(root);
  go_to(child);
  replay(root, 1);
  replay(other, 2);
  write(child.input, 3);
  replay(other, 4);
  expect_held(child.input);
  replay(child, 5);
  for (const Range& range : {root.results[0], child.results[0], other.result}) {
    expect_held(range);
  }
}

TEST_F(TreePoolsTest, NoCheckpointIsTakenOfWhatIsBorrowed) {
  join_both();
  begin(kTree);
  const Range result = take(kTree, kPageBytes);
  PoolCheckpoint refused;
  EXPECT_EQ(take_checkpoint(*graphs_, kTree, &refused), CheckpointError::kBorrows);
  end(kTree);
  EXPECT_EQ(checkpoint().heaps.size(), 1U);
  free(result.ptr);
}

TEST_F(TreePoolsTest, ScratchIsSharedLaterWhereTheHostMustNotWait) {
  join_both();
  ASSERT_TRUE(graphs_->expect_checkpoints(kTree));
  begin(kTree);
  free(take(kTree, 8 * kPageBytes).ptr);
  end(kTree);
  device_->set_captures(1);
  checkpoint();
  device_->set_captures(0);
  EXPECT_EQ(set_pages(), 0U);
  device_->empty_cache();
  EXPECT_EQ(set_pages(), 8U);
}

// Two parts of one graph's scratch could get the same pages.
TEST_F(TreePoolsTest, ScratchThatWasNotSharedAtOnceIsNeverShared) {
  ASSERT_TRUE(graphs_->expect_checkpoints(kTree));
  begin(kTree);
  Range first = take(kTree, 4 * kPageBytes);
  Range second = take(kTree, 4 * kPageBytes);
  free(first.ptr);
  free(second.ptr);
  end(kTree);
  const Range early = take(kTree, 4 * kPageBytes);  // where the graph has a part
  join_both();
  EXPECT_EQ(scratch_pages(), 4U);
  free(early.ptr);
  record(nullptr, 8 * kPageBytes, kPageBytes);
  write(first, 1);
  write(second, 2);
  SimGpu::finish_all();
  expect_held(first);
  expect_held(second);
}

TEST_F(TreePoolsTest, OwnScratchOfABorrowingGraphIsNeverShared) {
  join_both();
  free(take(kTree, kPageBytes / 4).ptr);
  begin(kTree);
  Range own = take(kTree, kPageBytes / 8);
  Range borrowed = take(kTree, kPageBytes);
  free(own.ptr);
  free(borrowed.ptr);
  end(kTree);
  checkpoint();
  record(nullptr, 4 * kPageBytes, kPageBytes);
  write(own, 1);
  write(borrowed, 2);
  SimGpu::finish_all();
  expect_held(own);
  expect_held(borrowed);
}

TEST_F(TreePoolsTest, WithoutCheckpointsTheCarriedMemoryIsUnknown) {
  for (int i = 0; i < 2; ++i) {
    begin(kTree);
    const Range scratch = take(kTree, 4 * kPageBytes);
    take(kTree, kPageBytes);
    free(scratch.ptr);
    end(kTree);
  }
  checkpoint();
  join_both();
  EXPECT_EQ(set_pages(), 0U);
  record(nullptr, 6 * kPageBytes, kPageBytes);
  EXPECT_EQ(set_pages(), 3U) << "existing pages serve first";
}

TEST_F(TreePoolsTest, ATreeThatLeavesHasScratchOfItsOwn) {
  Graph other = capture(16 * kPageBytes, kPageBytes);
  Node root = record(nullptr, 8 * kPageBytes, 2 * kPageBytes);
  join_both();
  ASSERT_EQ(graphs_->leave(kTree), SharingResult::kOk);
  EXPECT_EQ(held(), 17U + 11U);
  replay(root, 1);
  replay(other, 2);
  expect_held(root.scratch[0]);
  Node child = record(&root, 4 * kPageBytes, kPageBytes);
  EXPECT_EQ(held(), 17U + 11U + 5U);
  ASSERT_EQ(graphs_->join(kGroup, kTree), SharingResult::kOk);
  EXPECT_EQ(set_pages(), 16U);
  EXPECT_EQ(held(), 17U + 3U + 1U);
  replay(child, 3);
  replay(other, 4);
  expect_held(child.results[0]);
}

TEST_F(TreePoolsTest, AllMemoryIsReleasedWithTheLastGraph) {
  ASSERT_TRUE(graphs_->expect_checkpoints(kTree));
  join_both();
  const Node root = record(nullptr, 8 * kPageBytes, 2 * kPageBytes);
  free(root.results[0].ptr);
  ASSERT_TRUE(device_->pools().release(kTree));
  graphs_->on_last_release(kTree);
  EXPECT_EQ(held(), 0U);
  CheckpointChange change;
  EXPECT_EQ(restore_checkpoint(*graphs_, root.checkpoint, &change), CheckpointError::kUnknownPool);
  device_->pools().hold(kTree);
  EXPECT_EQ(restore_checkpoint(*graphs_, root.checkpoint, &change), CheckpointError::kPagesGone);
}

TEST_F(TreePoolsTest, AnEstimateEqualsTheResultOfJoining) {
  capture(16 * kPageBytes, kPageBytes);
  record(nullptr, 8 * kPageBytes, 2 * kPageBytes);
  const std::array pools = {kTree, kOther};
  const GroupBytes expected = graphs_->bytes_if_joined(pools);
  join_both();
  EXPECT_EQ(graphs_->bytes_of(kGroup).set, expected.set);
  EXPECT_EQ(graphs_->bytes_of(kGroup).scratch, expected.scratch);
}

class TreePoolsRandom : public TreePoolsTest, public ::testing::WithParamInterface<unsigned> {};

// A tree grows and is walked along its paths, while other graphs replay at any moment and pools
// join and leave. Live memory on a path, and inputs until their graph has run, keep their contents.
TEST_P(TreePoolsRandom, PathsHoldWhatTheirGraphsWrote) {
  std::mt19937 random(GetParam());
  const auto below = [&random](std::size_t n) { return random() % n; };
  const auto size = [&] {
    return below(3) == 0 ? (1 + below(3000)) * 512 : (1 + below(8)) * kPageBytes;
  };
  std::vector<std::unique_ptr<Node>> nodes;
  std::vector<Graph> graphs;
  unsigned char value = 0;
  const auto others = [&] {
    for (std::size_t i = below(3); i > 0 && !graphs.empty(); --i) {
      replay(graphs[below(graphs.size())], ++value);
    }
  };
  const auto check = [&](const std::vector<Node*>& path) {
    for (const Node* node : path) {
      for (const Range& result : node->results) {
        if (std::ranges::count(path.back()->live, result.ptr) != 0) {
          expect_held(result);
        }
      }
    }
    for (const Graph& graph : graphs) {
      expect_held(graph.result);
    }
  };
  const auto walk_to = [&](Node* last) {
    std::vector<Node*> path;
    for (const Node* node = last; node != nullptr; node = node->parent) {
      path.insert(path.begin(),
                  std::ranges::find(nodes, node, [](const auto& n) { return n.get(); })->get());
    }
    std::vector<Node*> done;
    for (Node* node : path) {
      write(node->input, ++value);
      SimGpu::finish_all();
      others();
      expect_held(node->input);
      replay(*node, ++value);
      done.push_back(node);
      check(done);
      others();
      check(done);
    }
  };
  for (int step = 0; step < 60; ++step) {
    const std::size_t what = below(10);
    if (what < 3 && nodes.size() < 12) {
      Node* parent = nodes.empty() || below(4) == 0 ? nullptr : nodes[below(nodes.size())].get();
      if (parent != nullptr) {
        go_to(*parent);
      } else {
        PoolCheckpoint empty{.pool = kTree, .heaps = {}};
        CheckpointChange change;
        ASSERT_EQ(restore_checkpoint(*graphs_, empty, &change), CheckpointError::kNone);
      }
      if (below(3) == 0) {
        free(take(kTree, size()).ptr);  // a run that warms up
      }
      nodes.push_back(std::make_unique<Node>(record(parent, 2 * size(), size(), size())));
    } else if (what < 4 && graphs.size() < 5) {
      // Before the pool is a member, the scratch of a later graph may lie where earlier ones keep
      // results.
      if (graphs_->join(kGroup, kOther) == SharingResult::kOk) {
        graphs.push_back(capture(size(), size()));
        replay(graphs.back(), ++value);
      }
    } else if (what < 5) {
      ASSERT_EQ(graphs_->join(kGroup, kTree), SharingResult::kOk);
    } else if (what < 6 && below(2) == 0) {
      static_cast<void>(graphs_->leave(below(2) == 0 ? kTree : kOther));
    } else if (what < 7) {
      device_->empty_cache();
    } else if (!nodes.empty()) {
      walk_to(nodes[below(nodes.size())].get());
    }
    device_->report().check_invariants();
  }
}

// A seed takes up to 19 s under the address sanitizer, and less than one without.
INSTANTIATE_TEST_SUITE_P(Seeds, TreePoolsRandom,
                         ::testing::Range(1U, kAddressSanitizer ? 3U : 31U));

}  // namespace tree_pools_test
}  // namespace ferro
