// Locks are held briefly: while one thread is in a driver call that is slow or waits, others
// allocate from the same heap and free into it.
#include "support/device_fixture.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace ferro {
namespace short_locks_test {

using testing::bytes;
using testing::FaultyApi;
using testing::kPageBytes;
using testing::SimGpu;

// All others return within some hundred nanoseconds.
bool is_slow(const std::string& symbol) {
  static const std::set<std::string> kSlow = {"cuMemCreate",
                                              "cuMemMap",
                                              "cuMemSetAccess",
                                              "cuMemUnmap",
                                              "cuMemRelease",
                                              "cuCtxSynchronize",
                                              "cuEventSynchronize",
                                              "cuStreamSynchronize",
                                              "cuMemAddressFree",
                                              "cuMemAddressReserve",
                                              "cuMemExportToShareableHandle"};
  return kSlow.contains(symbol);
}

class ShortLocksTest : public testing::DeviceFixture {
 protected:
  ShortLocksTest() {
    // A page that stays, with room for hits of the other thread between two live blocks.
    allocate(1024);
    const DevicePtr between = allocate(1024);
    allocate(kMiB - 2048);
    free(between);
    FaultyApi::set_watcher([this](const char* symbol) { watch(symbol); });
  }
  ~ShortLocksTest() override {
    FaultyApi::set_watcher(nullptr);
    for (std::future<void>& thread : threads_) {
      thread.get();
    }
    EXPECT_EQ(held_back_by_, std::set<std::string>{});
  }

  // The calls during which another thread got and freed a block.
  const std::set<std::string>& seen() const { return seen_; }

 private:
  void watch(const char* symbol) {
    if (!is_slow(symbol) || is_hit_.exchange(true)) {
      return;
    }
    threads_.push_back(std::async(std::launch::async, [this] {
      const AllocateResult result = device_->allocate(kDefaultPool, stream_, bytes(1024));
      Span& span = *addresses_.find(result.ptr);
      EXPECT_EQ(span.heap()->free(span, result.ptr).error, FreeError::kNone);
    }));
    // A thread that is held back waits for this call, so only a fault takes that long.
    const bool done =
        threads_.back().wait_for(std::chrono::seconds(100)) == std::future_status::ready;
    (done ? seen_ : held_back_by_).insert(symbol);
    is_hit_ = false;
  }

  std::atomic<bool> is_hit_{false};  // so that calls of the hit start no other hit
  std::vector<std::future<void>> threads_;
  std::set<std::string> seen_;
  std::set<std::string> held_back_by_;
};

TEST_F(ShortLocksTest, WhileAHeapGrows) {
  allocate(4 * kPageBytes);
  EXPECT_TRUE(seen().contains("cuMemCreate") && seen().contains("cuMemMap") &&
              seen().contains("cuMemSetAccess"));
}

TEST_F(ShortLocksTest, WhileASpanIsReserved) {
  DeviceFixture::allocate(kPageBytes, side_);
  EXPECT_TRUE(seen().contains("cuMemAddressReserve"));
}

TEST_F(ShortLocksTest, WhilePagesMove) {
  const DevicePtr first = allocate(2 * kPageBytes);
  allocate(kPageBytes);
  const DevicePtr second = allocate(2 * kPageBytes);
  allocate(kPageBytes);
  free(first);
  free(second);
  SimGpu::finish_all();
  allocate(4 * kPageBytes);
  EXPECT_EQ(pages().held, 7U) << "moved, not created";
  SimGpu::finish_all();
  EXPECT_EQ(device_->stale().remove_passed(), 2U);
  EXPECT_TRUE(seen().contains("cuMemUnmap"));
}

TEST_F(ShortLocksTest, WhileTheHostWaitsForStreams) {
  // No stream waits for the memory of a pool, so the host does.
  device_->pools().hold(kGraphPool);
  const DevicePtr large = allocate(14 * kPageBytes, stream_, kGraphPool);
  free_used_by(large, side_);
  allocate(14 * kPageBytes, stream_, kGraphPool);
  EXPECT_TRUE(seen().contains("cuEventSynchronize"));
  device_->pools().release(kGraphPool);
}

TEST_F(ShortLocksTest, WhileTheCacheIsEmptied) {
  const DevicePtr used = allocate(4 * kPageBytes);
  const DevicePtr other = allocate(4 * kPageBytes, side_);
  free_used_by(used, side_);
  free(other);
  device_->empty_cache();
  EXPECT_TRUE(seen().contains("cuMemUnmap") && seen().contains("cuMemRelease") &&
              seen().contains("cuMemAddressFree"));
}

TEST_F(ShortLocksTest, WhileABlockIsSharedWithAnotherProcess) {
  std::vector<DevicePtr> pieces;
  for (int i = 0; i < 8; ++i) {
    pieces.push_back(allocate(kPageBytes));
  }
  for (const DevicePtr piece : pieces) {
    free(piece);
  }
  const DevicePtr large = allocate(8 * kPageBytes);
  SharedRange range;
  ASSERT_EQ(device_->export_block(*addresses_.find(large), large, &range), ExportResult::kOk);
  EXPECT_TRUE(seen().contains("cuMemExportToShareableHandle"));
}

// A capture begins while another thread records a point, which would invalidate it.
class AnnouncedCaptureTest : public testing::DeviceFixture {
 protected:
  AnnouncedCaptureTest() {
    FaultyApi::set_watcher([this](const char* symbol) {
      if (symbol == std::string("cuCtxRecordEvent") && !capturing_.valid()) {
        capturing_ = std::async(std::launch::async, [this] {
          SimGpu::make_current();
          device_->set_captures(1);
          SimGpu::begin_capture(side_, CU_STREAM_CAPTURE_MODE_RELAXED);
        });
        capturing_.wait_for(std::chrono::milliseconds(50));
      }
    });
  }
  ~AnnouncedCaptureTest() override { FaultyApi::set_watcher(nullptr); }

  std::future<void> capturing_;
};

TEST_F(AnnouncedCaptureTest, ItBeginsBehindAPointThatIsBeingRecorded) {
  free(allocate(10 * kPageBytes, side_));
  allocate(kPageBytes);
  ASSERT_TRUE(capturing_.valid()) << "no point was recorded";
  capturing_.get();
  EXPECT_EQ(device_->driver().capture_info(side_).status, CaptureStatus::kActive);
  SimGpu::end_capture(side_);
  device_->set_captures(0);
}

}  // namespace short_locks_test
}  // namespace ferro
