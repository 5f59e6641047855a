// Scratch that graphs share: the memory of a group, and the exclusive ownership of live memory.
#include "ferro/driver/error.h"
#include "ferro/graph/graph_memory.h"
#include "support/device_fixture.h"
#include "support/sim_gpu.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace ferro {
namespace exclusive_groups_test {

using testing::bytes;
using testing::kPageBytes;
using testing::SimGpu;
using Outcome = GraphMemory::Outcome;

constexpr std::array kPools = {PoolId{0, 11}, PoolId{0, 12}, PoolId{0, 13}};
constexpr GroupId kGroup = 1;

// The memory that a graph writes at each replay, and the live part of it.
struct Graph {
  PoolId pool;
  struct Range {
    DevicePtr ptr;
    std::size_t size;
  };
  std::vector<Range> writes;
  std::vector<Range> results;
};

class ExclusiveGroupsTest : public testing::DeviceFixture {
 protected:
  explicit ExclusiveGroupsTest(const HandleRules& handles = {},
                               const std::string& settings = SimGpu::kManual)
      : DeviceFixture(512, settings, AllocatorConfig{.handles = handles}) {
    for (const PoolId& pool : kPools) {
      device_->pools().hold(pool);
    }
  }

  // `sizes` are in pages; every other block is freed in between.
  Graph capture(const PoolId& pool, const std::vector<std::size_t>& sizes) {
    Graph graph{pool, {}, {}};
    device_->set_captures(1);
    EXPECT_EQ(graphs_->begin_capture(pool), SharingResult::kOk);
    DevicePtr scratch = kNull;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const Graph::Range range = take(pool, sizes[i]);
      graph.writes.push_back(range);
      if (i % 2 == 1) {
        graph.results.push_back(range);
      } else {
        if (scratch != kNull) {
          free(scratch);
        }
        scratch = range.ptr;
      }
    }
    if (scratch != kNull) {
      free(scratch);
    }
    EXPECT_EQ(graphs_->end_capture(pool, Outcome::kSucceeded), SharingResult::kOk);
    device_->set_captures(0);
    device_->report().check_invariants();
    return graph;
  }
  Graph::Range take(const PoolId& pool, std::size_t size) {
    const DevicePtr ptr = graphs_->allocate(pool, stream_, bytes(size)).ptr;
    EXPECT_NE(ptr, kNull);
    return {ptr, size};
  }
  void replay(const Graph& graph, unsigned char value) {
    for (const Graph::Range& range : graph.writes) {
      SimGpu::fill(stream_, range.ptr, value, range.size);
    }
    SimGpu::finish_all();
  }
  static void expect_bytes(const Graph& graph, unsigned char value) {
    for (const Graph::Range& range : graph.results) {
      for (std::size_t at = 0; at < range.size; at += kPageBytes / 4) {
        ASSERT_EQ(SimGpu::peek(range.ptr + at), value);
      }
      ASSERT_EQ(SimGpu::peek(range.ptr + (range.size - 1)), value);
    }
  }
  void join_all() {
    for (const PoolId& pool : kPools) {
      ASSERT_EQ(graphs_->join(kGroup, pool), SharingResult::kOk);
    }
  }
  std::size_t set_pages() { return graphs_->bytes_of(kGroup).set / kPageBytes; }
  std::size_t held() { return device_->report().held_bytes() / kPageBytes; }
  void release_pool(const PoolId& pool) {
    ASSERT_TRUE(device_->pools().release(pool));
    graphs_->on_last_release(pool);
    device_->pools().hold(pool);
  }
};

TEST_F(ExclusiveGroupsTest, CapturesOfAGroupCostTheirResultsAndTheLargestScratch) {
  join_all();
  std::vector<Graph> graphs;
  for (const std::size_t pages : {8, 16, 4}) {
    graphs.push_back(capture(kPools[graphs.size()], {pages * kPageBytes, 2 * kPageBytes}));
  }
  device_->empty_cache();
  EXPECT_EQ(set_pages(), 16U);
  EXPECT_EQ(held(), 16U + 3 * 2U);
  EXPECT_EQ(graphs_->bytes_of(kGroup).scratch, (8 + 16 + 4) * kPageBytes);
}

TEST_F(ExclusiveGroupsTest, TheSameOfPoolsThatJoinAfterTheirCaptures) {
  std::vector<Graph> graphs;
  for (const std::size_t pages : {8, 16, 4}) {
    graphs.push_back(capture(kPools[graphs.size()], {pages * kPageBytes, 2 * kPageBytes}));
  }
  EXPECT_EQ(held(), 8U + 16U + 4U + 3 * 2U);
  join_all();
  device_->empty_cache();
  EXPECT_EQ(held(), 16U + 3 * 2U);
  for (std::size_t i = 0; i < graphs.size(); ++i) {
    replay(graphs[i], static_cast<unsigned char>(i + 1));
  }
  for (std::size_t i = 0; i < graphs.size(); ++i) {
    expect_bytes(graphs[i], static_cast<unsigned char>(i + 1));
  }
}

TEST_F(ExclusiveGroupsTest, APoolThatLeavesHasScratchOfItsOwn) {
  join_all();
  const Graph a = capture(kPools[0], {8 * kPageBytes, kPageBytes, 8 * kPageBytes});
  const Graph b = capture(kPools[1], {8 * kPageBytes, kPageBytes});
  ASSERT_EQ(graphs_->leave(kPools[1]), SharingResult::kOk);
  device_->report().check_invariants();
  replay(a, 1);
  for (const Graph::Range& range : b.writes) {
    SimGpu::fill(stream_, range.ptr, 2, range.size);
  }
  SimGpu::finish_all();
  EXPECT_EQ(SimGpu::peek(a.writes[0].ptr), 1);
  EXPECT_EQ(SimGpu::peek(b.writes[0].ptr), 2);
  EXPECT_EQ(graphs_->join(kGroup, kPools[1]), SharingResult::kOk);
  device_->report().check_invariants();
}

TEST_F(ExclusiveGroupsTest, WhatDiesAfterItsCaptureServesLaterOnesAtOtherAddresses) {
  ASSERT_EQ(graphs_->join(kGroup, kPools[0]), SharingResult::kOk);
  const Graph a = capture(kPools[0], {kPageBytes, 4 * kPageBytes});
  free(a.results[0].ptr);
  const std::size_t before = held();
  const Graph b = capture(kPools[0], {4 * kPageBytes});
  EXPECT_EQ(held(), before);
  for (const Graph::Range& range : b.writes) {
    EXPECT_FALSE(range.ptr + range.size > a.results[0].ptr &&
                 range.ptr < a.results[0].ptr + a.results[0].size);
  }
}

TEST_F(ExclusiveGroupsTest, WhatDiesInACaptureIsNotGivenToIt) {
  ASSERT_EQ(graphs_->join(kGroup, kPools[0]), SharingResult::kOk);
  const Graph a = capture(kPools[0], {kPageBytes, 4 * kPageBytes});
  ASSERT_EQ(graphs_->begin_capture(kPools[0]), SharingResult::kOk);
  free(a.results[0].ptr);
  const Graph::Range range = take(kPools[0], 4 * kPageBytes);
  EXPECT_NE(range.ptr, a.results[0].ptr);
  EXPECT_EQ(graphs_->end_capture(kPools[0], Outcome::kSucceeded), SharingResult::kOk);
}

TEST_F(ExclusiveGroupsTest, AFailedCaptureLeavesNothing) {
  join_all();
  const Graph a = capture(kPools[0], {8 * kPageBytes, kPageBytes});
  const std::size_t before = held();
  ASSERT_EQ(graphs_->begin_capture(kPools[1]), SharingResult::kOk);
  free(take(kPools[1], 6 * kPageBytes).ptr);
  const DevicePtr kept = take(kPools[1], 2 * kPageBytes).ptr;
  EXPECT_EQ(graphs_->end_capture(kPools[1], Outcome::kFailed), SharingResult::kOk);
  device_->report().check_invariants();
  // A kept tensor of the failed capture shares no page with others.
  SimGpu::fill(stream_, kept, 9, 2 * kPageBytes);
  replay(a, 1);
  EXPECT_EQ(SimGpu::peek(kept), 9);
  free(kept);
  release_pool(kPools[1]);
  device_->empty_cache();
  EXPECT_LE(held(), before + 2);
}

TEST_F(ExclusiveGroupsTest, ScratchOfAFailedCaptureLeavesTheGroupAtOnce) {
  join_all();
  capture(kPools[0], {8 * kPageBytes, kPageBytes});
  const GroupBytes before = graphs_->bytes_of(kGroup);
  ASSERT_EQ(graphs_->begin_capture(kPools[1]), SharingResult::kOk);
  free(take(kPools[1], 20 * kPageBytes).ptr);
  EXPECT_EQ(graphs_->end_capture(kPools[1], Outcome::kFailed), SharingResult::kOk);
  device_->report().check_invariants();
  EXPECT_EQ(graphs_->bytes_of(kGroup).set, before.set);
  EXPECT_EQ(graphs_->bytes_of(kGroup).scratch, before.scratch);
}

TEST_F(ExclusiveGroupsTest, APoolIsAMemberOfOneGroup) {
  join_all();
  EXPECT_EQ(graphs_->join(2, kPools[0]), SharingResult::kMember);
  EXPECT_EQ(graphs_->leave({0, 99}), SharingResult::kNoMember);
}

TEST_F(ExclusiveGroupsTest, APoolEstimatesWhatJoiningWouldShare) {
  std::vector<Graph> graphs;
  for (const std::size_t pages : {8, 16, 4}) {
    graphs.push_back(capture(kPools[graphs.size()], {pages * kPageBytes, 2 * kPageBytes}));
  }
  const GroupBytes joined = graphs_->bytes_if_joined(kPools);
  EXPECT_EQ(joined.set, 16 * kPageBytes);
  EXPECT_EQ(joined.scratch, (8 + 16 + 4) * kPageBytes);
  join_all();
  EXPECT_EQ(set_pages(), 16U);
  EXPECT_EQ(graphs_->bytes_if_joined(kPools).scratch, 0U);
}

TEST_F(ExclusiveGroupsTest, ACaptureIntoAPoolBesideTheGroupFillsItsPages) {
  ASSERT_EQ(graphs_->join(kGroup, kPools[0]), SharingResult::kOk);
  device_->set_captures(1);
  const std::size_t size = kPageBytes / 2 + kPageBytes;
  EXPECT_EQ(graphs_->allocate(kPools[1], stream_, bytes(size)).size, size);
  ASSERT_EQ(graphs_->begin_capture(kPools[0]), SharingResult::kOk);
  EXPECT_EQ(graphs_->allocate(kPools[0], stream_, bytes(size)).size, 2 * kPageBytes);
  EXPECT_EQ(graphs_->end_capture(kPools[0], Outcome::kFailed), SharingResult::kOk);
  device_->set_captures(0);
}

TEST_F(ExclusiveGroupsTest, NothingIsSharedWhileACaptureRuns) {
  device_->set_captures(1);
  EXPECT_EQ(graphs_->join(kGroup, kPools[0]), SharingResult::kCapturing);
  device_->set_captures(0);
}

TEST_F(ExclusiveGroupsTest, ACaptureOfALibraryIsNotCalledTheProgramsOwn) {
  CUstream blocking = nullptr;
  SimGpu::expect(SimGpu::api().stream_create(&blocking, CU_STREAM_DEFAULT));
  const StreamId stream{reinterpret_cast<std::uint64_t>(blocking)};
  SimGpu::begin_capture(stream);
  EXPECT_EQ(graphs_->join(kGroup, kPools[0]), SharingResult::kBusy);
  SimGpu::end_capture(stream);
  EXPECT_EQ(graphs_->join(kGroup, kPools[0]), SharingResult::kOk);
}

TEST_F(ExclusiveGroupsTest, ResultsThatFindNoPagesEndTheCaptureWithAnError) {
  join_all();
  const Graph a = capture(kPools[0], {8 * kPageBytes, kPageBytes});
  device_->store().set_limit(device_->report().held_bytes());
  ASSERT_EQ(graphs_->begin_capture(kPools[1]), SharingResult::kOk);
  const DevicePtr kept = take(kPools[1], 4 * kPageBytes).ptr;
  EXPECT_EQ(graphs_->end_capture(kPools[1], Outcome::kSucceeded), SharingResult::kOutOfMemory);
  device_->report().check_invariants();
  EXPECT_EQ(graphs_->begin_capture(kPools[1]), SharingResult::kOutOfMemory);
  free(kept);
  device_->store().set_limit(PageStore::kNoLimit);
  EXPECT_EQ(graphs_->begin_capture(kPools[1]), SharingResult::kOk);
  EXPECT_EQ(graphs_->end_capture(kPools[1], Outcome::kSucceeded), SharingResult::kOk);
}

// The pool shared pages with pools that joined the group after it had left.
TEST_F(ExclusiveGroupsTest, APoolThatLeavesAloneSharesNothingWithLaterMembers) {
  ASSERT_EQ(graphs_->join(kGroup, kPools[0]), SharingResult::kOk);
  const Graph a = capture(kPools[0], {8 * kPageBytes, kPageBytes});
  ASSERT_EQ(graphs_->leave(kPools[0]), SharingResult::kOk);
  ASSERT_EQ(graphs_->join(kGroup, kPools[1]), SharingResult::kOk);
  const Graph b = capture(kPools[1], {8 * kPageBytes, kPageBytes});
  replay(a, 1);
  SimGpu::fill(stream_, b.writes[0].ptr, 2, b.writes[0].size);
  SimGpu::finish_all();
  EXPECT_EQ(SimGpu::peek(a.writes[0].ptr), 1);
}

// The scratch of the graph got the pages of its own result, which was free by then. A graph may
// read one after it has written the other.
TEST_F(ExclusiveGroupsTest, AGraphHasItsScratchAndWhatDiedAfterItsCaptureOnPagesOfTheirOwn) {
  ASSERT_EQ(graphs_->join(kGroup, kPools[0]), SharingResult::kOk);
  const Graph a = capture(kPools[0], {kPageBytes, kPageBytes});
  free(a.results[0].ptr);
  ASSERT_EQ(graphs_->begin_capture(kPools[0]), SharingResult::kOk);
  ASSERT_EQ(graphs_->end_capture(kPools[0], Outcome::kSucceeded), SharingResult::kOk);
  ASSERT_EQ(graphs_->join(2, kPools[0]), SharingResult::kOk);
  SimGpu::fill(stream_, a.writes[0].ptr, 1, kPageBytes);
  SimGpu::fill(stream_, a.writes[1].ptr, 2, kPageBytes);
  SimGpu::finish_all();
  EXPECT_EQ(SimGpu::peek(a.writes[0].ptr), 1);
}

// Pages of the pool went to the default pool, and the next replay wrote to unmapped addresses.
TEST_F(ExclusiveGroupsTest, APoolLendsNothingThatItsGraphsWrite) {
  join_all();
  const Graph a = capture(kPools[0], {kPageBytes, 8 * kPageBytes});
  device_->pools().set_use_on_oom(kPools[0], true);
  free(a.results[0].ptr);
  device_->store().set_limit(device_->report().held_bytes());
  EXPECT_EQ(try_allocate(4 * kPageBytes, stream_, kDefaultPool).ptr, kNull);
  replay(a, 1);
  EXPECT_EQ(SimGpu::peek(a.writes[1].ptr), 1);
}

// The handle was exchanged at the end of the capture, after other processes had opened the old one.
TEST_F(ExclusiveGroupsTest, WhatACaptureBorrowedIsNotSharedWithOthers) {
  join_all();
  const Graph a = capture(kPools[0], {8 * kPageBytes, kPageBytes});
  ASSERT_EQ(graphs_->begin_capture(kPools[1]), SharingResult::kOk);
  const DevicePtr kept = take(kPools[1], 2 * kPageBytes).ptr;
  Span& span = *addresses_.find(kept);
  SharedRange range;
  EXPECT_EQ(device_->export_block(span, kept, &range), ExportResult::kBorrowed);
  EXPECT_FALSE(device_->pin(span, kept, 2 * kPageBytes));
  EXPECT_EQ(graphs_->end_capture(kPools[1], Outcome::kSucceeded), SharingResult::kOk);
  EXPECT_EQ(device_->export_block(span, kept, &range), ExportResult::kOk);
  device_->report().check_invariants();
}

class UnsettledTest : public ExclusiveGroupsTest {
 protected:
  // A capture whose result has no pages of its own; `kept_` is that result.
  void SetUp() override {
    join_all();
    graph_ = capture(kPools[0], {8 * kPageBytes, kPageBytes});
    device_->empty_cache();
    device_->store().set_limit(device_->report().held_bytes());
    ASSERT_EQ(graphs_->begin_capture(kPools[1]), SharingResult::kOk);
    kept_ = take(kPools[1], 4 * kPageBytes).ptr;
    ASSERT_EQ(graphs_->end_capture(kPools[1], Outcome::kSucceeded), SharingResult::kOutOfMemory);
  }

  Graph graph_;
  DevicePtr kept_{};
};

// The memory was reused together with the pages of another graph.
TEST_F(UnsettledTest, MemoryThatItFreesServesNoRequest) {
  free(kept_);
  device_->store().set_limit(PageStore::kNoLimit);
  const Graph::Range range = take(kPools[1], 4 * kPageBytes);
  SimGpu::fill(stream_, range.ptr, 7, range.size);
  SimGpu::finish_all();
  replay(graph_, 1);
  EXPECT_EQ(SimGpu::peek(range.ptr), 7);
}

// Pages of the other graph went to the store with those of the pool.
TEST_F(UnsettledTest, NothingIsLeftOfAnUnheldPool) {
  free(kept_);
  release_pool(kPools[1]);
  ASSERT_TRUE(device_->pools().release(kPools[1]));
  device_->empty_cache();
  device_->report().check_invariants();
  EXPECT_EQ(held(), 8U + 1U);
  EXPECT_EQ(device_->pools().use_count(kPools[1]), -1);
  replay(graph_, 1);
  expect_bytes(graph_, 1);
}

// A failed capture unmapped scratch while replays of destroyed graphs could still use it.
TEST_F(ExclusiveGroupsTest, AFailedCaptureUnmapsNoScratch) {
  join_all();
  const Graph a = capture(kPools[0], {8 * kPageBytes, kPageBytes});
  free(a.results[0].ptr);
  release_pool(kPools[0]);
  SimGpu::fill(stream_, a.writes[0].ptr, 1, 8 * kPageBytes);
  ASSERT_EQ(graphs_->begin_capture(kPools[0]), SharingResult::kOk);
  const std::uint64_t unmaps = SimGpu::calls("cuMemUnmap");
  ASSERT_EQ(graphs_->end_capture(kPools[0], Outcome::kFailed), SharingResult::kOk);
  EXPECT_EQ(SimGpu::calls("cuMemUnmap"), unmaps);
}

// The second join searched for the pool among those that this device knows.
TEST_F(ExclusiveGroupsTest, APoolOfOtherDevicesJoinsAndLeavesAndJoins) {
  const PoolId elsewhere{0, 99};
  ASSERT_EQ(graphs_->join(kGroup, kPools[0]), SharingResult::kOk);
  ASSERT_EQ(graphs_->join(kGroup, elsewhere), SharingResult::kOk);
  ASSERT_EQ(graphs_->leave(elsewhere), SharingResult::kOk);
  EXPECT_EQ(graphs_->join(kGroup, elsewhere), SharingResult::kOk);
}

// Free memory of the pool was taken for scratch of graphs, and never released.
TEST_F(ExclusiveGroupsTest, AnUnheldPoolContributesNothing) {
  free(take(kPools[0], 4 * kPageBytes).ptr);
  ASSERT_TRUE(device_->pools().release(kPools[0]));
  ASSERT_EQ(graphs_->join(kGroup, kPools[0]), SharingResult::kOk);
  EXPECT_EQ(set_pages(), 0U);
  device_->empty_cache();
  EXPECT_EQ(held(), 0U);
}

class ExclusiveGroupsRandom : public ExclusiveGroupsTest,
                              public ::testing::WithParamInterface<unsigned> {
 protected:
  ExclusiveGroupsRandom() : ExclusiveGroupsTest(testing::handle_rules(GetParam())) {}
};

// Pools join and leave, and graphs of three pools are captured, replayed and destroyed, in any
// order. After a replay every byte of every result has the value that its own graph wrote last.
TEST_P(ExclusiveGroupsRandom, ResultsAreWhatTheirGraphsWrote) {
  std::mt19937 random(GetParam());
  const auto below = [&random](std::size_t n) { return random() % n; };
  struct Known {
    Graph graph;
    int value = -1;  // of its last replay
  };
  std::vector<Known> graphs;
  std::array<bool, kPools.size()> joined{};
  for (int step = 0; step < 150; ++step) {
    const std::size_t index = below(kPools.size());
    const PoolId pool = kPools[index];
    const std::size_t what = below(16);
    // Graphs of one pool may replay in any order once it is a member.
    const bool any_order = joined[index] || std::ranges::none_of(graphs, [&](const Known& known) {
                             return known.graph.pool == pool;
                           });
    if (what < 3 && graphs.size() < 10 && any_order) {
      std::vector<std::size_t> sizes(1 + below(6));
      std::ranges::generate(sizes, [&] {
        return below(2) == 0 ? (1 + below(8)) * kPageBytes : (1 + below(3000)) * 512;
      });
      graphs.push_back({capture(pool, sizes)});
    } else if (what < 4) {
      ASSERT_EQ(graphs_->join(kGroup, pool), SharingResult::kOk);
      joined[index] = true;
    } else if (what < 5) {
      static_cast<void>(graphs_->leave(pool));
    } else if (what < 6 && !graphs.empty()) {
      Graph& graph = graphs[below(graphs.size())].graph;
      if (!graph.results.empty()) {
        free(graph.results.back().ptr);
        graph.results.pop_back();
      }
    } else if (what < 7 && below(4) == 0) {
      for (const Known& known : graphs) {
        for (const Graph::Range& range : known.graph.results) {
          if (known.graph.pool == pool) {
            free(range.ptr);
          }
        }
      }
      std::erase_if(graphs, [&](const Known& known) { return known.graph.pool == pool; });
      release_pool(pool);
    } else if (what < 8) {
      device_->empty_cache();
    } else if (!graphs.empty()) {
      Known& known = graphs[below(graphs.size())];
      known.value = static_cast<int>(1 + below(250));
      replay(known.graph, static_cast<unsigned char>(known.value));
    }
    device_->report().check_invariants();
    ASSERT_EQ(SimGpu::used_pages() * kPageBytes, device_->report().held_bytes());
    for (const Known& known : graphs) {
      if (known.value >= 0) {
        ASSERT_NO_FATAL_FAILURE(expect_bytes(known.graph, static_cast<unsigned char>(known.value)))
            << "step " << step;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, ExclusiveGroupsRandom, ::testing::Range(1U, 41U));

// The addresses that are mapped, as far as the events tell.
class MappedRanges final : public MemoryObserver {
 public:
  void on_event(const EventFacts& event) noexcept override {
    if (event.what == MemoryEvent::kMapped) {
      ranges_.add(event.ptr, event.size);
    } else if (event.what == MemoryEvent::kUnmapped) {
      ranges_.remove(event.ptr, event.size);
    }
  }
  bool has(DevicePtr ptr) const { return ranges_.overlaps(ptr, 1); }

 private:
  AddressRanges ranges_;
};

// Two groups with scratch: one of kPools[0] and kPools[1], and one of kPools[2].
class SleepingGroupsTest : public ExclusiveGroupsTest {
 protected:
  static constexpr GroupId kOtherGroup = 2;

  SleepingGroupsTest() : ExclusiveGroupsTest({}, std::string(SimGpu::kManual) + ",devices=2") {
    device_->set_observer(&observer_);
    EXPECT_EQ(graphs_->join(kGroup, kPools[0]), SharingResult::kOk);
    EXPECT_EQ(graphs_->join(kGroup, kPools[1]), SharingResult::kOk);
    EXPECT_EQ(graphs_->join(kOtherGroup, kPools[2]), SharingResult::kOk);
    for (const PoolId& pool : kPools) {
      graphs_of_.push_back(capture(pool, {8 * kPageBytes, kPageBytes, 4 * kPageBytes}));
    }
  }
  ~SleepingGroupsTest() override {
    testing::FaultyApi::reset();
    EXPECT_EQ(device_->wake(in(kPools)).result, SleepResult::kOk);
    device_->set_observer(nullptr);
  }

  static SleepFilter in(std::span<const PoolId> pools) {
    const auto has = [pools](const PoolId& id) {
      return std::ranges::find(pools, id) != pools.end();
    };
    return {[has](const SleepFilter::InUse& block) { return has(block.pool); }, has};
  }
  void fall_asleep(const SleepFilter& which) {
    EXPECT_EQ(device_->sleep(which, Sleeper::Contents::kKeep, Sleeper::Want::kWhatCanSleep).result,
              SleepResult::kOk);
    device_->report().check_invariants();
  }
  // Libraries register memory with devices as the events tell.
  void expect_events_tell_mappings() {
    for (const Graph& graph : graphs_of_) {
      for (const Graph::Range& range : graph.writes) {
        for (std::size_t at = 0; at < range.size; at += kPageBytes) {
          unsigned char value = 0;
          const bool is_mapped = ferro_sim_peek(address_of(range.ptr + at), &value, 1) == 0;
          ASSERT_EQ(observer_.has(range.ptr + at), is_mapped);
        }
      }
    }
  }
  void expect_results(unsigned char first) {
    for (const Graph& graph : graphs_of_) {
      expect_bytes(graph, first++);
    }
  }
  void replay_all(unsigned char first) {
    for (const Graph& graph : graphs_of_) {
      replay(graph, first++);
    }
  }

  MappedRanges observer_;
  std::vector<Graph> graphs_of_;
};

TEST_F(SleepingGroupsTest, AGroupWhoseScratchSleepsHasTheSameMembers) {
  const std::span<const PoolId> members = std::span(kPools).first(2);
  fall_asleep(in(members));
  EXPECT_EQ(graphs_->may_join(kGroup, kPools[2]), SharingResult::kAsleep);
  EXPECT_EQ(graphs_->join(kGroup, kPools[2]), SharingResult::kAsleep);
  EXPECT_EQ(graphs_->join(kGroup, PoolId{0, 14}), SharingResult::kAsleep) << "a new pool";
  EXPECT_EQ(graphs_->join(kOtherGroup, kPools[0]), SharingResult::kAsleep);
  EXPECT_EQ(graphs_->leave(kPools[0]), SharingResult::kAsleep);
  EXPECT_EQ(graphs_->group_of(kPools[2]), kOtherGroup);
  EXPECT_EQ(graphs_->group_of(PoolId{0, 14}), std::nullopt);
  EXPECT_EQ(graphs_->begin_capture(kPools[0]), SharingResult::kAsleep);
  device_->report().check_invariants();
  EXPECT_EQ(device_->wake(in(members)).result, SleepResult::kOk);
  EXPECT_EQ(graphs_->join(kGroup, kPools[2]), SharingResult::kOk);
  device_->report().check_invariants();
}

TEST_F(SleepingGroupsTest, ScratchOfAPoolWithNothingInUseSleepsAndWakes) {
  const std::span<const PoolId> pool = std::span(kPools).last(1);
  for (const Graph::Range& range : graphs_of_.back().results) {
    free(range.ptr);
  }
  const std::size_t before = graphs_->bytes_of(kOtherGroup).set;
  EXPECT_NE(before, 0U);
  fall_asleep(in(pool));
  EXPECT_TRUE(device_->is_scratch_asleep(pool[0]));
  EXPECT_FALSE(device_->is_scratch_asleep(kPools[0]));
  EXPECT_EQ(device_->wake(in(pool)).result, SleepResult::kOk);
  EXPECT_FALSE(device_->is_scratch_asleep(pool[0]));
  EXPECT_EQ(graphs_->bytes_of(kOtherGroup).set, before);
}

// Gives all blocks that are allocated now one tag.
class TagsBlocks final : public MemoryObserver {
 public:
  void on_event(const EventFacts& event) noexcept override {
    if (event.what == MemoryEvent::kAllocate) {
      *event.tag = tag;
    } else if (event.what == MemoryEvent::kFreeRequested && event.tag != nullptr) {
      *event.tag = 0;
    }
  }
  BlockTag tag = 0;
};

TEST_F(SleepingGroupsTest, ATagThatIsAwakeAgainWakesNoLaterScratch) {
  const PoolId pool = kPools[2];
  TagsBlocks observer;
  device_->set_observer(&observer);
  const auto tagged = [pool](std::set<BlockTag> tags) -> SleepFilter {
    return {[=](const SleepFilter::InUse& block) {
              return block.pool == pool && tags.contains(block.tag);
            },
            [](const PoolId&) { return false; }};
  };
  observer.tag = 1;
  const DevicePtr first = allocate(kPageBytes, stream_, pool);
  fall_asleep(tagged({0, 1}));
  ASSERT_TRUE(device_->is_scratch_asleep(pool));
  EXPECT_EQ(device_->wake(tagged({1})).result, SleepResult::kOk);
  EXPECT_FALSE(device_->is_scratch_asleep(pool));
  free(first);
  observer.tag = 2;
  const DevicePtr second = allocate(kPageBytes, stream_, pool);
  fall_asleep(tagged({2}));
  ASSERT_TRUE(device_->is_scratch_asleep(pool));
  EXPECT_EQ(device_->wake(tagged({1})).bytes, 0U);
  EXPECT_TRUE(device_->is_scratch_asleep(pool));
  EXPECT_EQ(device_->wake(tagged({2})).result, SleepResult::kOk);
  EXPECT_FALSE(device_->is_scratch_asleep(pool));
  free(second);
  device_->set_observer(&observer_);
}

TEST_F(SleepingGroupsTest, ATagWhoseSleepWasRefusedWakesNoScratch) {
  const PoolId pool = kPools[2];
  TagsBlocks observer;
  device_->set_observer(&observer);
  const auto tagged = [pool](BlockTag tag) -> SleepFilter {
    return {[=](const SleepFilter::InUse& block) { return block.pool == pool && block.tag == tag; },
            [](const PoolId&) { return false; }};
  };
  fall_asleep(tagged(0));
  ASSERT_TRUE(device_->is_scratch_asleep(pool));
  observer.tag = 1;
  const DevicePtr pinned = allocate(kPageBytes, stream_, pool);
  Span& span = *addresses_.find(pinned);
  ASSERT_TRUE(device_->pin(span, pinned, kPageBytes));
  EXPECT_EQ(device_->sleep(tagged(1), Sleeper::Contents::kKeep, Sleeper::Want::kAll).result,
            SleepResult::kStays);
  device_->unpin(span, pinned, kPageBytes);
  free(pinned);
  EXPECT_EQ(device_->wake(tagged(1)).bytes, 0U);
  EXPECT_TRUE(device_->is_scratch_asleep(pool));
  EXPECT_EQ(device_->wake(tagged(0)).result, SleepResult::kOk);
  EXPECT_FALSE(device_->is_scratch_asleep(pool));
  device_->set_observer(&observer_);
}

// Each call fails in turn, with either error.
TEST_F(SleepingGroupsTest, AFailedWakeLeavesAllGroupsAsleep) {
  replay_all(1);
  for (const CUresult error : {CUDA_ERROR_UNKNOWN, CUDA_ERROR_OUT_OF_MEMORY}) {
    fall_asleep(in(kPools));
    const std::size_t asleep = device_->sleep_view().asleep_bytes;
    const std::size_t before = held();
    std::size_t failures = 0;
    for (std::uint64_t call = 1;; ++call) {
      testing::FaultyApi::fail_at(call, error);
      bool is_awake = false;
      try {
        is_awake = device_->wake(in(kPools)).result == SleepResult::kOk;
      } catch (const DriverError&) {  // NOLINT(bugprone-empty-catch): expected
      }
      const bool has_failed = *testing::FaultyApi::failed() != '\0';
      testing::FaultyApi::reset();
      device_->report().check_invariants();
      EXPECT_EQ(SimGpu::used_pages(), held()) << call;
      if (!has_failed) {
        EXPECT_TRUE(is_awake);
        break;
      }
      if (is_awake) {
        fall_asleep(in(kPools));
        continue;
      }
      ++failures;
      ASSERT_EQ(device_->sleep_view().asleep_bytes, asleep) << call;
      ASSERT_EQ(held(), before) << call;
      for (const PoolId& pool : kPools) {
        ASSERT_TRUE(device_->is_scratch_asleep(pool)) << call;
      }
    }
    EXPECT_NE(failures, 0U);
    expect_results(1);
  }
}

TEST_F(SleepingGroupsTest, APeerReachesTheirMemoryOnceItIsAwake) {
  fall_asleep(in(kPools));
  device_->add_peer(1);
  EXPECT_EQ(device_->wake(in(kPools)).result, SleepResult::kOk);
  for (const Graph& graph : graphs_of_) {
    for (const Graph::Range& range : graph.writes) {
      CUmemLocation location{};
      location.type = CU_MEM_LOCATION_TYPE_DEVICE;
      location.id = 1;
      unsigned long long flags = 0;
      SimGpu::expect(SimGpu::api().mem_get_access(&flags, &location, address_of(range.ptr)));
      EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    }
  }
}

// Between its tries another process takes memory, so that a later try creates fewer handles.
TEST_F(SleepingGroupsTest, EachTryToWakeOnAFullCardLeavesNothing) {
  replay_all(1);
  fall_asleep(in(kPools));
  const std::size_t asleep = device_->sleep_view().asleep_bytes;
  const std::size_t free_pages = 512 - SimGpu::used_pages();
  std::vector<DevicePtr> others = {SimGpu::allocate((free_pages - 3) * kPageBytes)};
  on_shortage_ = [&] {
    others.push_back(SimGpu::allocate(2 * kPageBytes));
    return true;
  };
  EXPECT_EQ(device_->wake(in(kPools)).result, SleepResult::kOutOfMemory);
  EXPECT_EQ(others.size(), 2U) << "the program was asked for memory";
  on_shortage_ = nullptr;
  device_->report().check_invariants();
  EXPECT_EQ(device_->sleep_view().asleep_bytes, asleep);
  EXPECT_EQ(pages().idle, 0U);
  for (const DevicePtr other : others) {
    SimGpu::free(other);
  }
  EXPECT_EQ(SimGpu::used_pages(), held());
  EXPECT_EQ(device_->wake(in(kPools)).result, SleepResult::kOk);
  device_->report().check_invariants();
  expect_results(1);
}

// The driver refuses to remove each mapping in turn.
TEST_F(SleepingGroupsTest, EventsTellWhatIsMappedAlsoAfterRefusals) {
  expect_events_tell_mappings();
  const auto refuse_each = [&](auto call) {
    for (std::uint64_t refused = 1;; ++refused) {
      testing::FaultyApi::fail_only("cuMemUnmap", refused, CUDA_ERROR_UNKNOWN);
      call();
      const bool has_failed = *testing::FaultyApi::failed() != '\0';
      testing::FaultyApi::reset();
      expect_events_tell_mappings();
      if (!has_failed) {
        return refused;
      }
    }
  };
  const std::uint64_t tries = refuse_each([&] {
    fall_asleep(in(kPools));
    expect_events_tell_mappings();
    EXPECT_EQ(device_->wake(in(kPools)).result, SleepResult::kOk);
  });
  EXPECT_GT(tries, kPools.size());
  free_everything();
  for (const PoolId& pool : kPools) {
    EXPECT_TRUE(device_->pools().release(pool));
    graphs_->on_last_release(pool);
  }
  EXPECT_GT(refuse_each([&] { device_->empty_cache(); }), 1U);
  EXPECT_EQ(SimGpu::used_pages(), 0U);
}

// The driver refuses to remove each mapping in turn.
TEST_F(SleepingGroupsTest, MemoryThatTheDriverRefusesToUnmapStaysHeldAndIsReported) {
  const std::size_t awake = held();
  const auto sleep = [&] {
    return device_->sleep(in(kPools), Sleeper::Contents::kKeep, Sleeper::Want::kWhatCanSleep);
  };
  const std::size_t all = sleep().bytes;
  EXPECT_EQ(device_->wake(in(kPools)).result, SleepResult::kOk);
  std::size_t reports = 0;
  for (std::uint64_t call = 1;; ++call) {
    testing::FaultyApi::fail_only("cuMemUnmap", call, CUDA_ERROR_UNKNOWN);
    const SleepOutcome outcome = sleep();
    const bool has_failed = *testing::FaultyApi::failed() != '\0';
    testing::FaultyApi::reset();
    const std::size_t refused =
        outcome.staying.by_reason[static_cast<std::size_t>(StayReason::kRefused)];
    EXPECT_EQ(outcome.bytes, (awake - held()) * kPageBytes) << call;
    EXPECT_EQ(SimGpu::used_pages(), held()) << call;
    if (refused != 0) {
      ++reports;
      EXPECT_EQ(outcome.bytes + refused, all) << call;
    }
    EXPECT_EQ(device_->wake(in(kPools)).result, SleepResult::kOk);
    if (!has_failed) {
      EXPECT_EQ(outcome.bytes, all);
      EXPECT_EQ(refused, 0U);
      break;
    }
  }
  EXPECT_NE(reports, 0U);
}

}  // namespace exclusive_groups_test
}  // namespace ferro
