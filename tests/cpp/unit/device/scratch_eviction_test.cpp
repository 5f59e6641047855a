// Scratch of idle graphs serves requests that would fail, and comes back before the next launch.
#include "ferro/core/device/scratch_eviction.h"

#include "support/device_fixture.h"
#include "support/sanitizers.h"
#include "support/sim_gpu.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <future>
#include <random>
#include <thread>
#include <vector>

namespace ferro {
namespace {

using testing::bytes;
using testing::kPageBytes;
using testing::SimGpu;
using Outcome = ScratchSharing::Outcome;

constexpr std::array kPools = {PoolId{0, 11}, PoolId{0, 12}, PoolId{0, 13}};
constexpr ScratchSharing::GroupId kGroup = 1;
constexpr ScratchSharing::GroupId kOther = 2;
constexpr std::size_t kDevicePages = 40;
constexpr std::size_t kResult = 2;  // pages

// What a graph writes at each replay.
struct Graph {
  DevicePtr scratch;
  std::size_t scratch_bytes;
  DevicePtr result;
};

class ScratchEvictionTest : public testing::DeviceFixture {
 protected:
  explicit ScratchEvictionTest(AllocatorConfig config = {})
      : DeviceFixture(kDevicePages, std::string(SimGpu::kManual) + ",devices=2", config) {
    for (const PoolId& pool : kPools) {
      device_->pools().hold(pool);
    }
  }

  Graph capture(const PoolId& pool, std::size_t pages) {
    Graph graph{kNull, pages * kPageBytes, kNull};
    device_->set_captures(1);
    EXPECT_EQ(scratch().begin_capture(pool), SharingResult::kOk);
    graph.scratch = take(pool, graph.scratch_bytes);
    graph.result = take(pool, kResult * kPageBytes);
    free(graph.scratch);
    EXPECT_EQ(scratch().end_capture(pool, Outcome::kSucceeded), SharingResult::kOk);
    device_->set_captures(0);
    device_->report().check_invariants();
    return graph;
  }
  DevicePtr take(const PoolId& pool, std::size_t size) {
    for (;;) {
      const DevicePtr ptr = device_->allocate(pool, stream_, bytes(size)).ptr;
      EXPECT_NE(ptr, kNull);
      if (scratch().note(pool, ptr)) {
        return ptr;
      }
    }
  }
  // Two graphs in one group, with scratch of 16 and of 8 pages: 20 pages are left.
  void SetUp() override {
    for (std::size_t i = 0; i < 2; ++i) {
      ASSERT_EQ(scratch().join(kGroup, kPools[i]), SharingResult::kOk);
      graphs_.push_back(capture(kPools[i], i == 0 ? 16 : 8));
    }
    device_->empty_cache();
    ASSERT_EQ(SimGpu::used_pages(), 20U);
  }
  // Queued: it has not run when this returns.
  void write(const Graph& graph, unsigned char value) {
    SimGpu::fill(stream_, graph.scratch, value, graph.scratch_bytes);
    SimGpu::fill(stream_, graph.result, value, kResult * kPageBytes);
  }
  void launch(const Graph& graph, unsigned char value) {
    ASSERT_EQ(scratch().begin_launch(kGroup), std::nullopt);
    write(graph, value);
    scratch().end_launch();
  }
  static void expect_result(const Graph& graph, unsigned char value) {
    for (std::size_t at = 0; at < kResult * kPageBytes; at += 4096) {
      ASSERT_EQ(SimGpu::peek(graph.result + at), value);
    }
  }
  GraphScratch& scratch() { return device_->scratch(); }
  GroupBytes group(ScratchSharing::GroupId id = kGroup) { return scratch().bytes_of(id); }
  std::size_t lent(ScratchSharing::GroupId id = kGroup) { return group(id).lent / kPageBytes; }

  std::vector<Graph> graphs_;
};

TEST_F(ScratchEvictionTest, WithoutLeaveNothingIsLentAndTheErrorSaysWhatCouldBe) {
  const auto facts = refuse(24 * kPageBytes, stream_);
  EXPECT_EQ(facts->idle_scratch, 16 * kPageBytes);
  EXPECT_EQ(facts->scratch, 16 * kPageBytes);
  EXPECT_EQ(shortfall(*facts), 4 * kPageBytes);
  EXPECT_EQ(diagnose(*facts), Verdict::kPrivatePools);
  EXPECT_NE(explain(*facts).find("graphs.lend"), std::string::npos);
  EXPECT_EQ(lent(), 0U);
}

TEST_F(ScratchEvictionTest, ARequestGetsIdleScratchAndTheNextLaunchTakesItBack) {
  launch(graphs_[0], 1);
  launch(graphs_[1], 2);
  ASSERT_TRUE(scratch().lend(kGroup, true));
  const std::uint64_t waits = SimGpu::calls("cuCtxSynchronize");
  const std::uint64_t unmaps = SimGpu::calls("cuMemUnmap");
  const DevicePtr eager = allocate(24 * kPageBytes, side_);
  EXPECT_EQ(SimGpu::calls("cuCtxSynchronize"), waits + 1);
  EXPECT_EQ(SimGpu::calls("cuMemUnmap"), unmaps + 2) << "one for each graph";
  EXPECT_EQ(ended_by(LadderStep::kLendScratch), 1U);
  EXPECT_EQ(lent(), 16U);
  EXPECT_EQ(group().set, 0U);
  EXPECT_EQ(group().scratch, (16 + 8) * kPageBytes);
  SimGpu::fill(side_, eager, 9, 24 * kPageBytes);
  SimGpu::finish_all();
  expect_result(graphs_[0], 1);
  expect_result(graphs_[1], 2);
  free(eager);

  const std::uint64_t maps = SimGpu::calls("cuMemMap");
  const std::uint64_t more_waits = SimGpu::calls("cuCtxSynchronize");
  launch(graphs_[1], 3);
  launch(graphs_[0], 4);
  // Behind the addresses of both graphs, with handles of one page.
  EXPECT_EQ(SimGpu::calls("cuMemMap"), maps + 16 + 8);
  EXPECT_LE(SimGpu::calls("cuCtxSynchronize"), more_waits + 1) << "for what is free elsewhere";
  SimGpu::finish_all();
  expect_result(graphs_[1], 3);
  expect_result(graphs_[0], 4);
  EXPECT_EQ(SimGpu::peek(graphs_[1].scratch), 4) << "one page behind both";
  EXPECT_EQ(lent(), 0U);
  EXPECT_EQ(group().set, 16 * kPageBytes);
  device_->report().check_invariants();
}

TEST_F(ScratchEvictionTest, WhatIsAtHandComesBackWithoutAWait) {
  scratch().lend(kGroup, true);
  free(allocate(24 * kPageBytes));
  device_->empty_cache();
  const std::uint64_t waits =
      SimGpu::calls("cuCtxSynchronize") + SimGpu::calls("cuEventSynchronize");
  launch(graphs_[0], 1);
  EXPECT_EQ(SimGpu::calls("cuCtxSynchronize") + SimGpu::calls("cuEventSynchronize"), waits);
}

TEST_F(ScratchEvictionTest, NothingIsTouchedWhileThereIsMemory) {
  scratch().lend(kGroup, true);
  allocate(20 * kPageBytes);
  const DriverCalls before = device_->driver().calls();
  launch(graphs_[0], 1);
  EXPECT_EQ(device_->driver().calls().map, before.map);
  EXPECT_EQ(device_->driver().calls().unmap, before.unmap);
  EXPECT_EQ(lent(), 0U);
}

TEST_F(ScratchEvictionTest, NothingIsLentUnlessItIsEnough) {
  scratch().lend(kGroup, true);
  refuse(37 * kPageBytes, stream_);
  EXPECT_EQ(lent(), 0U);
  EXPECT_EQ(ended_by(LadderStep::kOutOfMemory), 1U);
}

TEST_F(ScratchEvictionTest, ALaunchThatIsRefusedChangesNothingAndALaterOneTriesAgain) {
  scratch().lend(kGroup, true);
  launch(graphs_[0], 1);
  const DevicePtr eager = allocate(24 * kPageBytes);
  SimGpu::finish_all();
  const std::size_t held = device_->report().held_bytes();
  // 40 pages, of which 24 and the two results are in use.
  EXPECT_EQ(scratch().begin_launch(kGroup), 4 * kPageBytes);
  EXPECT_EQ(scratch().begin_launch(kGroup), 4 * kPageBytes);
  device_->report().check_invariants();
  EXPECT_EQ(lent(), 16U);
  EXPECT_LE(device_->report().held_bytes(), held);
  expect_result(graphs_[0], 1);
  free(eager);
  launch(graphs_[0], 2);
  SimGpu::finish_all();
  expect_result(graphs_[0], 2);
}

TEST_F(ScratchEvictionTest, ItWaitsForAReplay) {
  scratch().lend(kGroup, true);
  launch(graphs_[0], 1);
  allocate(24 * kPageBytes, side_);  // would be an illegal access
  expect_result(graphs_[0], 1);
}

TEST_F(ScratchEvictionTest, NothingIsLentWhileALaunchIsUnderWay) {
  scratch().lend(kGroup, true);
  ASSERT_EQ(scratch().begin_launch(kGroup), std::nullopt);
  refuse(24 * kPageBytes, stream_);
  EXPECT_EQ(lent(), 0U);
  scratch().end_launch();
  allocate(24 * kPageBytes);
  EXPECT_EQ(lent(), 16U);
}

TEST_F(ScratchEvictionTest, ALaunchThatEndsInTimeIsWaitedFor) {
  scratch().lend(kGroup, true);
  ASSERT_EQ(scratch().begin_launch(kGroup), std::nullopt);
  std::thread launching([this] {
    SimGpu::make_current();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    write(graphs_[0], 5);
    scratch().end_launch();
  });
  allocate(24 * kPageBytes, side_);
  launching.join();
  expect_result(graphs_[0], 5);
  EXPECT_EQ(lent(), 16U);
}

TEST_F(ScratchEvictionTest, NothingIsLentWhileACaptureRuns) {
  scratch().lend(kGroup, true);
  device_->set_captures(1);
  refuse(24 * kPageBytes, stream_);
  device_->set_captures(0);
  EXPECT_EQ(lent(), 0U);
}

TEST_F(ScratchEvictionTest, NothingIsLentWhereOtherDevicesHaveAccess) {
  scratch().lend(kGroup, true);
  device_->add_peer(1);
  refuse(24 * kPageBytes, stream_);
  EXPECT_EQ(lent(), 0U);
}

// The driver refused to give access to addresses without memory.
TEST_F(ScratchEvictionTest, ADeviceThatComesLaterMayAccessWhatComesBack) {
  scratch().lend(kGroup, true);
  free(allocate(24 * kPageBytes));
  device_->add_peer(1);
  launch(graphs_[0], 1);
  SimGpu::finish_all();
  expect_result(graphs_[0], 1);
}

TEST_F(ScratchEvictionTest, WhatEndsLendingTakesBackWhatThereIsMemoryFor) {
  scratch().lend(kGroup, true);
  const DevicePtr eager = allocate(24 * kPageBytes);
  EXPECT_TRUE(scratch().lend(kGroup, false)) << "launches have to ask";
  EXPECT_EQ(lent(), 16U);
  free(eager);
  EXPECT_FALSE(scratch().lend(kGroup, false));
  EXPECT_EQ(lent(), 0U);
  refuse(24 * kPageBytes, stream_);
}

TEST_F(ScratchEvictionTest, WhoeverChangesAGroupTakesItsScratchBackFirst) {
  scratch().lend(kGroup, true);
  const auto lend_out = [this] {
    const DevicePtr eager = allocate(24 * kPageBytes);
    EXPECT_EQ(lent(), 16U);
    return eager;
  };
  const std::array<std::function<SharingResult()>, 3> changes = {
      [this] { return scratch().join(kGroup, kPools[2]); },
      [this] {
        const SharingResult result = scratch().begin_capture(kPools[0]);
        return result == SharingResult::kOk ? scratch().end_capture(kPools[0], Outcome::kFailed)
                                            : result;
      },
      [this] { return scratch().leave(kPools[1]); }};
  for (const auto& change : changes) {
    const DevicePtr eager = lend_out();
    EXPECT_EQ(change(), SharingResult::kOutOfMemory);
    device_->report().check_invariants();
    EXPECT_EQ(lent(), 16U);
    free(eager);
    EXPECT_EQ(change(), SharingResult::kOk);
    device_->report().check_invariants();
    EXPECT_EQ(lent(), 0U);
  }
  launch(graphs_[0], 1);
  SimGpu::finish_all();
  expect_result(graphs_[0], 1);
}

// A backward graph reads there what the forward one has written, with eager work in between.
TEST_F(ScratchEvictionTest, WhatDiedAfterItsCaptureIsNotLent) {
  free(graphs_[0].result);
  capture(kPools[0], 4);
  EXPECT_EQ(group().set, (16 + kResult) * kPageBytes);
  scratch().lend(kGroup, true);
  SimGpu::fill(stream_, graphs_[0].result, 7, kResult * kPageBytes);
  allocate(22 * kPageBytes);
  EXPECT_EQ(lent(), 16U);
  EXPECT_EQ(group().set, kResult * kPageBytes);
  expect_result(graphs_[0], 7);
  device_->report().check_invariants();
}

TEST_F(ScratchEvictionTest, DeletedGraphsLeaveNothingOfWhatTheyLent) {
  scratch().lend(kGroup, true);
  const DevicePtr eager = allocate(24 * kPageBytes);
  free(graphs_[0].result);
  free(graphs_[1].result);
  for (const PoolId& pool : kPools) {
    ASSERT_TRUE(device_->pools().release(pool));
    scratch().on_unheld(pool);
  }
  device_->empty_cache();
  device_->report().check_invariants();
  EXPECT_EQ(group().lent, 0U);
  EXPECT_EQ(SimGpu::used_pages(), 24U);
  EXPECT_EQ(scratch().begin_launch(kGroup), std::nullopt);
  scratch().end_launch();
  free(eager);
}

TEST_F(ScratchEvictionTest, AGraphThatIsDeletedMeanwhileIsNotTakenBackFor) {
  scratch().lend(kGroup, true);
  free(allocate(24 * kPageBytes));
  ASSERT_TRUE(device_->pools().release(kPools[0]));
  scratch().on_unheld(kPools[0]);
  launch(graphs_[1], 3);
  device_->report().check_invariants();
  SimGpu::finish_all();
  expect_result(graphs_[1], 3);
  EXPECT_EQ(group().set, 8 * kPageBytes);
  device_->pools().hold(kPools[0]);
}

class TwoGroupsTest : public ScratchEvictionTest {
 protected:
  // The other group has scratch of 6 pages: 12 are left.
  void SetUp() override {
    ScratchEvictionTest::SetUp();
    ASSERT_EQ(scratch().join(kOther, kPools[2]), SharingResult::kOk);
    graphs_.push_back(capture(kPools[2], 6));
    device_->empty_cache();
    ASSERT_EQ(SimGpu::used_pages(), 28U);
    scratch().lend(kGroup, true);
    scratch().lend(kOther, true);
  }
};

TEST_F(TwoGroupsTest, TheSmallestThatIsEnoughLends) {
  allocate(17 * kPageBytes);
  EXPECT_EQ(lent(kOther), 6U);
  EXPECT_EQ(lent(kGroup), 0U);
  allocate(16 * kPageBytes);
  EXPECT_EQ(lent(kGroup), 16U);
}

TEST_F(TwoGroupsTest, OrBothDo) {
  allocate(30 * kPageBytes);
  EXPECT_EQ(lent(kOther), 6U);
  EXPECT_EQ(lent(kGroup), 16U);
}

// It said that memory was short, and took scratch of others back for nothing.
TEST_F(TwoGroupsTest, AMemberOfAnotherGroupIsRefusedBeforeAnythingComesBack) {
  const DevicePtr eager = allocate(17 * kPageBytes);
  ASSERT_EQ(lent(kOther), 6U);
  EXPECT_EQ(scratch().join(kOther, kPools[0]), SharingResult::kMember);
  free(eager);
  EXPECT_EQ(scratch().join(kOther, kPools[0]), SharingResult::kMember);
  EXPECT_EQ(lent(kOther), 6U);
}

// A launch is refused only where no other group has enough to lend.
TEST_F(TwoGroupsTest, OneLendsToTheOther) {
  launch(graphs_[0], 1);
  launch(graphs_[1], 2);
  allocate(17 * kPageBytes);
  ASSERT_EQ(lent(kOther), 6U);
  ASSERT_EQ(scratch().begin_launch(kOther), std::nullopt);
  write(graphs_[2], 3);
  scratch().end_launch();
  EXPECT_EQ(lent(kOther), 0U);
  EXPECT_EQ(lent(kGroup), 16U);
  SimGpu::finish_all();
  expect_result(graphs_[0], 1);
  expect_result(graphs_[1], 2);
  expect_result(graphs_[2], 3);
  launch(graphs_[0], 4);
  EXPECT_EQ(lent(kOther), 6U);
  EXPECT_EQ(lent(kGroup), 0U);
  SimGpu::finish_all();
  expect_result(graphs_[0], 4);
  expect_result(graphs_[2], 3);
}

class LendingRandom : public ScratchEvictionTest, public ::testing::WithParamInterface<unsigned> {
 protected:
  struct Known {
    std::size_t pool;
    Graph graph;
    unsigned char value = 0;  // of its last replay
  };
  struct Eager {
    DevicePtr ptr;
    std::size_t size;
    unsigned char value;
  };

  void SetUp() override {}
  std::size_t below(std::size_t n) { return random_() % n; }
  bool is_lent() { return lent(kGroup) + lent(kOther) != 0; }
  void capture_one(std::size_t pool) {
    const bool has_any =
        std::ranges::any_of(known_, [&](const Known& known) { return known.pool == pool; });
    if (known_.size() == 4 || (has_any && groups_[pool] == 0)) {
      return;
    }
    while (!eager_.empty()) {
      free_one();
    }
    known_.push_back({pool, capture(kPools[pool], 1 + below(6))});
  }
  void move(std::size_t pool) {
    if (below(2) == 0) {
      const auto group = 1 + below(2);
      const SharingResult result = scratch().join(group, kPools[pool]);
      if (result == SharingResult::kOk) {
        groups_[pool] = group;
      } else {
        ASSERT_TRUE(result == SharingResult::kMember || is_lent());
      }
    } else if (scratch().leave(kPools[pool]) == SharingResult::kOk) {
      groups_[pool] = 0;
    }
  }
  void work_eagerly() {
    const std::size_t size = (1 + below(36)) * kPageBytes;
    const StreamId stream = below(2) == 0 ? stream_ : side_;
    const DevicePtr ptr = device_->allocate(kDefaultPool, stream, bytes(size)).ptr;
    if (ptr != kNull) {
      eager_.push_back({ptr, size, static_cast<unsigned char>(1 + below(250))});
      SimGpu::fill(stream, ptr, eager_.back().value, size);
    }
  }
  void free_one() {
    expect_all();
    const auto at = static_cast<std::ptrdiff_t>(below(eager_.size()));
    free(eager_[static_cast<std::size_t>(at)].ptr);
    eager_.erase(eager_.begin() + at);
  }
  void launch_one() {
    Known& known = known_[below(known_.size())];
    const std::size_t group = groups_[known.pool];
    if (group != 0 && scratch().begin_launch(group)) {
      ASSERT_NE(lent(group), 0U);
      ASSERT_FALSE(eager_.empty()) << "there was memory";
      return;
    }
    known.value = static_cast<unsigned char>(1 + below(250));
    write(known.graph, known.value);
    if (group != 0) {
      scratch().end_launch();
    }
  }
  void delete_all_of(std::size_t pool) {
    for (const Known& known : known_) {
      if (known.pool == pool) {
        free(known.graph.result);
      }
    }
    std::erase_if(known_, [&](const Known& known) { return known.pool == pool; });
    ASSERT_TRUE(device_->pools().release(kPools[pool]));
    scratch().on_unheld(kPools[pool]);
    device_->pools().hold(kPools[pool]);
  }
  void expect_all() {
    SimGpu::finish_all();
    for (const Known& known : known_) {
      if (known.value != 0) {
        expect_result(known.graph, known.value);
      }
    }
    for (const Eager& eager : eager_) {
      for (std::size_t at = 0; at < eager.size; at += kPageBytes / 4) {
        ASSERT_EQ(SimGpu::peek(eager.ptr + at), eager.value);
      }
    }
  }

  std::mt19937 random_{GetParam()};
  std::array<std::size_t, kPools.size()> groups_{};  // 0: in none
  std::vector<Known> known_;
  std::vector<Eager> eager_;
  static inline std::size_t times_lent = 0;  // in all programs
};

// Graphs of three pools that join two groups, leave, are captured, replay and go, and eager work that
// takes whatever it can get: every byte is whose it should be, and only eager work keeps a launch back.
TEST_P(LendingRandom, EveryByteIsRight) {
  scratch().lend(kGroup, true);
  scratch().lend(kOther, true);
  for (int step = 0; step < 200; ++step) {
    const std::size_t pool = below(kPools.size());
    const std::size_t what = below(16);
    const bool was_lent = is_lent();
    if (what < 2) {
      capture_one(pool);
    } else if (what < 4) {
      move(pool);
    } else if (what < 8) {
      work_eagerly();
    } else if (what < 10 && !eager_.empty()) {
      free_one();
    } else if (what == 10 && below(3) == 0) {
      delete_all_of(pool);
    } else if (what == 11) {
      device_->empty_cache();
    } else if (!known_.empty()) {
      launch_one();
    }
    times_lent += !was_lent && is_lent() ? 1 : 0;
    device_->report().check_invariants();
    ASSERT_EQ(SimGpu::used_pages() * kPageBytes, device_->report().held_bytes());
    ASSERT_FALSE(HasFatalFailure()) << "step " << step;
  }
  expect_all();
  if (GetParam() == 40) {
    EXPECT_GT(times_lent, 40U);
  }
}

// Sanitizers take up to three seconds a seed.
INSTANTIATE_TEST_SUITE_P(Seeds, LendingRandom,
                         ::testing::Range(1U, kThreadSanitizer || kAddressSanitizer ? 13U : 41U));

TEST(LaunchGateTest, ALaunchWaitsWhileItIsClosed) {
  LaunchGate gate;
  std::future<void> entered;
  {
    const LaunchGate::Closed closed(gate, std::chrono::milliseconds(0));
    ASSERT_TRUE(closed.is_closed());
    entered = std::async(std::launch::async, [&] { gate.enter(); });
    EXPECT_EQ(entered.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  }
  entered.get();
  EXPECT_FALSE(LaunchGate::Closed(gate, std::chrono::milliseconds(1)).is_closed());
  gate.leave();
  EXPECT_TRUE(LaunchGate::Closed(gate, std::chrono::milliseconds(1)).is_closed());
}

}  // namespace
}  // namespace ferro
