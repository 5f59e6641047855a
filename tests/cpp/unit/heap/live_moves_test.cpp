// Live bytes that move to other handles, behind the addresses that they are at.
#include "ferro/driver/error.h"
#include "support/heap_fixture.h"

#include <gtest/gtest.h>

namespace ferro {
namespace {

using testing::bytes;
using testing::FaultyApi;
using testing::kPageBytes;
using testing::SimGpu;

constexpr std::size_t kRest = kPageBytes - 512;

// Handles of eight pages.
class LiveMovesHeapTest : public testing::HeapFixture {
 protected:
  explicit LiveMovesHeapTest(const PoolId& pool = kDefaultPool)
      : HeapFixture(32, SimGpu::kManual, testing::kCoarseHandles), heap_{context_, pool, stream_} {
    free(heap_, grow(heap_, 16 * kPageBytes));
  }
  ~LiveMovesHeapTest() override { drain(heap_); }

  // Block `first_` on the first page, `second_` on the fourth, and nothing else on both handles.
  void put_blocks() {
    first_ = allocate(heap_, 512);
    const DevicePtr between = allocate(heap_, 3 * kPageBytes - 512);
    second_ = allocate(heap_, kPageBytes);
    free(heap_, between);
    write();
  }
  void write() {
    SimGpu::fill(stream_, first_, 11, 512);
    SimGpu::fill(side_, second_, 22, kPageBytes - 1);
    SimGpu::fill(stream_, second_ + (kPageBytes - 1), 33, 1);
    SimGpu::finish_all();
  }
  void expect_contents() {
    EXPECT_EQ(SimGpu::peek(first_), 11);
    EXPECT_EQ(SimGpu::peek(first_ + 511), 11);
    EXPECT_EQ(SimGpu::peek(second_), 22);
    EXPECT_EQ(SimGpu::peek(second_ + (kPageBytes - 2)), 22);
    EXPECT_EQ(SimGpu::peek(second_ + (kPageBytes - 1)), 33);
  }
  ArenaHeap::PartlyFree only_one() {
    const std::vector<ArenaHeap::PartlyFree> found = heap_.partly_free_handles();
    EXPECT_EQ(found.size(), 1U);
    return found.at(0);
  }
  bool vacate(const ArenaHeap::PartlyFree& handle) {
    const bool done = heap_.vacate(handle, nullptr);
    check(heap_);
    return done;
  }

  ArenaHeap heap_;
  DevicePtr first_{};
  DevicePtr second_{};
};

TEST_F(LiveMovesHeapTest, AHandleIsPartlyFreeWhereWholePagesAre) {
  EXPECT_TRUE(heap_.partly_free_handles().empty()) << "both are free";
  put_blocks();
  const ArenaHeap::PartlyFree found = only_one();
  EXPECT_EQ(found.begin, first_);
  EXPECT_EQ(found.use.pages, 8U);
  EXPECT_EQ(found.use.used, 2U);
}

TEST_F(LiveMovesHeapTest, WhatIsPendingIsInUse) {
  put_blocks();
  EXPECT_TRUE(record(heap_, second_, side_));
  make_busy(side_, second_);
  free(heap_, second_);
  EXPECT_EQ(only_one().use.used, 2U);
  SimGpu::finish_all();
  EXPECT_TRUE(heap_.collect_pending());
  EXPECT_EQ(only_one().use.used, 1U);
  second_ = allocate(heap_, kPageBytes);
}

TEST_F(LiveMovesHeapTest, ContentsStayAtTheirAddresses) {
  put_blocks();
  const ArenaHeap::PartlyFree handle = only_one();
  const DriverCalls before = driver_.calls();
  ASSERT_TRUE(vacate(handle));
  const DriverCalls after = driver_.calls();
  expect_contents();
  EXPECT_EQ(layout_of(heap_), "L512 F" + std::to_string(kRest) + " | L1p | F8p");
  EXPECT_EQ(after.create - before.create, 2U);
  EXPECT_EQ(after.reserve - before.reserve, 1U);
  EXPECT_EQ(after.unreserve - before.unreserve, 1U);
  EXPECT_EQ(after.map - before.map, 4U) << "for the copy, and in their place";
  EXPECT_EQ(after.set_access - before.set_access, 3U);
  EXPECT_EQ(after.unmap - before.unmap, 2U);
  EXPECT_EQ(after.event_wait - before.event_wait, 2U) << "before the copies and behind them";
  EXPECT_EQ(store_.counts().held, 18U);
  EXPECT_EQ(store_.counts().idle, 8U) << "the handle is free";
  EXPECT_TRUE(heap_.partly_free_handles().empty());
  // The program goes on with its blocks.
  write();
  expect_contents();
}

TEST_F(LiveMovesHeapTest, TheHandleServesAnotherPlace) {
  put_blocks();
  ASSERT_TRUE(vacate(only_one()));
  const std::uint64_t created = driver_.calls().create;
  DevicePtr large{};
  EXPECT_EQ(heap_.allocate_grown(bytes(16 * kPageBytes), GrowFrom::kIdlePages, &large),
            GrowResult::kGrown);
  check(heap_);
  EXPECT_EQ(driver_.calls().create, created);
  EXPECT_EQ(layout_of(heap_), "L512 F" + std::to_string(kRest) + " | L1p | L16p");
  SimGpu::fill(stream_, large, 44, 16 * kPageBytes);
  SimGpu::finish_all();
  expect_contents();
}

TEST_F(LiveMovesHeapTest, IdlePagesOfTheStoreAreUsedFirst) {
  put_blocks();
  std::vector<HandleRange> idle;
  ASSERT_EQ(store_.take_single_pages(3, idle), TakeResult::kOk);
  store_.put_cached(idle);
  const std::uint64_t created = driver_.calls().create;
  ASSERT_TRUE(vacate(only_one()));
  EXPECT_EQ(driver_.calls().create, created);
  EXPECT_EQ(store_.counts().idle, 9U);
  expect_contents();
}

TEST_F(LiveMovesHeapTest, WithoutRoomForTheCopyNothingChanges) {
  put_blocks();
  const ArenaHeap::PartlyFree handle = only_one();
  store_.set_limit(17 * kPageBytes);
  const std::string layout = layout_of(heap_);
  EXPECT_FALSE(vacate(handle));
  EXPECT_EQ(layout_of(heap_), layout);
  expect_contents();
  store_.set_limit(18 * kPageBytes);
  EXPECT_TRUE(vacate(handle));
}

TEST_F(LiveMovesHeapTest, AHandleThatIsWhollyInUseByNowStays) {
  put_blocks();
  const ArenaHeap::PartlyFree handle = only_one();
  const DevicePtr a = allocate(heap_, 3 * kPageBytes - 512);
  const DevicePtr b = allocate(heap_, 4 * kPageBytes);
  const DriverCalls before = driver_.calls();
  EXPECT_FALSE(vacate(handle));
  EXPECT_EQ(driver_.calls().map, before.map);
  EXPECT_EQ(driver_.calls().create, before.create);
  static_cast<void>(a);
  static_cast<void>(b);
}

TEST_F(LiveMovesHeapTest, AHandleThatIsFreeByNowStays) {
  put_blocks();
  const ArenaHeap::PartlyFree handle = only_one();
  free(heap_, first_);
  free(heap_, second_);
  EXPECT_FALSE(vacate(handle));
  EXPECT_EQ(layout_of(heap_), "F16p");
}

TEST_F(LiveMovesHeapTest, SharedHandlesStay) {
  put_blocks();
  const ArenaHeap::PartlyFree handle = only_one();
  SharedRange range;
  ASSERT_EQ(heap_.export_block(*addresses_.find(second_), second_, {}, &range), ExportResult::kOk);
  EXPECT_TRUE(heap_.partly_free_handles().empty());
  EXPECT_FALSE(vacate(handle));
  expect_contents();
}

TEST_F(LiveMovesHeapTest, HandlesOfAStreamThatMayBeGoneStay) {
  put_blocks();
  heap_.set_stream_lasts(false);
  EXPECT_TRUE(heap_.partly_free_handles().empty());
  heap_.set_stream_lasts(true);
}

TEST_F(LiveMovesHeapTest, TheHistorySaysWhereTheContentsWent) {
  struct Observer final : MemoryObserver {
    void on_event(const EventFacts& event) noexcept override {
      if (event.what == MemoryEvent::kMapped || event.what == MemoryEvent::kUnmapped) {
        text += (event.what == MemoryEvent::kMapped ? "+" : "-") +
                std::to_string(event.size / kPageBytes) + event.range.reason + " ";
      }
    }
    std::string text;
  } observer;
  put_blocks();
  observer_.store(&observer);
  ASSERT_TRUE(vacate(only_one()));
  EXPECT_EQ(observer.text, "-8vacated +1move_live +1move_live ");
  observer_.store(nullptr);
}

class LiveMovesInAPoolTest : public LiveMovesHeapTest {
 protected:
  LiveMovesInAPoolTest() : LiveMovesHeapTest({0, 7}) {}
};

TEST_F(LiveMovesInAPoolTest, HandlesOfPrivatePoolsStay) {
  put_blocks();
  EXPECT_TRUE(heap_.partly_free_handles().empty());
}

// Every call fails once, in either way: the contents are there, and the next attempt succeeds.
TEST_F(LiveMovesHeapTest, WhateverCallFailsTheContentsStay) {
  for (const CUresult error : {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN}) {
    for (std::uint64_t call = 1;; ++call) {
      put_blocks();
      const ArenaHeap::PartlyFree handle = only_one();
      FaultyApi::fail_at(call, error);
      bool done = false;
      try {
        done = heap_.vacate(handle, nullptr);
      } catch (const DriverError&) {
      }
      const std::string failed = FaultyApi::failed();
      SCOPED_TRACE("call " + std::to_string(call) + " (" + failed + ") fails with " +
                   std::to_string(static_cast<int>(error)));
      FaultyApi::reset();
      expect_contents();
      heap_.check_invariants();
      if (!done) {
        ASSERT_FALSE(failed.empty());
        EXPECT_EQ(only_one().use.used, 2U);
        EXPECT_TRUE(vacate(handle));
        expect_contents();
      }
      write();
      expect_contents();
      // As it was in the beginning.
      drain(heap_);
      free(heap_, grow(heap_, 16 * kPageBytes));
      if (failed.empty()) {
        ASSERT_GT(call, 15U);
        break;
      }
    }
  }
}

}  // namespace
}  // namespace ferro
