// A large block is shared while the device has work that waits for another process.
#include "support/device_fixture.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <future>
#include <thread>

namespace ferro {
namespace shares_at_work_test {

using testing::FaultyApi;
using testing::kPageBytes;
using testing::SimGpu;

class SharesAtWorkTest : public testing::DeviceFixture {
 protected:
  SharesAtWorkTest() : DeviceFixture(64) {
    std::vector<DevicePtr> pieces;
    for (int i = 0; i < 20; ++i) {
      pieces.push_back(allocate(kPageBytes));
    }
    for (const DevicePtr piece : pieces) {
      free(piece);
    }
    block_ = allocate(20 * kPageBytes);
    SimGpu::fill(side_, block_, 1, 1);
    FaultyApi::set_watcher([this](const char* symbol) {
      if (std::strcmp(symbol, "cuEventSynchronize") == 0) {
        asked_.store(true);
        over_.wait();
      }
    });
  }
  ~SharesAtWorkTest() override {
    end_work();
    // The thread that asked goes on by itself.
    while (asked_.load() && SimGpu::calls("cuEventSynchronize") == synchronised_) {
      std::this_thread::yield();
    }
    FaultyApi::set_watcher(nullptr);
  }

  void end_work() {
    if (!std::exchange(ended_, true)) {
      work_.set_value();
    }
  }
  ExportResult share(std::size_t max_units, SharedRange* range) {
    Span& span = *addresses_.find(block_);
    const ExportRules rules = device_->await_exchange(span, block_, {.max_units = max_units});
    return device_->export_block(span, block_, rules, range);
  }

  DevicePtr block_{};
  std::atomic<bool> asked_{false};
  std::promise<void> work_;
  std::shared_future<void> over_{work_.get_future()};
  bool ended_ = false;
  const std::uint64_t synchronised_ = SimGpu::calls("cuEventSynchronize");
};

TEST_F(SharesAtWorkTest, ItsHandlesStay) {
  const std::uint64_t copies = SimGpu::calls("cuMemcpyDtoDAsync_v2");
  SharedRange range;
  EXPECT_EQ(share(20, &range), ExportResult::kOk);
  EXPECT_EQ(range.units.size(), 20U);
  EXPECT_EQ(SimGpu::calls("cuMemcpyDtoDAsync_v2"), copies);
}

TEST_F(SharesAtWorkTest, WithTooFewDescriptorsItSaysSo) {
  SharedRange range;
  EXPECT_EQ(share(16, &range), ExportResult::kBusy);
}

TEST_F(SharesAtWorkTest, OthersAllocateMeanwhile) {
  std::future<void> other = std::async(std::launch::async, [&] {
    while (!asked_.load()) {
      std::this_thread::yield();
    }
    // A miss, for which pages are made.
    const DevicePtr made = allocate(8 * kPageBytes, side_);
    free(made);
    end_work();
  });
  SharedRange range;
  EXPECT_EQ(share(16, &range), ExportResult::kOk) << "the work ended in time";
  EXPECT_EQ(range.units.size(), 1U);
  other.get();
}

}  // namespace shares_at_work_test
}  // namespace ferro
