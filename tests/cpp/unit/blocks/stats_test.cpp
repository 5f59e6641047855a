// DeviceStats compared with sums that are updated step by step.
#include "ferro/core/stats/stats.h"

#include "ferro/base/biased_mutex.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <thread>
#include <vector>

namespace ferro {
namespace stats_test {

// A heap's part in the protocol: activity is noted before each change, and both
// are done under the heap's lock.
class FakeHeap {
 public:
  explicit FakeHeap(DeviceStats& device) : device_(device) { stats_.lock = &mutex_; }
  ~FakeHeap() { device_.remove_heap(&stats_); }
  FakeHeap(const FakeHeap&) = delete;
  FakeHeap& operator=(const FakeHeap&) = delete;

  void allocate(std::int64_t size, std::int64_t requested) {
    const BiasedSpinLock lock(mutex_);
    device_.note_activity(&stats_, countdown_);
    stats_.on_allocate(size, requested);
  }
  void allocate(std::int64_t size) { allocate(size, size); }
  void free(std::int64_t size, std::int64_t requested) {
    const BiasedSpinLock lock(mutex_);
    device_.note_activity(&stats_, countdown_);
    stats_.on_free(size, requested);
  }
  void free(std::int64_t size) { free(size, size); }
  void free_pending(std::int64_t size) {
    const BiasedSpinLock lock(mutex_);
    device_.note_activity(&stats_, countdown_);
    stats_.on_free_pending(size);
  }
  void complete(std::int64_t size, std::int64_t requested) {
    const BiasedSpinLock lock(mutex_);
    device_.note_activity(&stats_, countdown_);
    stats_.on_pending_complete(size, requested);
  }

 private:
  DeviceStats& device_;
  BiasedSpinMutex mutex_;
  HeapStats stats_;
  int countdown_ = 0;
};

constexpr std::int64_t kSmallSize = 4096;
constexpr std::int64_t kLargeSize = 3 << 20;

void expect_value(const StatValue& value, const StatValue& expected, const char* what) {
  EXPECT_EQ(value.current, expected.current) << what;
  EXPECT_EQ(value.peak, expected.peak) << what;
  EXPECT_EQ(value.increased, expected.increased) << what;
  EXPECT_EQ(value.decreased, expected.decreased) << what;
}

TEST(DeviceStats, BeginsWithZeros) {
  DeviceStats device;
  const StatTable table = device.read();
  expect_value(table[kBytes][kAll], {0, 0, 0, 0}, "bytes");
}

TEST(DeviceStats, AMebibyteIsTheLastSmallSize) {
  EXPECT_EQ(HeapStats::class_of(1 << 20), kSmall);
  EXPECT_EQ(HeapStats::class_of((1 << 20) + 512), kLarge);
}

TEST(DeviceStats, CountsByKindAndClass) {
  DeviceStats device;
  FakeHeap heap(device);
  heap.allocate(kSmallSize, 4000);
  heap.allocate(kLargeSize, kLargeSize - 5);
  heap.free(kSmallSize, 4000);
  const StatTable table = device.read();
  expect_value(table[kBlocks][kAll], {1, 2, 2, 1}, "blocks");
  expect_value(table[kBlocks][kSmall], {0, 1, 1, 1}, "small blocks");
  expect_value(table[kBlocks][kLarge], {1, 1, 1, 0}, "large blocks");
  expect_value(table[kBytes][kAll],
               {kLargeSize, kLargeSize + kSmallSize, kLargeSize + kSmallSize, kSmallSize}, "bytes");
  expect_value(table[kRequested][kSmall], {0, 4000, 4000, 4000}, "requested");
  expect_value(table[kActiveBytes][kLarge], {kLargeSize, kLargeSize, kLargeSize, 0}, "active");
}

TEST(DeviceStats, APendingBlockIsActiveAndRequestedUntilItIsComplete) {
  DeviceStats device;
  FakeHeap heap(device);
  heap.allocate(kLargeSize, kLargeSize - 100);
  heap.free_pending(kLargeSize);
  StatTable table = device.read();
  expect_value(table[kBytes][kAll], {0, kLargeSize, kLargeSize, kLargeSize}, "bytes");
  expect_value(table[kActiveBytes][kAll], {kLargeSize, kLargeSize, kLargeSize, 0}, "active");
  expect_value(table[kRequested][kAll], {kLargeSize - 100, kLargeSize - 100, kLargeSize - 100, 0},
               "requested");
  heap.allocate(kLargeSize, kLargeSize - 100);
  heap.complete(kLargeSize, kLargeSize - 100);
  table = device.read();
  expect_value(table[kBlocks][kAll], {1, 1, 2, 1}, "blocks");
  expect_value(table[kActiveBlocks][kAll], {1, 2, 2, 1}, "active blocks");
}

TEST(DeviceStats, ThePeakOfASumIsNotTheSumOfPeaks) {
  DeviceStats device;
  FakeHeap a(device);
  FakeHeap b(device);
  a.allocate(1024);
  a.free(1024);
  b.allocate(1024);
  b.free(1024);
  EXPECT_EQ(device.read()[kBytes][kAll].peak, 1024);
}

TEST(DeviceStats, APeakBetweenTwoReadsIsSeenOnEveryHeap) {
  DeviceStats device;
  FakeHeap a(device);
  FakeHeap b(device);
  FakeHeap c(device);
  a.allocate(1024);
  b.allocate(2048);
  c.allocate(4096);
  c.free(4096);
  b.allocate(512);
  b.free(512);
  a.free(1024);
  EXPECT_EQ(device.read()[kBytes][kAll].peak, 1024 + 2048 + 4096);
  EXPECT_EQ(device.read()[kBytes][kAll].current, 2048);
}

TEST(DeviceStats, ResetPeaksBeginsAtTheCurrentValue) {
  DeviceStats device;
  FakeHeap a(device);
  FakeHeap b(device);
  a.allocate(8192);
  b.allocate(1024);
  a.free(8192);
  device.reset_peaks();
  EXPECT_EQ(device.read()[kBytes][kAll].peak, 1024);
  a.allocate(512);
  EXPECT_EQ(device.read()[kBytes][kAll].peak, 1536);
  EXPECT_EQ(device.read()[kBytes][kAll].increased, 8192 + 1024 + 512) << "only peaks were reset";
}

TEST(DeviceStats, ResetAccumulatedKeepsCurrentAndPeak) {
  DeviceStats device;
  FakeHeap heap(device);
  heap.allocate(8192);
  heap.allocate(1024);
  heap.free(8192);
  device.reset_accumulated();
  expect_value(device.read()[kBytes][kAll], {1024, 9216, 0, 0}, "bytes");
  heap.free(1024);
  expect_value(device.read()[kBytes][kAll], {0, 9216, 0, 1024}, "bytes");
}

TEST(DeviceStats, ARetiredHeapLeavesItsAccumulatedValuesAndPeak) {
  DeviceStats device;
  FakeHeap stays(device);
  stays.allocate(512);
  {
    FakeHeap goes(device);
    goes.allocate(4096);
    goes.free(4096);
  }
  expect_value(device.read()[kBytes][kAll], {512, 512 + 4096, 512 + 4096, 4096}, "bytes");
  stays.allocate(512);
  EXPECT_EQ(device.read()[kBytes][kAll].peak, 512 + 4096);
}

// One thread at a time, but not always the same one: a backward pass runs on another thread.
TEST(DeviceStats, PeaksAreExactWhenAnotherThreadTakesOver) {
  DeviceStats device;
  FakeHeap a(device);
  FakeHeap b(device);
  a.allocate(512);
  std::thread([&] {
    b.allocate(512);
    a.allocate(512);
    b.allocate(8192);
    b.free(8192);
    a.free(512);
    b.free(512);
  }).join();
  EXPECT_EQ(device.read()[kBytes][kAll].peak, 3 * 512 + 8192);
}

TEST(DeviceStats, ManyThreadsSumExactlyAndNeverPeakBelowTheEnd) {
  DeviceStats device;
  constexpr int kThreads = 4;
  constexpr int kRounds = 2000;
  std::vector<std::unique_ptr<FakeHeap>> heaps;
  for (int i = 0; i < kThreads; ++i) {
    heaps.push_back(std::make_unique<FakeHeap>(device));
  }
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&heap = *heaps[static_cast<std::size_t>(i)], &device] {
      for (int round = 0; round < kRounds; ++round) {
        heap.allocate(512);
        if (round % 100 == 0) {
          device.read();
        }
        if (round % 2 == 0) {
          heap.free(512);
        }
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  const StatValue bytes = device.read()[kBytes][kAll];
  EXPECT_EQ(bytes.current, kThreads * kRounds / 2 * 512);
  EXPECT_EQ(bytes.increased, kThreads * kRounds * 512);
  EXPECT_EQ(bytes.decreased, kThreads * kRounds / 2 * 512);
  EXPECT_GE(bytes.peak, bytes.current);
  EXPECT_LE(bytes.peak, bytes.current + kThreads * 512);
}

// The model: all sums, updated at once by every operation.
class StatsModel {
 public:
  void change(StatKind kind, std::int64_t size, std::int64_t amount) {
    for (const StatClass cls : {kAll, HeapStats::class_of(static_cast<std::size_t>(size))}) {
      StatValue& value = table_[kind][cls];
      value.current += amount;
      value.peak = std::max(value.peak, value.current);
      (amount > 0 ? value.increased : value.decreased) += amount > 0 ? amount : -amount;
    }
  }
  template <typename Function>
  void for_each(Function function) {
    for (auto& row : table_) {
      std::ranges::for_each(row, function);
    }
  }
  const StatTable& table() const { return table_; }

 private:
  StatTable table_{};
};

struct ModelBlock {
  std::size_t heap;
  std::int64_t size;
  std::int64_t requested;
};

class StatsModelTest : public ::testing::TestWithParam<unsigned> {
 protected:
  void allocate() {
    const std::size_t heap = random_() % heaps_.size();
    const std::int64_t size = 512 * static_cast<std::int64_t>(1 + random_() % 5000);
    const std::int64_t requested = size - static_cast<std::int64_t>(random_() % 512);
    heaps_[heap]->allocate(size, requested);
    live_.push_back({heap, size, requested});
    for (const StatKind kind : {kBlocks, kActiveBlocks}) {
      model_.change(kind, size, 1);
    }
    for (const StatKind kind : {kBytes, kActiveBytes}) {
      model_.change(kind, size, size);
    }
    model_.change(kRequested, size, requested);
  }
  void free() {
    const ModelBlock block = take(live_);
    model_.change(kBlocks, block.size, -1);
    model_.change(kBytes, block.size, -block.size);
    if (random_() % 3 == 0) {
      heaps_[block.heap]->free_pending(block.size);
      pending_.push_back(block);
      return;
    }
    heaps_[block.heap]->free(block.size, block.requested);
    no_longer_active(block);
  }
  void complete() {
    const ModelBlock block = take(pending_);
    heaps_[block.heap]->complete(block.size, block.requested);
    no_longer_active(block);
  }
  void replace_a_heap() {
    const std::size_t heap = random_() % heaps_.size();
    const auto on_heap = [heap](const ModelBlock& block) { return block.heap == heap; };
    if (std::ranges::none_of(live_, on_heap) && std::ranges::none_of(pending_, on_heap)) {
      heaps_[heap] = std::make_unique<FakeHeap>(device_);
    }
  }
  void reset_peaks() {
    device_.reset_peaks();
    model_.for_each([](StatValue& value) { value.peak = value.current; });
  }
  void reset_accumulated() {
    device_.reset_accumulated();
    model_.for_each([](StatValue& value) { value.increased = value.decreased = 0; });
  }

  void no_longer_active(const ModelBlock& block) {
    model_.change(kActiveBlocks, block.size, -1);
    model_.change(kActiveBytes, block.size, -block.size);
    model_.change(kRequested, block.size, -block.requested);
  }
  ModelBlock take(std::vector<ModelBlock>& blocks) {
    std::swap(blocks[random_() % blocks.size()], blocks.back());
    const ModelBlock block = blocks.back();
    blocks.pop_back();
    return block;
  }

  std::mt19937_64 random_{GetParam()};
  DeviceStats device_;
  std::vector<std::unique_ptr<FakeHeap>> heaps_;
  std::vector<ModelBlock> live_;
  std::vector<ModelBlock> pending_;
  StatsModel model_;
};

TEST_P(StatsModelTest, OneThreadOverManyHeapsIsExact) {
  for (int i = 0; i < 5; ++i) {
    heaps_.push_back(std::make_unique<FakeHeap>(device_));
  }
  for (int step = 0; step < 3000; ++step) {
    const std::uint64_t choice = random_() % 100;
    if (choice < 45 || (choice < 85 && live_.empty())) {
      allocate();
    } else if (choice < 85) {
      free();
    } else if (choice < 95 && !pending_.empty()) {
      complete();
    } else if (choice == 95) {
      reset_peaks();
    } else if (choice == 96) {
      reset_accumulated();
    } else if (choice > 96) {
      replace_a_heap();
    }
    // A read closes the window, so most steps do not read.
    if (step % 7 != 0) {
      continue;
    }
    const StatTable table = device_.read();
    for (std::size_t kind = 0; kind < kStatKinds; ++kind) {
      for (std::size_t cls = 0; cls < kStatClasses; ++cls) {
        const StatValue& value = table[kind][cls];
        const StatValue& expected = model_.table()[kind][cls];
        ASSERT_EQ(value.current, expected.current) << "kind " << kind << " class " << cls;
        ASSERT_EQ(value.peak, expected.peak) << "kind " << kind << " class " << cls;
        ASSERT_EQ(value.increased, expected.increased) << "kind " << kind << " class " << cls;
        ASSERT_EQ(value.decreased, expected.decreased) << "kind " << kind << " class " << cls;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, StatsModelTest, ::testing::Range(1U, 9U));

}  // namespace stats_test
}  // namespace ferro
