// Moves of whole free handles of an arena to addresses where a request fits.
#include "ferro/core/policy/relocation.h"

#include "support/heap_fixture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

namespace ferro {

void PrintTo(const HoleShare& share, std::ostream* out) {
  *out << "{hole " << share.hole << ", pages " << share.pages << "}";
}

namespace relocation_test {

using testing::bytes;
using testing::FaultyApi;
using testing::kPageBytes;
using testing::SimGpu;
using testing::take;

using Handles = std::vector<std::size_t>;

struct MovesCase {
  std::string name;
  std::vector<Handles> holes;
  std::size_t wanted;
  std::vector<HoleShare> shares;
};

HoleView hole_of(const Handles& handles) {
  return {std::accumulate(handles.begin(), handles.end(), std::size_t{0}), handles};
}

class PlanMovesTest : public ::testing::TestWithParam<MovesCase> {};

TEST_P(PlanMovesTest, Shares) {
  std::vector<HoleView> holes;
  std::ranges::transform(GetParam().holes, std::back_inserter(holes), hole_of);
  EXPECT_EQ(plan_moves(holes, GetParam().wanted), GetParam().shares);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, PlanMovesTest,
    ::testing::Values(
        MovesCase{"NoHole", {}, 3, {}}, MovesCase{"NothingWanted", {Handles(4, 1)}, 0, {}},
        MovesCase{"APartOfOne", {Handles(4, 1)}, 3, {{0, 3}}},
        MovesCase{"LargeHolesFirst", {{1}, Handles(4, 1), {1, 1}}, 6, {{1, 4}, {2, 2}}},
        MovesCase{"LowestAddressAmongEquals", {{1, 1}, {1, 1}, {1, 1}}, 3, {{0, 2}, {1, 1}}},
        MovesCase{"AllThatThereIs", {{1}, {1, 1}}, 9, {{1, 2}, {0, 1}}},
        MovesCase{"AHandleMovesAsAWhole", {{1, 8}}, 3, {{0, 8}}},
        MovesCase{"TheEndOfAnotherHoleFitsBetter", {{1, 8}, {2, 1, 1, 1}}, 3, {{1, 3}}},
        MovesCase{"AsWellAsTheyFit", {{1, 8}, {1, 4}, {4}}, 3, {{1, 4}}},
        MovesCase{"OnlyHolesWithEnoughFit", {{1, 8}, {1, 1}}, 3, {{0, 8}}},
        MovesCase{"WholeHolesFirstAlsoThen", {{8, 8}, {4, 4}, {1, 1}}, 17, {{0, 16}, {2, 1}}}),
    [](const auto& given) { return given.param.name; });

TEST(PagesAtEndTest, AreWholeHandles) {
  const HoleView hole = hole_of({4, 2, 1});
  const Handles at_end = {0, 1, 3, 3, 7, 7, 7, 7, 7};
  for (std::size_t wanted = 0; wanted < at_end.size(); ++wanted) {
    EXPECT_EQ(pages_at_end(hole, wanted), at_end[wanted]) << wanted;
  }
}

class RelocationTest : public testing::HeapFixture {
 protected:
  // Live and free pages in turns: "L1p F1p L1p F1p ...", with eight holes of a page each.
  RelocationTest() {
    for (int i = 0; i < 16; ++i) {
      blocks_.push_back(grow(heap_, kPageBytes));
    }
    for (std::size_t i = 1; i < blocks_.size(); i += 2) {
      free(heap_, blocks_[i]);
    }
  }
  ~RelocationTest() override { drain(heap_); }

  // Moves pages as a climb does, which records a point first.
  DevicePtr move(std::size_t pages) {
    pass_epochs();
    return move(testing::movable_bytes(pages * kPageBytes));
  }
  DevicePtr move(const Request& request) {
    DevicePtr ptr = kNull;
    const GrowResult result = heap_.allocate_grown(request, GrowFrom::kOwnPages, &ptr);
    EXPECT_EQ(result == GrowResult::kGrown, ptr != kNull);
    check(heap_);
    return ptr;
  }

  Heap heap_{context_, kDefaultPool, stream_};
  std::vector<DevicePtr> blocks_;
};

TEST_F(RelocationTest, HolesBecomeOneRangeWithoutNewPagesAndWithoutWaiting) {
  pass_epochs();
  const DriverCalls before = driver_.calls();
  const DevicePtr ptr = move(bytes(5 * kPageBytes));
  EXPECT_NE(ptr, kNull);
  const DriverCalls after = driver_.calls();
  EXPECT_EQ(after.create - before.create, 0U);
  EXPECT_EQ(after.event_record - before.event_record, 0U);
  EXPECT_EQ(after.stream_wait - before.stream_wait, 0U);
  EXPECT_EQ(after.event_wait - before.event_wait, 0U);
  EXPECT_EQ(after.unmap - before.unmap, 0U) << "earlier work may use the old addresses";
  EXPECT_EQ(store_.counts().held, 16U);
  EXPECT_EQ(heap_.view().backed_bytes, 16 * kPageBytes);
}

TEST_F(RelocationTest, OldMappingsGoWhenTheirEpochHasPassed) {
  make_busy(stream_, blocks_[0]);
  ASSERT_NE(move(4), kNull);
  ASSERT_TRUE(timeline_.record());
  EXPECT_EQ(stale_.remove_passed(), 0U) << "the epoch has not passed";
  EXPECT_EQ(driver_.calls().unmap, 0U);
  SimGpu::finish(stream_);
  EXPECT_EQ(stale_.remove_passed(), 3U) << "the hole beside the gap was used where it is";
  EXPECT_EQ(driver_.calls().unmap, 3U) << "one call for a hole";
}

TEST_F(RelocationTest, WhatAnotherStreamMayStillUseMovesWhereTheStreamWaits) {
  make_busy(side_, blocks_[0]);
  pass_epochs();
  EXPECT_EQ(move(bytes(5 * kPageBytes)), kNull);
  EXPECT_EQ(driver_.calls().stream_wait, 0U);
  const DevicePtr moved = move(5);
  ASSERT_NE(moved, kNull);
  EXPECT_EQ(driver_.calls().stream_wait, 1U);
  EXPECT_EQ(driver_.calls().event_wait, 0U);
  make_busy(stream_, moved);
  SimGpu::finish(stream_);
  EXPECT_TRUE(timeline_.record());
  EXPECT_NE(timeline_.update(), timeline_.now()) << "the fill is ordered after the other stream";
  // Memory freed before that point needs no other wait.
  ASSERT_NE(move(2), kNull);
  EXPECT_EQ(driver_.calls().stream_wait, 1U);
}

TEST_F(RelocationTest, GrowthBesideWhatAnotherStreamMayStillUseWaitsToo) {
  make_busy(side_, blocks_[0]);
  pass_epochs();
  DevicePtr apart = kNull;
  ASSERT_EQ(heap_.allocate_grown(bytes(3 * kPageBytes), GrowFrom::kAnyPages, &apart),
            GrowResult::kGrown);
  EXPECT_FALSE(apart >= blocks_[15] && apart < blocks_[15] + 4 * kPageBytes);
  EXPECT_EQ(driver_.calls().stream_wait, 0U);
  DevicePtr beside = kNull;
  ASSERT_EQ(
      heap_.allocate_grown(testing::movable_bytes(3 * kPageBytes), GrowFrom::kAnyPages, &beside),
      GrowResult::kGrown);
  EXPECT_EQ(beside, blocks_[15]) << "the last hole, beside a gap";
  EXPECT_EQ(driver_.calls().stream_wait, 1U);
}

// Frees the block beside the gap while the gap gets its pages.
class FreedMeanwhileTest : public RelocationTest {
 protected:
  GrowResult grow_while_beside_is_freed(const Request& request, DevicePtr* out) {
    FaultyApi::set_watcher([this](const char* symbol) {
      if (!is_freed_ && std::string_view(symbol) == "cuMemMap") {
        is_freed_ = true;
        free(heap_, last_);
      }
    });
    const GrowResult result = heap_.allocate_grown(request, GrowFrom::kStore, out);
    FaultyApi::set_watcher(nullptr);
    EXPECT_TRUE(is_freed_);
    return result;
  }

  const DevicePtr last_ = grow(heap_, 3 * kPageBytes);  // beside the gap
  bool is_freed_ = false;
};

TEST_F(FreedMeanwhileTest, ANeighbourServesNoLargerRequest) {
  DevicePtr ptr = kNull;
  ASSERT_EQ(grow_while_beside_is_freed(testing::movable_bytes(2 * kPageBytes), &ptr),
            GrowResult::kGrown);
  EXPECT_EQ(ptr, last_ + 3 * kPageBytes) << "in the new pages";
  EXPECT_EQ(driver_.calls().stream_wait, 0U);
  EXPECT_EQ(heap_.allocate_hit(bytes(3 * kPageBytes)), last_) << "but requests of its size";
}

TEST_F(RelocationTest, WhatWasFreedWhileAnotherStreamCapturesStays) {
  captures_.set(1);
  SimGpu::begin_capture(side_);
  EXPECT_EQ(move(5), kNull);
  EXPECT_EQ(driver_.capture_info(side_).status, CaptureStatus::kActive);
  SimGpu::end_capture(side_);
  captures_.set(0);
  EXPECT_NE(move(5), kNull);
}

TEST_F(RelocationTest, TooFewPagesMoveNothing) {
  const std::string before = layout_of(heap_);
  const DriverCalls calls = driver_.calls();
  EXPECT_EQ(move(10), kNull);
  EXPECT_EQ(layout_of(heap_), before);
  EXPECT_EQ(driver_.calls().map, calls.map);
  EXPECT_EQ(driver_.calls().stream_wait, calls.stream_wait);
}

TEST_F(RelocationTest, MovedPagesAreCompletedFromTheStore) {
  const DevicePtr ptr = grow(heap_, 12 * kPageBytes);
  EXPECT_NE(ptr, kNull);
  EXPECT_LT(store_.counts().created, 16U + 12U);
}

TEST_F(RelocationTest, ACapturingStreamMovesNothing) {
  timeline_.record();  // the announcement of a capture does this
  captures_.set(1);
  SimGpu::begin_capture(stream_);
  EXPECT_EQ(move(5), kNull);
  EXPECT_EQ(driver_.capture_info(stream_).status, CaptureStatus::kActive);
  SimGpu::end_capture(stream_);
  captures_.set(0);
  EXPECT_NE(move(5), kNull);
}

TEST_F(RelocationTest, APrivatePoolKeepsItsPagesWhereTheyAre) {
  Heap pool(context_, PoolId{0, 3}, stream_);
  DevicePtr ptr = kNull;
  std::vector<DevicePtr> blocks;
  for (int i = 0; i < 4; ++i) {
    ASSERT_EQ(pool.allocate_grown(bytes(kPageBytes), GrowFrom::kAnyPages, &ptr),
              GrowResult::kGrown);
    blocks.push_back(ptr);
  }
  free(pool, blocks[0]);
  free(pool, blocks[2]);
  EXPECT_EQ(pool.allocate_grown(bytes(2 * kPageBytes), GrowFrom::kOwnPages, &ptr),
            GrowResult::kTooFewPages);
  free(pool, blocks[1]);
  free(pool, blocks[3]);
  EXPECT_EQ(release(pool, 4), 4U);
}

TEST_F(RelocationTest, ReclaimRemovesOldMappingsFirst) {
  make_busy(stream_, blocks_[0]);
  const DevicePtr ptr = move(4);
  ASSERT_NE(ptr, kNull);
  free(heap_, ptr);
  EXPECT_EQ(release(heap_, ~std::size_t{0}), 8U);
  check(heap_);
  EXPECT_EQ(store_.trim(8), 8U);
  EXPECT_EQ(SimGpu::used_pages(), 8U) << "no mapping keeps a released page";
}

TEST_F(RelocationTest, ARefusedRemovalIsTriedAgain) {
  ASSERT_NE(move(4), kNull);
  ASSERT_TRUE(timeline_.record());
  SimGpu::finish(stream_);
  FaultyApi::fail_only("cuMemUnmap", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(stale_.remove_passed(), 0U);
  EXPECT_STREQ(FaultyApi::failed(), "cuMemUnmap");
  EXPECT_EQ(stale_.count(), 3U);
  EXPECT_EQ(stale_.remove_passed(), 3U);
}

// Where requests of 16 pages are two handles.
class LargeHandlesTest : public testing::HeapFixture {
 protected:
  LargeHandlesTest() : HeapFixture(64, SimGpu::kManual, testing::kCoarseHandles) {}
  ~LargeHandlesTest() override { drain(heap_); }

  DevicePtr grow_pages(std::size_t pages) { return grow(heap_, pages * kPageBytes); }
  // Two handles of eight pages.
  void make_idle() {
    testing::Handles pages;
    ASSERT_EQ(take(store_, 16, Fit::kExactly, pages), TakeResult::kOk);
    store_.put(pages);
  }

  Heap heap_{context_, kDefaultPool, stream_};
};

TEST_F(LargeHandlesTest, ALargeRequestTakesFewCalls) {
  grow_pages(16);
  EXPECT_EQ(driver_.calls().create, 2U);
  EXPECT_EQ(driver_.calls().map, 2U);
  EXPECT_EQ(store_.counts().held, 16U);
}

TEST_F(LargeHandlesTest, AHandleMovesAsAWhole) {
  const DevicePtr a = grow_pages(16);
  grow_pages(1);
  free(heap_, a);
  ASSERT_NE(allocate(heap_, 10 * kPageBytes), kNull);
  ASSERT_EQ(layout_of(heap_), "L10p F6p L1p");
  const DriverCalls before = driver_.calls();
  // Six pages are free, but the first two are of a handle that is in use.
  grow_pages(7);
  EXPECT_EQ(driver_.calls().create - before.create, 4U);
  free(heap_, a);
  ASSERT_EQ(layout_of(heap_), "F16p L1p L7p");
  const std::uint64_t created = driver_.calls().create;
  DevicePtr ptr = kNull;
  ASSERT_TRUE(timeline_.record());
  ASSERT_EQ(heap_.allocate_grown(testing::movable_bytes(3 * kPageBytes), GrowFrom::kOwnPages, &ptr),
            GrowResult::kGrown);
  check(heap_);
  EXPECT_EQ(driver_.calls().create, created);
  EXPECT_EQ(heap_.pages_moved(), 8U) << "five more than the request takes";
}

TEST_F(LargeHandlesTest, PartlyUsedHandlesStay) {
  const DevicePtr a = grow_pages(16);
  free(heap_, a);
  ASSERT_EQ(allocate(heap_, 512), a);
  SimGpu::finish_all();
  EXPECT_EQ(heap_.free_pages() * kPageBytes, 8 * kPageBytes);
  EXPECT_EQ(release(heap_, ~std::size_t{0}), 8U);
  check(heap_);
  EXPECT_EQ(store_.counts().idle, 8U);
}

TEST_F(LargeHandlesTest, AnIdleHandleComesAsAWhole) {
  make_idle();
  grow_pages(3);
  EXPECT_EQ(layout_of(heap_), "L3p F5p");
  EXPECT_EQ(store_.counts().created, 16U);
}

TEST_F(LargeHandlesTest, AGapThatIsTooShortIsLeftAlone) {
  std::vector<DevicePtr> single;
  for (int i = 0; i < 3; ++i) {
    single.push_back(grow_pages(1));
  }
  free(heap_, single[1]);
  SimGpu::finish_all();
  ASSERT_EQ(release(heap_, 1), 1U);
  store_.trim(1);
  make_idle();
  ASSERT_EQ(layout_of(heap_), "L1p | L1p");
  // The gap between them is a page, the idle handle is eight.
  grow_pages(1);
  EXPECT_EQ(layout_of(heap_), "L1p | L1p L1p F7p");
}

TEST_F(LargeHandlesTest, AnExactAddressGetsOnlyTheNeededPages) {
  const DevicePtr a = grow_pages(16);
  free(heap_, a);
  SimGpu::finish_all();
  ASSERT_EQ(release(heap_, ~std::size_t{0}), 16U);
  EXPECT_EQ(heap_.allocate_at(a + kPageBytes, bytes(kPageBytes)).ptr, a + kPageBytes);
  check(heap_);
  EXPECT_EQ(layout_of(heap_), "L1p");
}

TEST_F(LargeHandlesTest, PagesLeaveInWholeHandles) {
  const DevicePtr a = grow_pages(16);
  grow_pages(1);
  free(heap_, a);
  EXPECT_TRUE(timeline_.record());
  EXPECT_EQ(heap_.release_pages(3, ReleaseAfter::kStreamWait), 8U);
  check(heap_);
  EXPECT_EQ(layout_of(heap_), "F8p | L1p");
}

// Holes of one handle of four pages, some adjacent, and one of three pages, which fits a request
// best.
class ManyHolesTest : public testing::HeapFixture {
 protected:
  ManyHolesTest()
      : HeapFixture(512, SimGpu::kManual, {.of_request = 1, .of_room = 1, .of_held = 1}) {}
  ~ManyHolesTest() override { drain(heap_); }

  void make_holes(std::size_t of_four_pages) {
    std::vector<DevicePtr> freed;
    for (std::size_t i = 0; i <= of_four_pages; ++i) {
      freed.push_back(grow(heap_, (i < of_four_pages ? 4 : 3) * kPageBytes));
      grow(heap_, kPageBytes);
    }
    for (const DevicePtr ptr : freed) {
      free(heap_, ptr);
    }
  }
  // Pages that move for a request of three.
  std::size_t move_three() {
    pass_epochs();
    DevicePtr ptr = kNull;
    EXPECT_EQ(
        heap_.allocate_grown(testing::movable_bytes(3 * kPageBytes), GrowFrom::kOwnPages, &ptr),
        GrowResult::kGrown);
    check(heap_);
    return heap_.pages_moved();
  }

  Heap heap_{context_, kDefaultPool, stream_};
};

TEST_F(ManyHolesTest, ASmallerHoleThatFitsBetterMoves) {
  make_holes(20);
  EXPECT_EQ(move_three(), 3U);
}

// The first hole has enough, and 64 more are candidates: the time of a move is bounded.
TEST_F(ManyHolesTest, TheChoiceIsAmongTheLargestHoles) {
  make_holes(90);
  EXPECT_EQ(move_three(), 4U);
}

}  // namespace relocation_test
}  // namespace ferro
