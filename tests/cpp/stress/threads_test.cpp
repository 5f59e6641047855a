// Threads, streams and frees across threads: nobody is handed what another holds, and at the end
// everything adds up and the device is empty. Built with ThreadSanitizer it proves the locking.
#include "ferro/base/lazy_array.h"
#include "ferro/core/device_memory.h"
#include "support/sanitizers.h"
#include "support/sim_gpu.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace ferro {
namespace {

using testing::kPageBytes;
using testing::SimGpu;

constexpr std::size_t kThreads = 8;
constexpr std::size_t kDevicePages = 512;
constexpr std::size_t kMostHeld = 32;  // blocks of one thread

struct HeldBlock {
  DevicePtr ptr{};
  std::size_t size = 0;
};

// Who holds which memory, at a grain fine enough to notice overlaps; without a lock, so that it
// does not order the threads.
class Ownership {
 public:
  void take(const HeldBlock& block) { set(block, 0, 1); }
  void give(const HeldBlock& block) { set(block, 1, 0); }
  std::size_t conflicts() const { return conflicts_; }

 private:
  static constexpr std::size_t kGrains = (std::size_t{256} * kGiB) / kBlockAlignment;
  static constexpr std::size_t kStride = 64 * kKiB;

  void set(const HeldBlock& block, std::uint8_t from, std::uint8_t to) {
    const auto change = [&](DevicePtr at) {
      std::uint8_t& grain = grains_[address_of(at) / kBlockAlignment % kGrains];
      conflicts_ += std::atomic_ref(grain).exchange(to) != from ? 1 : 0;
    };
    for (std::size_t offset = 0; offset < block.size; offset += kStride) {
      change(block.ptr + offset);
    }
    if ((block.size - kBlockAlignment) % kStride != 0) {
      change(block.ptr + (block.size - kBlockAlignment));
    }
  }

  LazyArray<std::uint8_t> grains_{kGrains};
  std::atomic<std::size_t> conflicts_{0};
};

// Where threads leave blocks for others to free.
class Mailbox {
 public:
  void put(const HeldBlock& block) {
    const std::lock_guard lock(mutex_);
    blocks_.push_back(block);
  }
  std::optional<HeldBlock> take() {
    const std::lock_guard lock(mutex_);
    if (blocks_.empty()) {
      return std::nullopt;
    }
    const HeldBlock block = blocks_.back();
    blocks_.pop_back();
    return block;
  }

 private:
  std::mutex mutex_;
  std::vector<HeldBlock> blocks_;
};

struct StressCase {
  std::string name;
  std::string settings;
  std::size_t limit_pages;
  int rounds;
};

class ThreadsTest : public ::testing::TestWithParam<StressCase> {
 protected:
  ThreadsTest() {
    for (std::size_t i = 0; i < kThreads / 2 + 1; ++i) {
      streams_.push_back(SimGpu::make_stream());
    }
    device_.store().set_limit(GetParam().limit_pages * kPageBytes);
  }

  // Half of the threads have a stream of their own, the others share one.
  StreamId stream_of(std::size_t thread) const {
    return streams_[std::min(thread, streams_.size() - 1)];
  }
  void free(const HeldBlock& block) {
    ownership_.give(block);
    Span& span = *addresses_.find(block.ptr);
    const FreeResult freed = span.heap()->free(span, block.ptr);
    wrong_frees_ += freed.error != FreeError::kNone || freed.size != block.size ? 1 : 0;
  }
  void use_elsewhere(const HeldBlock& block, StreamId stream) {
    Span& span = *addresses_.find(block.ptr);
    wrong_frees_ += span.heap()->record_stream(span, block.ptr, stream) ? 0 : 1;
    SimGpu::fill(stream, block.ptr, 1, 1);
  }
  void work(std::size_t thread);

  SimGpu gpu_{kDevicePages, GetParam().settings};
  AddressIndex addresses_;
  DeviceMemory device_{SimGpu::api(), 0, addresses_,
                       AllocatorConfig{.handles = testing::kCoarseHandles}, nullptr};
  std::vector<StreamId> streams_;
  Ownership ownership_;
  Mailbox mailbox_;
  std::atomic<std::size_t> wrong_frees_{0};
  std::atomic<std::size_t> refused_{0};
};

void ThreadsTest::work(std::size_t thread) {
  SimGpu::make_current();
  std::mt19937_64 random(thread + 1);
  const PoolId own_pool{0, 100 + thread};
  device_.hold_pool(own_pool);
  std::vector<HeldBlock> mine;
  const auto free_one_of_mine = [&] {
    std::swap(mine[random() % mine.size()], mine.back());
    free(mine.back());
    mine.pop_back();
  };
  for (int round = 0; round < GetParam().rounds; ++round) {
    const std::uint64_t choice = random() % 100;
    if (mine.size() == kMostHeld) {
      free_one_of_mine();
    } else if (choice < 50) {
      // Mostly small, now and then several pages.
      const std::size_t size = random() % 8 != 0 ? kBlockAlignment * (1 + random() % 256)
                                                 : kPageBytes / 2 * (1 + random() % 8);
      const PoolId pool = random() % 10 == 0 ? own_pool : kDefaultPool;
      const AllocateResult result = device_.allocate(pool, stream_of(thread), {size, size});
      if (result.ptr == kNull) {
        ++refused_;
        while (!mine.empty()) {
          free_one_of_mine();
        }
        continue;
      }
      mine.push_back({result.ptr, size});
      ownership_.take(mine.back());
    } else if (choice < 75 && !mine.empty()) {
      free_one_of_mine();
    } else if (choice < 85 && !mine.empty()) {
      if (random() % 2 == 0) {
        use_elsewhere(mine.back(), stream_of(random() % kThreads));
      }
      mailbox_.put(mine.back());
      mine.pop_back();
    } else if (choice < 98) {
      if (const auto block = mailbox_.take()) {
        free(*block);
      }
    } else if (round % 50 == 0) {
      device_.empty_cache();
    } else {
      device_.stats().read();
      device_.largest_free_block();
    }
  }
  while (!mine.empty()) {
    free_one_of_mine();
  }
  wrong_frees_ += device_.release_pool(own_pool) ? 0 : 1;
}

TEST_P(ThreadsTest, EndWithAnEmptyDevice) {
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([this, i] { work(i); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  while (const auto block = mailbox_.take()) {
    free(*block);
  }
  EXPECT_EQ(ownership_.conflicts(), 0U);
  EXPECT_EQ(wrong_frees_, 0U);
  if (GetParam().limit_pages < kDevicePages) {
    EXPECT_LE(device_.store().counts().peak_held, GetParam().limit_pages);
    EXPECT_GT(device_.counters().retries, 0U) << "the limit is there to be met";
  } else {
    EXPECT_EQ(refused_, 0U);
  }
  device_.check_invariants();
  device_.empty_cache();
  device_.check_invariants();
  EXPECT_EQ(device_.segments(nullptr).size(), 0U);
  EXPECT_EQ(SimGpu::used_pages(), 0U);
  const StatTable table = device_.stats().read();
  EXPECT_EQ(table[kActiveBlocks][kAll].current, 0);
  EXPECT_EQ(table[kBytes][kAll].increased, table[kBytes][kAll].decreased);
}

constexpr int kRounds = kThreadSanitizer || kAddressSanitizer ? 4000 : 80'000;

INSTANTIATE_TEST_SUITE_P(
    Cases, ThreadsTest,
    ::testing::Values(
        StressCase{"RoomForAll", SimGpu::kEager, kDevicePages, kRounds},
        StressCase{"UnderALimit", SimGpu::kEager, 48, kRounds},
        StressCase{"LateWork", "mode=adversarial,turn=0.05,seed=3", kDevicePages, kRounds / 2},
        StressCase{"LateWorkUnderALimit", "mode=adversarial,turn=0.05,seed=4", 48, kRounds / 4}),
    [](const auto& given) { return given.param.name; });

}  // namespace
}  // namespace ferro
