// Threads, streams and frees across threads, with pools and shared blocks. No thread gets memory
// that another one holds, and at the end the statistics agree and the device is empty. With
// ThreadSanitizer it tests the locking.
#include "ferro/base/lazy_array.h"
#include "ferro/core/device/device_memory.h"
#include "support/sanitizers.h"
#include "support/sim_gpu.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <latch>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace ferro {
namespace threads_test {

using testing::kPageBytes;
using testing::SimGpu;

constexpr std::size_t kThreads = 8;
constexpr std::size_t kDevicePages = 512;
constexpr std::size_t kMostHeld = 32;  // blocks of one thread

struct HeldBlock {
  DevicePtr ptr{};
  std::size_t size = 0;
};

// The owners of memory, fine-grained enough to notice overlaps; without a lock, so that it does not
// order the threads.
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
  std::size_t headroom_pages;
  int rounds;

  std::size_t most_pages() const { return std::min(limit_pages, kDevicePages - headroom_pages); }
};

class ThreadsTest : public ::testing::TestWithParam<StressCase> {
 protected:
  ThreadsTest() {
    for (std::size_t i = 0; i < kThreads / 2 + 1; ++i) {
      streams_.push_back(SimGpu::make_stream());
    }
    device_.store().set_limit(GetParam().limit_pages * kPageBytes);
  }

  AllocatorConfig config() {
    return {.handles = testing::kCoarseHandles,
            .headroom = GetParam().headroom_pages * kPageBytes,
            .stream_lasts = [this](DeviceId, StreamId stream) { return stream != streams_[0]; }};
  }
  // Half of the threads have their own stream, the others share one.
  StreamId stream_of(std::size_t thread) const {
    return streams_[std::min(thread, streams_.size() - 1)];
  }
  void free(const HeldBlock& block) {
    ownership_.give(block);
    Span& span = *addresses_.find(block.ptr);
    const FreeResult freed = span.heap()->free(span, block.ptr);
    wrong_answers_ += freed.error != FreeError::kNone || freed.size != block.size ? 1 : 0;
  }
  void use_elsewhere(const HeldBlock& block, StreamId stream) {
    Span& span = *addresses_.find(block.ptr);
    wrong_answers_ += span.heap()->record_stream(span, block.ptr, stream) ? 0 : 1;
    SimGpu::fill(stream, block.ptr, 1, 1);
  }
  void share(const HeldBlock& block) {
    Span& span = *addresses_.find(block.ptr);
    SharedRange range;
    const ExportResult result = device_.export_block(span, block.ptr, &range);
    wrong_answers_ += result == ExportResult::kOk && !range.units.empty() ? 0 : 1;
  }
  // Frees an unowned block when memory is short.
  bool relieve() {
    const auto block = mailbox_.take();
    if (block) {
      free(*block);
    }
    return block.has_value();
  }
  void work(std::size_t thread);

  SimGpu gpu_{kDevicePages, GetParam().settings + ",devices=2"};
  AddressIndex addresses_;
  std::vector<StreamId> streams_;
  Ownership ownership_;
  Mailbox mailbox_;
  std::atomic<std::size_t> wrong_answers_{0};
  std::atomic<std::size_t> refused_{0};
  DeviceMemory device_{SimGpu::api(), 0, addresses_, config(), [this] { return relieve(); }};
};

void ThreadsTest::work(std::size_t thread) {
  SimGpu::make_current();
  std::mt19937_64 random(thread + 1);
  const PoolId own_pool{0, 100 + thread};
  device_.pools().hold(own_pool);
  std::vector<HeldBlock> mine;
  DevicePtr last_freed = kNull;
  const auto take = [&](DevicePtr ptr, std::size_t size) {
    mine.push_back({ptr, size});
    ownership_.take(mine.back());
  };
  const auto free_one_of_mine = [&] {
    std::swap(mine[random() % mine.size()], mine.back());
    last_freed = mine.back().ptr;
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
      take(result.ptr, result.size);
    } else if (choice < 52) {
      const AllocateResult result = device_.allocate_at(kDefaultPool, stream_of(thread), last_freed,
                                                        {kBlockAlignment, kBlockAlignment});
      if (result.ptr != kNull) {
        take(result.ptr, result.size);
      }
    } else if (choice < 75 && !mine.empty()) {
      free_one_of_mine();
    } else if (choice < 85 && !mine.empty()) {
      if (random() % 2 == 0) {
        use_elsewhere(mine.back(), stream_of(random() % kThreads));
      }
      mailbox_.put(mine.back());
      mine.pop_back();
    } else if (choice < 97) {
      if (const auto block = mailbox_.take()) {
        free(*block);
      }
    } else if (choice < 98 && !mine.empty() && round % 8 == 0) {
      share(mine.back());
    } else if (round % 50 == 0) {
      device_.empty_cache();
    } else if (round == GetParam().rounds / 2) {
      device_.add_peer(1);
    } else {
      device_.stats().read();
      device_.report().largest_free_block();
    }
  }
  while (!mine.empty()) {
    free_one_of_mine();
  }
  wrong_answers_ += device_.pools().release(own_pool) ? 0 : 1;
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
  EXPECT_EQ(wrong_answers_, 0U);
  if (GetParam().most_pages() < kDevicePages) {
    EXPECT_LE(device_.store().counts().peak_held, GetParam().most_pages());
    EXPECT_GT(device_.report().counters().retries, 0U) << "some request should reach the limit";
  } else {
    EXPECT_EQ(refused_, 0U);
  }
  device_.report().check_invariants();
  device_.empty_cache();
  device_.report().check_invariants();
  EXPECT_EQ(device_.report().segments(nullptr).size(), 0U);
  EXPECT_EQ(SimGpu::used_pages(), 0U);
  EXPECT_EQ(device_.exports().count(), 0U);
  const StatTable table = device_.stats().read();
  EXPECT_EQ(table[kActiveBlocks][kAll].current, 0);
  EXPECT_EQ(table[kBytes][kAll].increased, table[kBytes][kAll].decreased);
}

constexpr int kRounds = kThreadSanitizer || kAddressSanitizer ? 4000 : 80'000;

constexpr const char* kLate = "mode=adversarial,turn=0.05,seed=3";

INSTANTIATE_TEST_SUITE_P(
    Cases, ThreadsTest,
    ::testing::Values(StressCase{"RoomForAll", SimGpu::kEager, kDevicePages, 0, kRounds},
                      StressCase{"UnderALimit", SimGpu::kEager, 48, 0, kRounds},
                      StressCase{"WithHeadroom", SimGpu::kEager, kDevicePages, kDevicePages - 48,
                                 kRounds / 2},
                      StressCase{"LateWork", kLate, kDevicePages, 0, kRounds / 2},
                      StressCase{"LateWorkUnderALimit", kLate, 48, 0, kRounds / 4}),
    [](const auto& given) { return given.param.name; });

TEST(LookupTest, AddressesAreFoundWhileSpansComeAndGo) {
  const SimGpu gpu(kDevicePages, SimGpu::kEager);
  AddressIndex addresses;
  DeviceMemory device(SimGpu::api(), 0, addresses, {}, nullptr);
  std::array<std::atomic<std::uint64_t>, 4> last{};
  std::atomic<std::size_t> wrong{0};
  std::latch start(last.size());
  std::vector<std::thread> threads;
  for (std::size_t thread = 0; thread < last.size(); ++thread) {
    threads.emplace_back([&, thread] {
      SimGpu::make_current();
      const StreamId stream = SimGpu::make_stream();
      start.arrive_and_wait();
      for (int round = 0; round < 2000; ++round) {
        const std::size_t size = kPageBytes * (5 + thread);
        const DevicePtr ptr = device.allocate(kDefaultPool, stream, {size, size}).ptr;
        Span* span = addresses.find(ptr + (size - 1));
        wrong += span != nullptr && span->base() <= ptr && span->heap()->stream() == stream ? 0 : 1;
        last[thread] = address_of(ptr);
        // The span of another thread may exist or not.
        addresses.find(DevicePtr{last[(thread + 1) % last.size()].load()});
        wrong += span->heap()->free(*span, ptr).error == FreeError::kNone ? 0 : 1;
        device.empty_cache();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(wrong, 0U);
  EXPECT_EQ(SimGpu::used_pages(), 0U);
  for (const std::atomic<std::uint64_t>& address : last) {
    EXPECT_EQ(addresses.find(DevicePtr{address.load()}), nullptr);
  }
}

}  // namespace threads_test
}  // namespace ferro
