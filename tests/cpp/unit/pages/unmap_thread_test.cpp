// The thread that removes old mappings: what it does and leaves, sleeps, faults, fork and exit.
#include "ferro/core/pages/unmap_thread.h"

#include "ferro/driver/error.h"
#include "support/device_fixture.h"
#include "support/heap_fixture.h"
#include "support/sanitizers.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace ferro {
namespace {

using std::chrono::milliseconds;
using testing::bytes;
using testing::FaultyApi;
using testing::kPageBytes;
using testing::SimGpu;

template <typename Condition>
bool eventually(Condition condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

class UnmapThreadTest : public testing::HeapFixture {
 protected:
  ~UnmapThreadTest() override {
    thread_.reset();
    drain(*heap_);
  }

  // Leaves the mapping of a page behind work of the stream.
  void leave_one() {
    const DevicePtr block = allocate(*heap_, kPageBytes);
    make_busy(stream_, block);
    free(*heap_, block);
    EXPECT_EQ(heap_->release_pages(1, ReleaseAfter::kStream), 1U);
  }
  void leave_one_that_has_passed() {
    leave_one();
    SimGpu::finish(stream_);
  }
  bool removed(std::uint64_t mappings) {
    return eventually([&] { return stale_.counts().by_remover == mappings; });
  }

  std::optional<ArenaHeap> heap_{std::in_place, context_, kDefaultPool, stream_};
  std::optional<UnmapThread> thread_{std::in_place, stale_, driver_};
};

TEST_F(UnmapThreadTest, WhatHasPassedGoes) {
  EXPECT_TRUE(stale_.has_remover());
  leave_one_that_has_passed();
  EXPECT_TRUE(removed(1));
  EXPECT_EQ(store_.trim(1), 1U);
  EXPECT_EQ(stale_.notify_owners(), 1U);
  EXPECT_EQ(stale_.counts().by_requests, 0U);
  EXPECT_TRUE(heap_->is_empty());
}

TEST_F(UnmapThreadTest, WithNothingLeftItSleepsUntilSomethingIsAdded) {
  EXPECT_EQ(thread_->looks(), 0U) << "no thread yet";
  for (std::uint64_t round = 1; round <= 3; ++round) {
    leave_one_that_has_passed();
    ASSERT_TRUE(removed(round));
    ASSERT_TRUE(eventually([&] { return thread_->is_idle(); }));
    const std::uint64_t looks = thread_->looks();
    std::this_thread::sleep_for(milliseconds(30));
    EXPECT_EQ(thread_->looks(), looks);
  }
}

TEST_F(UnmapThreadTest, WhatHasNotPassedStaysAndIsLookedAtSeldom) {
  leave_one();
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_EQ(stale_.counts().by_remover, 0U);
  EXPECT_FALSE(thread_->is_idle());
  // 0.1, 0.2, ... 6.4 and then 10 ms apart.
  EXPECT_GE(thread_->looks(), 1U);
  EXPECT_LE(thread_->looks(), 20U);
  SimGpu::finish(stream_);
  EXPECT_TRUE(removed(1));
}

TEST_F(UnmapThreadTest, WhatTheDriverRefusesIsTriedAgain) {
  FaultyApi::fail_only("cuMemUnmap", 1, CUDA_ERROR_UNKNOWN);
  leave_one_that_has_passed();
  EXPECT_TRUE(removed(1));
  EXPECT_EQ(stale_.counts().refused, 1U);
  EXPECT_EQ(thread_->failures(), 0U);
}

TEST_F(UnmapThreadTest, ADriverThatDoesNotAnswerIsAskedAgain) {
  FaultyApi::fail_only("cuEventQuery", 1, CUDA_ERROR_UNKNOWN);
  leave_one_that_has_passed();
  EXPECT_TRUE(removed(1));
  EXPECT_EQ(thread_->failures(), 1U);
}

TEST_F(UnmapThreadTest, ItEndsWithMappingsLeftWhichRequestsRemove) {
  leave_one();
  thread_.reset();
  EXPECT_FALSE(stale_.has_remover());
  EXPECT_EQ(stale_.count(), 1U);
  SimGpu::finish(stream_);
  EXPECT_EQ(stale_.remove_passed(), 1U);
  EXPECT_EQ(stale_.counts().by_requests, 1U);
}

TEST_F(UnmapThreadTest, ItIsStoppedOnceForAll) {
  leave_one_that_has_passed();
  ASSERT_TRUE(removed(1));
  thread_->stop();
  thread_->stop();
  leave_one_that_has_passed();
  std::this_thread::sleep_for(milliseconds(5));
  EXPECT_EQ(stale_.counts().by_remover, 1U);
  EXPECT_EQ(stale_.remove_passed(), 2U);
}

// As after the end of the process' use of CUDA, when the thread is still there.
TEST(UnmapThreadWithoutADriverTest, EveryRefusalIsSwallowed) {
  static std::atomic<bool> gone;
  gone = false;
  const SimGpu gpu(8);
  CudaApi api = SimGpu::api();
  api.ctx_set_current = [](CUcontext context) {
    return gone ? CUDA_ERROR_DEINITIALIZED : SimGpu::api().ctx_set_current(context);
  };
  api.mem_unmap = [](CUdeviceptr at, std::size_t size) {
    return gone ? CUDA_ERROR_DEINITIALIZED : SimGpu::api().mem_unmap(at, size);
  };
  struct Owner final : MappingOwner {
    void on_mapping_removed(Block*) override { ++told; }
    int told = 0;
  } owner;
  Driver driver(api, 0);
  ASSERT_NE(driver.own_context(), ContextId{});
  StaleMappings stale(driver);
  UnmapThread thread(stale, driver);
  const DevicePtr base = driver.reserve(kPageBytes, 0).value();
  const PageHandle handle = driver.create(kPageBytes).value();
  ASSERT_EQ(driver.map(base, kPageBytes, handle), Status::kOk);
  gone = true;
  auto mapping = std::make_shared<StaleMapping>();
  mapping->owner = &owner;
  mapping->begin = base;
  mapping->bytes = kPageBytes;
  mapping->fence = Fence::passed();
  stale.add(mapping);
  EXPECT_TRUE(eventually([&] { return thread.failures() >= 3; }));
  EXPECT_EQ(stale.count(), 1U);
  gone = false;
  EXPECT_TRUE(eventually([&] { return stale.counts().by_remover == 1; }));
  EXPECT_EQ(stale.notify_owners(), 1U);
  EXPECT_EQ(owner.told, 1);
}

TEST_F(UnmapThreadTest, ManyThreadsLeaveMappingsAtOnce) {
  constexpr std::size_t kThreads = 4;
  constexpr int kRounds = kThreadSanitizer || kAddressSanitizer ? 100 : 400;
  std::mutex climb;
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      SimGpu::make_current();
      const StreamId stream = SimGpu::make_stream();
      ArenaHeap heap(context_, kDefaultPool, stream);
      for (int round = 0; round < kRounds; ++round) {
        const std::lock_guard lock(climb);
        DevicePtr ptr = kNull;
        ASSERT_EQ(heap.allocate_grown(bytes(2 * kPageBytes), GrowFrom::kAnyPages, &ptr),
                  GrowResult::kGrown);
        ASSERT_EQ(heap.free(*addresses_.find(ptr), ptr).error, FreeError::kNone);
        heap.release_pages(2, ReleaseAfter::kStream);
        SimGpu::finish(stream);
        if (round % 8 == 0) {
          stale_.notify_owners();
        } else if (round % 16 == 1) {
          stale_.remove_passed();
        }
      }
      const std::lock_guard lock(climb);
      stale_.remove_passed();
      EXPECT_TRUE(heap.is_empty());
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(stale_.count(), 0U);
  const StaleMappings::Counts counts = stale_.counts();
  EXPECT_EQ(counts.by_remover + counts.by_requests, kThreads * kRounds);
}

void exit_with_the_thread_at_work() {
  const SimGpu gpu(64);
  const StreamId stream = SimGpu::make_stream();
  auto& addresses = *new AddressIndex;
  auto& device = *new DeviceMemory(SimGpu::api(), 0, addresses, {.background_unmap = true}, {});
  const DevicePtr block = device.allocate(kDefaultPool, stream, bytes(32 * kPageBytes)).ptr;
  SimGpu::fill(stream, block, 1, 1);
  static_cast<void>(addresses.find(block)->heap()->free(*addresses.find(block), block));
  auto& arena = static_cast<ArenaHeap&>(*addresses.find(block)->heap());
  arena.release_pages(32, ReleaseAfter::kStream);
  std::exit(device.stale().count() == 1 ? 0 : 1);
}

TEST(UnmapThreadExitTest, TheProcessEndsQuietlyWithMappingsLeft) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(exit_with_the_thread_at_work(), ::testing::ExitedWithCode(0), "^$");
}

class UnmapThreadDeviceTest : public testing::DeviceFixture {
 protected:
  UnmapThreadDeviceTest() : DeviceFixture(64, SimGpu::kManual, {.background_unmap = true}) {}

  // Two holes on one arena become one block, so a mapping is left; what was there is freed.
  void move_pages() {
    std::vector<DevicePtr> blocks;
    for (int i = 0; i < 8; ++i) {
      blocks.push_back(allocate(kPageBytes));
    }
    for (std::size_t i = 0; i < blocks.size(); i += 2) {
      free(blocks[i]);
    }
    const DevicePtr moved = allocate(4 * kPageBytes);
    for (std::size_t i = 1; i < blocks.size(); i += 2) {
      free(blocks[i]);
    }
    free(moved);
  }
};

TEST_F(UnmapThreadDeviceTest, RequestsLeaveOldMappingsToIt) {
  move_pages();
  SimGpu::finish(stream_);
  EXPECT_TRUE(eventually([&] { return device_->report().counters().unmapped_by_thread != 0; }));
  EXPECT_EQ(device_->report().counters().unmapped_by_requests, 0U);
  EXPECT_EQ(device_->report().counters().unmaps_refused, 0U);
}

TEST_F(UnmapThreadDeviceTest, WhoNeedsTheHandlesRemovesThemHimself) {
  for (int round = 0; round < 20; ++round) {
    move_pages();
    SimGpu::finish(stream_);
    device_->empty_cache();
    EXPECT_EQ(device_->stale().count(), 0U);
    EXPECT_EQ(SimGpu::used_pages(), 0U);
  }
}

TEST_F(UnmapThreadDeviceTest, PoolsGoWhileItRemoves) {
  for (std::uint64_t round = 0; round < 200; ++round) {
    const PoolId pool{0, 100 + round};
    device_->pools().hold(pool);
    for (int i = 0; i < 3; ++i) {
      free(allocate(2 * kPageBytes, i == 0 ? stream_ : side_, pool));
    }
    EXPECT_TRUE(device_->pools().release(pool));
    device_->empty_pool(pool);
    EXPECT_EQ(device_->pools().use_count(pool), -1);
  }
  EXPECT_EQ(device_->stale().count(), 0U);
}

TEST_F(UnmapThreadDeviceTest, ADeviceGoesWithMappingsLeft) {
  move_pages();
  SimGpu::fill(stream_, allocate(kPageBytes), 1, 1);
  move_pages();
  free_everything();
  device_ =
      std::make_unique<DeviceMemory>(FaultyApi::table(), 0, addresses_, AllocatorConfig{}, nullptr);
  EXPECT_EQ(SimGpu::used_pages(), 0U);
}

// The child has the memory of the parent and nobody who unmaps. Nothing is held there that would let
// it wait, and it has no driver.
TEST_F(UnmapThreadDeviceTest, AForkedChildAllocatesFreesAndEnds) {
  for (int round = 0; round < 10; ++round) {
    const DevicePtr cached = allocate(kPageBytes / 2);
    free(cached);
    move_pages();
    SimGpu::finish(stream_);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(20);
      const DevicePtr ptr = device_->allocate(kDefaultPool, stream_, bytes(kPageBytes / 2)).ptr;
      bool good = ptr != kNull && !device_->stale().has_remover();
      good = good && heap_of(ptr).free(*addresses_.find(ptr), ptr).error == FreeError::kNone;
      try {
        device_->stale().remove_passed();
      } catch (const DriverError&) {
        // It says that it is not there.
      }
      // At an exit LeakSanitizer takes what the parent's thread has of its own for lost.
      round % 2 == 0 && !kAddressSanitizer ? std::exit(good ? 0 : 1) : _exit(good ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_TRUE(device_->stale().has_remover());
  }
  const std::uint64_t before = device_->report().counters().unmapped_by_thread;
  move_pages();
  SimGpu::finish(stream_);
  EXPECT_TRUE(eventually([&] { return device_->report().counters().unmapped_by_thread > before; }))
      << "the parent goes on";
}

}  // namespace
}  // namespace ferro
