#include "ferro/graph/pool_registry.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace ferro {
namespace capture_pool_test {

constexpr PoolId kPool{0, 7};
constexpr PoolId kOther{0, 8};

// Appends its number to `gone` when it is dropped.
CapturePool::Buffer numbered(int number, std::vector<int>& gone) {
  return {new int(number), [&gone](void* held) {
            gone.push_back(*static_cast<int*>(held));
            delete static_cast<int*>(held);
          }};
}

TEST(CapturePoolTest, IsNamedSealedAndUnsealed) {
  CapturePool pool(kPool, "decode");
  EXPECT_EQ(pool.id(), kPool);
  EXPECT_EQ(pool.name(), "decode");
  pool.set_name("prefill");
  EXPECT_EQ(pool.name(), "prefill");
  EXPECT_FALSE(pool.is_sealed());
  pool.seal();
  pool.seal();
  EXPECT_TRUE(pool.is_sealed());
  pool.unseal();
  EXPECT_FALSE(pool.is_sealed());
}

TEST(CapturePoolTest, DropsBuffersInTheOrderOfRegistration) {
  std::vector<int> gone;
  CapturePool pool(kPool, "");
  for (const int number : {3, 1, 2}) {
    pool.record_buffer(numbered(number, gone));
  }
  EXPECT_EQ(pool.buffer_count(), 3U);
  EXPECT_TRUE(gone.empty());
  pool.clear_buffers();
  EXPECT_EQ(gone, (std::vector{3, 1, 2}));
  EXPECT_EQ(pool.buffer_count(), 0U);
}

TEST(CapturePoolTest, ABufferMayComeBackToThePoolWhenItIsDropped) {
  CapturePool pool(kPool, "");
  std::size_t seen = 99;
  pool.record_buffer({new int(0), [&](void* held) {
                        seen = pool.buffer_count();
                        pool.record_buffer(std::make_shared<int>(1));
                        delete static_cast<int*>(held);
                      }});
  pool.clear_buffers();
  EXPECT_EQ(seen, 0U);
  EXPECT_EQ(pool.buffer_count(), 1U);
}

TEST(CapturePoolTest, ItsEndDropsItsBuffers) {
  std::vector<int> gone;
  {
    CapturePool pool(kPool, "");
    pool.record_buffer(numbered(1, gone));
    pool.record_buffer(numbered(2, gone));
  }
  EXPECT_EQ(gone, (std::vector{1, 2}));
}

// Allocators are simulated by the set of pools that they hold.
class PoolRegistryTest : public ::testing::Test {
 protected:
  std::set<PoolId> held_;
  std::vector<PoolId> asked_;
  std::vector<PoolId> gone_;
  std::vector<int> dropped_;  // by buffers, which the registry may keep to its end
  std::function<void()> while_asked_ = [] {};
  PoolRegistry registry_{[this](const PoolId& id) {
                           asked_.push_back(id);
                           const bool is_held = held_.contains(id);
                           std::exchange(while_asked_, [] {})();
                           return is_held;
                         },
                         [this](const PoolId& id) { gone_.push_back(id); }};
};

TEST_F(PoolRegistryTest, OneIdHasOnePool) {
  EXPECT_EQ(registry_.find(kPool), nullptr);
  const auto pool = registry_.open(kPool, "first");
  EXPECT_EQ(registry_.find(kPool), pool);
  EXPECT_EQ(registry_.lend(kPool), pool);
  EXPECT_EQ(registry_.find_by_handle(kPool), pool);
  EXPECT_EQ(registry_.open(kPool, "second"), pool);
  EXPECT_EQ(pool->name(), "first");
  EXPECT_EQ(registry_.find(kOther), nullptr);
  EXPECT_EQ(registry_.count(), 1U);
}

TEST_F(PoolRegistryTest, APoolWithoutANameGetsTheFirstOne) {
  const auto pool = registry_.lend(kPool);
  EXPECT_EQ(registry_.name_of(kPool), "");
  registry_.open(kPool, "decode");
  EXPECT_EQ(pool->name(), "decode");
  EXPECT_EQ(registry_.name_of(kPool), "decode");
  EXPECT_EQ(registry_.name_of(kOther), "");
}

TEST_F(PoolRegistryTest, ClosingTheHandleDestroysAnUnusedPoolAndDoesNothingTwice) {
  registry_.open(kPool, "")->record_buffer(numbered(1, dropped_));
  EXPECT_TRUE(dropped_.empty());
  registry_.close(kPool);
  EXPECT_EQ(registry_.find(kPool), nullptr);
  EXPECT_EQ(dropped_, (std::vector{1}));
  EXPECT_EQ(gone_, (std::vector{kPool}));
  registry_.close(kPool);
  registry_.close(kOther);
  EXPECT_EQ(registry_.count(), 0U);
  EXPECT_EQ(gone_.size(), 1U);
}

TEST_F(PoolRegistryTest, APoolThatIsLentOutlivesItsHandle) {
  auto pool = registry_.open(kPool, "decode");
  pool->record_buffer(numbered(1, dropped_));
  registry_.close(kPool);
  EXPECT_EQ(registry_.find_by_handle(kPool), nullptr) << "the name is gone";
  EXPECT_EQ(registry_.find(kPool), pool);
  EXPECT_EQ(registry_.lend(kPool), pool) << "a capture into it finds the same pool";
  EXPECT_EQ(registry_.open(kPool, ""), pool);
  registry_.close(kPool);
  EXPECT_TRUE(dropped_.empty());
  pool.reset();
  EXPECT_EQ(dropped_, (std::vector{1}));
  EXPECT_EQ(registry_.count(), 0U);
}

TEST_F(PoolRegistryTest, APoolWhoseMemoryIsHeldOutlivesHandleAndPointers) {
  registry_.open(kPool, "")->record_buffer(numbered(1, dropped_));
  held_.insert(kPool);
  registry_.close(kPool);
  EXPECT_EQ(registry_.find(kPool)->buffer_count(), 1U);
  registry_.on_release(kPool);
  EXPECT_TRUE(dropped_.empty());
  held_.clear();
  registry_.on_release(kPool);
  EXPECT_EQ(dropped_, (std::vector{1}));
}

TEST_F(PoolRegistryTest, APoolThatIsLentOutlivesTheReleaseOfItsMemory) {
  auto pool = registry_.lend(kPool);
  held_.insert(kPool);
  held_.clear();
  registry_.on_release(kPool);
  EXPECT_EQ(registry_.find(kPool), pool);
  pool.reset();
  EXPECT_EQ(registry_.count(), 0U);
}

TEST_F(PoolRegistryTest, AnAllocatorThatReportsNoReleasesIsAskedAgain) {
  for (const PoolId& id : {kPool, kOther}) {
    held_.insert(id);
    registry_.lend(id)->record_buffer(numbered(1, dropped_));
  }
  registry_.drop_unused();
  EXPECT_EQ(registry_.count(), 2U);
  held_.clear();
  registry_.drop_unused();
  EXPECT_EQ(registry_.count(), 0U);
  EXPECT_EQ(dropped_.size(), 2U);
}

TEST_F(PoolRegistryTest, AHandleIsKnownOnceItsMemoryIsHeld) {
  EXPECT_EQ(registry_.find_by_handle(kPool), nullptr);
  held_.insert(kPool);
  const auto pool = registry_.find_by_handle(kPool);
  ASSERT_NE(pool, nullptr);
  EXPECT_EQ(registry_.find_by_handle(kPool), pool);
}

TEST_F(PoolRegistryTest, AHandleOfHeldMemoryCanBeClosedToo) {
  held_.insert(kPool);
  registry_.close(kPool);
  EXPECT_EQ(registry_.find_by_handle(kPool), nullptr);
  held_.clear();
  registry_.on_release(kPool);
  EXPECT_EQ(registry_.count(), 0U);
}

TEST_F(PoolRegistryTest, NoAllocatorIsAskedAboutAPoolInUse) {
  registry_.open(kPool, "");
  const auto other = registry_.lend(kOther);
  asked_.clear();
  registry_.on_release(kPool);
  registry_.on_release(kOther);
  EXPECT_TRUE(asked_.empty());
}

TEST_F(PoolRegistryTest, AReleaseQueriesOnePool) {
  for (std::uint64_t i = 0; i < 100; ++i) {
    held_.insert({0, 100 + i});
    registry_.lend({0, 100 + i});
  }
  held_.erase({0, 150});
  asked_.clear();
  registry_.on_release({0, 150});
  EXPECT_EQ(asked_, (std::vector{PoolId{0, 150}}));
  EXPECT_EQ(registry_.count(), 99U);
}

TEST_F(PoolRegistryTest, APoolThatIsOpenedAgainWhileAllocatorsAreAskedStays) {
  auto pool = registry_.lend(kPool);
  const CapturePool* before = pool.get();
  while_asked_ = [this] { registry_.open(kPool, ""); };
  pool.reset();
  EXPECT_EQ(registry_.find(kPool).get(), before);
}

// The capture begins and takes its hold after the queries of the allocators.
TEST_F(PoolRegistryTest, ACaptureThatBeginsWhileAllocatorsAreAskedKeepsThePool) {
  auto pool = registry_.lend(kPool);
  pool->record_buffer(numbered(1, dropped_));
  while_asked_ = [this] {
    const auto borrowed = registry_.find(kPool);
    held_.insert(kPool);
  };
  pool.reset();
  EXPECT_TRUE(dropped_.empty());
  EXPECT_EQ(registry_.find(kPool)->buffer_count(), 1U);
}

TEST_F(PoolRegistryTest, TheSealIsFoundHoweverThePoolIsHeld) {
  auto pool = registry_.open(kPool, "decode");
  EXPECT_EQ(registry_.sealed_name(kPool), std::nullopt);
  pool->seal();
  EXPECT_EQ(registry_.sealed_name(kPool), "decode");
  EXPECT_EQ(registry_.sealed_name(kOther), std::nullopt);
  registry_.close(kPool);
  EXPECT_EQ(registry_.sealed_name(kPool), "decode");
  held_.insert(kPool);
  pool.reset();
  EXPECT_EQ(registry_.sealed_name(kPool), "decode");
  registry_.find(kPool)->unseal();
  EXPECT_EQ(registry_.sealed_name(kPool), std::nullopt);
}

TEST_F(PoolRegistryTest, ABufferMayUseTheRegistryWhenItIsDropped) {
  auto pool = registry_.lend(kPool);
  CapturePool* next = nullptr;
  pool->record_buffer({new int(0), [&](void* held) {
                         next = registry_.open(kPool, "next").get();
                         delete static_cast<int*>(held);
                       }});
  pool.reset();
  EXPECT_EQ(registry_.find(kPool).get(), next);
  EXPECT_EQ(next->name(), "next");
}

TEST(PoolRegistryThreadsTest, OpenLendAndCloseSideBySide) {
  std::atomic<int> buffers{0};
  std::atomic<bool> is_held{false};
  PoolRegistry registry([&](const PoolId& /*id*/) { return is_held.load(); });
  std::vector<std::thread> threads;
  for (std::uint64_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (std::uint64_t round = 0; round < 500; ++round) {
        const PoolId id{0, i * 1000 + round};
        const auto record = [&](const PoolRegistry::Pool& pool) {
          ++buffers;
          pool->record_buffer({new int(0), [&](void* held) {
                                 --buffers;
                                 delete static_cast<int*>(held);
                               }});
        };
        record(registry.open(id, ""));
        record(registry.lend(kPool));
        is_held = round % 3 == 0;
        const auto pool = registry.open(kPool, "");
        const std::size_t before = pool->buffer_count();
        registry.close(kPool);
        registry.on_release(kPool);
        EXPECT_GE(pool->buffer_count(), before) << "a lent pool keeps its buffers";
        EXPECT_EQ(registry.lend(kPool), pool);
        registry.close(id);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  is_held = false;
  registry.drop_unused();
  EXPECT_EQ(registry.count(), 0U);
  EXPECT_EQ(buffers, 0);
}

}  // namespace capture_pool_test
}  // namespace ferro
