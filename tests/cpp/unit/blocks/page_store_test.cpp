#include "ferro/core/pages/page_store.h"

#include "ferro/driver/error.h"
#include "support/faulty_api.h"
#include "support/sim_gpu.h"
#include "support/store_calls.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>

namespace ferro {
namespace page_store_test {

using testing::FaultyApi;
using testing::kPageBytes;
using testing::SimGpu;
using testing::take;
using testing::take_idle;

constexpr std::size_t kDevicePages = 16;

class PageStoreTest : public ::testing::Test {
 protected:
  explicit PageStoreTest(const HandleRules& handles = {})
      : store_(driver_, timeline_, kPageBytes, handles) {
    FaultyApi::reset();
  }
  ~PageStoreTest() override { FaultyApi::reset(); }

  // Checks the equations of the header, and the device's own count.
  void expect_counts(std::size_t held, std::size_t idle) {
    const PageCounts counts = store_.counts();
    EXPECT_EQ(counts.held, held);
    EXPECT_EQ(counts.idle, idle);
    EXPECT_EQ(counts.created - counts.released, held);
    EXPECT_GE(counts.peak_held, counts.held);
    EXPECT_EQ(SimGpu::used_pages(), held);
  }

  SimGpu gpu_{kDevicePages};
  Driver driver_{FaultyApi::table(), 0};
  EventPool events_{driver_};
  CaptureCount captures_;
  DeviceTimeline timeline_{driver_, events_, captures_, nullptr};
  PageStore store_;
  testing::Handles pages_;
};

TEST_F(PageStoreTest, WhatRetiresIsHeldAsLongAsItIsMapped) {
  PageHandle handle{};
  ASSERT_EQ(store_.create_one(2, &handle), TakeResult::kOk);
  const auto mapping = std::make_shared<StaleMapping>();
  store_.retire({{handle, 2}, mapping});
  expect_counts(2, 2);
  EXPECT_EQ(store_.trim(2), 0U);
  EXPECT_EQ(driver_.calls().release, 0U);
  mapping->removed.store(true);
  EXPECT_EQ(store_.trim(0), 2U) << "it was not cached, but is released";
  expect_counts(0, 0);
}

TEST_F(PageStoreTest, ReleasesTheHandlesItIsGivenAndNoOthers) {
  PageHandle large{};
  PageHandle left{};
  ASSERT_EQ(store_.create_one(2, &large), TakeResult::kOk);
  ASSERT_EQ(store_.create_one(1, &left), TakeResult::kOk);
  const auto mapping = std::make_shared<StaleMapping>();
  const StoredHandle leaving{{left, 1}, mapping};
  store_.put({&leaving, 1});
  mapping->removed.store(true);
  const HandleRange range{large, 2};
  store_.release({&range, 1});
  expect_counts(1, 1);
  ASSERT_TRUE(take_idle(store_, 1, pages_));
  EXPECT_EQ(pages_.front().range.handle, left);
}

TEST_F(PageStoreTest, WhatItCannotReleaseIsCached) {
  ASSERT_EQ(take(store_, 3, Fit::kAtLeast, pages_), TakeResult::kOk);
  const std::vector<HandleRange> ranges{pages_[0].range, pages_[1].range, pages_[2].range};
  pages_.clear();
  FaultyApi::fail_only("cuMemRelease", 2, CUDA_ERROR_UNKNOWN);
  store_.release(ranges);
  FaultyApi::reset();
  expect_counts(1, 1);
  ASSERT_TRUE(take_idle(store_, 1, pages_));
  EXPECT_EQ(pages_.front().range.handle, ranges[1].handle);
}

TEST_F(PageStoreTest, CreatesWhatIsMissingAndReusesWhatIsIdle) {
  ASSERT_EQ(take(store_, 3, Fit::kAtLeast, pages_), TakeResult::kOk);
  EXPECT_EQ(testing::count_pages(pages_), 3U);
  expect_counts(3, 0);
  store_.put(pages_);
  expect_counts(3, 3);
  pages_.clear();
  ASSERT_EQ(take(store_, 5, Fit::kAtLeast, pages_), TakeResult::kOk);
  expect_counts(5, 0);
  EXPECT_EQ(driver_.calls().create, 5U);
  std::set<PageHandle> different;
  for (const StoredHandle& handle : pages_) {
    different.insert(handle.range.handle);
  }
  EXPECT_EQ(different.size(), 5U);
}

TEST_F(PageStoreTest, AppendsToWhatTheCallerHas) {
  pages_ = {{{PageHandle{1}, 1}, nullptr}};
  ASSERT_EQ(take(store_, 1, Fit::kAtLeast, pages_), TakeResult::kOk);
  ASSERT_EQ(pages_.size(), 2U);
  EXPECT_EQ(pages_.front().range.handle, PageHandle{1});
}

TEST_F(PageStoreTest, TakeIdleNeverCreates) {
  EXPECT_FALSE(take_idle(store_, 1, pages_));
  ASSERT_EQ(take(store_, 2, Fit::kAtLeast, pages_), TakeResult::kOk);
  store_.put(pages_);
  pages_.clear();
  EXPECT_FALSE(take_idle(store_, 3, pages_));
  EXPECT_TRUE(pages_.empty());
  expect_counts(2, 2);
  EXPECT_TRUE(take_idle(store_, 2, pages_));
  expect_counts(2, 0);
  EXPECT_EQ(driver_.calls().create, 2U);
}

TEST_F(PageStoreTest, TheLimitCountsWhatIsHeld) {
  store_.set_limit(4 * kPageBytes + kPageBytes / 2);
  EXPECT_EQ(store_.limit(), 4 * kPageBytes + kPageBytes / 2);
  EXPECT_EQ(take(store_, 5, Fit::kAtLeast, pages_), TakeResult::kOverLimit);
  expect_counts(0, 0);
  ASSERT_EQ(take(store_, 4, Fit::kAtLeast, pages_), TakeResult::kOk);
  EXPECT_EQ(take(store_, 1, Fit::kAtLeast, pages_), TakeResult::kOverLimit);
  // Idle pages are held already.
  store_.put(pages_);
  pages_.clear();
  EXPECT_EQ(take(store_, 4, Fit::kAtLeast, pages_), TakeResult::kOk);
  expect_counts(4, 0);
  EXPECT_EQ(driver_.calls().create, 4U);
}

TEST_F(PageStoreTest, ALoweredLimitLeavesWhatIsHeld) {
  ASSERT_EQ(take(store_, 4, Fit::kAtLeast, pages_), TakeResult::kOk);
  store_.set_limit(2 * kPageBytes);
  expect_counts(4, 0);
  testing::Handles more;
  EXPECT_EQ(take(store_, 1, Fit::kAtLeast, more), TakeResult::kOverLimit);
  store_.put(pages_);
  EXPECT_EQ(store_.trim(2), 2U);
  EXPECT_EQ(take(store_, 2, Fit::kAtLeast, more), TakeResult::kOk);
  expect_counts(2, 0);
}

TEST_F(PageStoreTest, AFullDeviceIsAskedOnceForManyPages) {
  EXPECT_EQ(take(store_, kDevicePages + 1, Fit::kAtLeast, pages_), TakeResult::kOutOfMemory);
  EXPECT_TRUE(pages_.empty());
  EXPECT_EQ(driver_.calls().create, 0U) << "a query first is cheaper";
  expect_counts(0, 0);
  ASSERT_EQ(take(store_, kDevicePages, Fit::kAtLeast, pages_), TakeResult::kOk);
  testing::Handles more;
  EXPECT_EQ(take(store_, 1, Fit::kAtLeast, more), TakeResult::kOutOfMemory);
  EXPECT_TRUE(more.empty());
  expect_counts(kDevicePages, 0);
}

TEST_F(PageStoreTest, ARefusalInTheMiddleGivesBackWhatWasCreated) {
  FaultyApi::fail_only("cuMemCreate", 3, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(take(store_, 4, Fit::kAtLeast, pages_), TakeResult::kOutOfMemory);
  EXPECT_TRUE(pages_.empty());
  expect_counts(0, 0);
  EXPECT_EQ(store_.counts().peak_held, 0U) << "pages that were never handed out";
}

TEST_F(PageStoreTest, AnErrorInTheMiddleThrowsAndKeepsIdlePagesIdle) {
  ASSERT_EQ(take(store_, 2, Fit::kAtLeast, pages_), TakeResult::kOk);
  store_.put(pages_);
  pages_.clear();
  FaultyApi::fail_only("cuMemCreate", 2, CUDA_ERROR_UNKNOWN);
  EXPECT_THROW(static_cast<void>(take(store_, 5, Fit::kAtLeast, pages_)), DriverError);
  EXPECT_TRUE(pages_.empty());
  expect_counts(2, 2);
}

TEST_F(PageStoreTest, APageThatTheDriverDoesNotReleaseStaysIdle) {
  FaultyApi::fail_only("cuMemRelease", 1, CUDA_ERROR_UNKNOWN);
  ASSERT_EQ(take(store_, kDevicePages, Fit::kAtLeast, pages_), TakeResult::kOk);
  store_.put(pages_);
  EXPECT_EQ(store_.trim(kDevicePages), 0U);
  expect_counts(kDevicePages, kDevicePages);
  EXPECT_EQ(store_.trim(kDevicePages), kDevicePages);
  expect_counts(0, 0);
}

TEST_F(PageStoreTest, TrimReleasesAtMostWhatIsAskedFor) {
  ASSERT_EQ(take(store_, 5, Fit::kAtLeast, pages_), TakeResult::kOk);
  EXPECT_EQ(store_.trim(5), 0U) << "nothing is idle";
  store_.put(pages_);
  EXPECT_EQ(store_.trim(2), 2U);
  expect_counts(3, 3);
  EXPECT_EQ(store_.trim(~std::size_t{0}), 3U);
  expect_counts(0, 0);
  EXPECT_EQ(driver_.calls().release, 5U);
}

TEST_F(PageStoreTest, ThePeakIsOfHandedOutPagesAndCanBeReset) {
  ASSERT_EQ(take(store_, 5, Fit::kAtLeast, pages_), TakeResult::kOk);
  store_.put(pages_);
  store_.trim(3);
  EXPECT_EQ(store_.counts().peak_held, 5U);
  store_.reset_peak();
  EXPECT_EQ(store_.counts().peak_held, 2U);
}

// Handles are half as large as a request.
class LargeHandlesInStoreTest : public PageStoreTest {
 protected:
  LargeHandlesInStoreTest() : PageStoreTest(testing::kCoarseHandles) {}

  TakeResult take(std::size_t count, Fit fit) {
    pages_.clear();
    return testing::take(store_, count, fit, pages_);
  }
};

TEST_F(LargeHandlesInStoreTest, TheLastHandleMayBringMore) {
  ASSERT_EQ(take(8, Fit::kAtLeast), TakeResult::kOk);
  EXPECT_EQ(driver_.calls().create, 2U);
  expect_counts(8, 0);
  store_.put(pages_);
  ASSERT_EQ(take(5, Fit::kAtLeast), TakeResult::kOk);
  EXPECT_EQ(testing::count_pages(pages_), 8U);
  store_.put(pages_);
  ASSERT_EQ(take(4, Fit::kAtLeast), TakeResult::kOk);
  EXPECT_EQ(testing::count_pages(pages_), 4U);
  expect_counts(8, 4);
}

TEST_F(LargeHandlesInStoreTest, AnExactFitLeavesLargerHandlesIdle) {
  ASSERT_EQ(take(8, Fit::kAtLeast), TakeResult::kOk);
  store_.put(pages_);
  ASSERT_EQ(take(5, Fit::kExactly), TakeResult::kOk);
  EXPECT_EQ(testing::count_pages(pages_), 5U);
  expect_counts(9, 4);
  EXPECT_EQ(driver_.calls().create, 3U);
}

TEST_F(LargeHandlesInStoreTest, UnderALimitLargerHandlesMakeRoomForAnExactFit) {
  store_.set_limit(8 * kPageBytes);
  ASSERT_EQ(take(8, Fit::kAtLeast), TakeResult::kOk);
  store_.put(pages_);
  ASSERT_EQ(take(5, Fit::kExactly), TakeResult::kOk);
  EXPECT_EQ(testing::count_pages(pages_), 5U);
  expect_counts(5, 0);
  EXPECT_EQ(take(4, Fit::kExactly), TakeResult::kOverLimit);
  expect_counts(5, 0);
}

TEST_F(LargeHandlesInStoreTest, TrimNeverReleasesMoreThanIsAskedFor) {
  ASSERT_EQ(take(8, Fit::kAtLeast), TakeResult::kOk);
  store_.put(pages_);
  EXPECT_EQ(store_.trim(3), 0U);
  EXPECT_EQ(store_.trim(7), 4U);
  expect_counts(4, 4);
}

TEST_F(PageStoreTest, HandlesAreSmallRelativeToTheRoomOfDeviceAndLimit) {
  const HandleRules halves{.of_request = 1, .of_room = 2, .of_held = 1};
  PageStore store(driver_, timeline_, kPageBytes, halves);
  testing::Handles pages;
  const auto create = [&] {
    const std::uint64_t before = driver_.calls().create;
    EXPECT_EQ(take(store, 8, Fit::kAtLeast, pages), TakeResult::kOk);
    store.put(pages);
    pages.clear();
    EXPECT_EQ(store.trim(8), 8U);
    return driver_.calls().create - before;
  };
  EXPECT_EQ(create(), 1U) << "of sixteen";
  store.set_limit(8 * kPageBytes);
  EXPECT_EQ(create(), 2U) << "of eight";
}

TEST_F(PageStoreTest, HeadroomIsLeftToOthers) {
  const std::size_t on_device = driver_.memory_info().free_bytes / kPageBytes;
  PageStore modest(driver_, timeline_, kPageBytes, HandleRules{}, 2 * kPageBytes);
  testing::Handles pages;
  EXPECT_EQ(take(modest, on_device - 1, Fit::kAtLeast, pages), TakeResult::kOutOfMemory);
  EXPECT_EQ(take(modest, on_device - 2, Fit::kAtLeast, pages), TakeResult::kOk);
  EXPECT_EQ(take(modest, 1, Fit::kAtLeast, pages), TakeResult::kOutOfMemory);
  PageHandle run{};
  EXPECT_EQ(modest.create_one(1, &run), TakeResult::kOutOfMemory);
  EXPECT_EQ(driver_.memory_info().free_bytes, 2 * kPageBytes);
  modest.put(pages);
  EXPECT_EQ(modest.trim(on_device - 2), on_device - 2);
}

}  // namespace page_store_test
}  // namespace ferro
