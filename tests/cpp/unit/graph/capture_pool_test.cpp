#include "ferro/graph/pool_registry.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace ferro {
namespace capture_pool_test {

constexpr PoolId kPool{0, 7};
constexpr PoolId kOther{0, 8};

bool nobody(const PoolId& /*id*/) { return false; }
bool somebody(const PoolId& /*id*/) { return true; }

// Notes its number when it goes.
CapturePool::Buffer numbered(int number, std::vector<int>& gone) {
  return {new int(number), [&gone](void* held) {
            gone.push_back(*static_cast<int*>(held));
            delete static_cast<int*>(held);
          }};
}

TEST(CapturePoolTest, IsSealedAndUnsealed) {
  CapturePool pool(kPool, "decode");
  EXPECT_EQ(pool.id(), kPool);
  EXPECT_EQ(pool.name(), "decode");
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

class PoolRegistryTest : public ::testing::Test {
 protected:
  PoolRegistry registry_;
};

TEST_F(PoolRegistryTest, KnowsWhatWasOpened) {
  EXPECT_EQ(registry_.find(kPool), nullptr);
  const auto pool = registry_.open(kPool, "first");
  EXPECT_EQ(registry_.find(kPool), pool);
  EXPECT_EQ(registry_.open(kPool, "second"), pool) << "it stays as it is";
  EXPECT_EQ(pool->name(), "first");
  EXPECT_EQ(registry_.find(kOther), nullptr);
  EXPECT_EQ(registry_.count(), 1U);
}

TEST_F(PoolRegistryTest, ClosingForgetsUnheldPoolsOnce) {
  std::vector<int> gone;
  registry_.open(kPool, "")->record_buffer(numbered(1, gone));
  registry_.close(kPool, nobody);
  EXPECT_EQ(registry_.find(kPool), nullptr);
  EXPECT_EQ(gone, (std::vector{1}));
  registry_.close(kPool, nobody);
  registry_.close(kOther, nobody);
  EXPECT_EQ(registry_.count(), 0U);
}

TEST_F(PoolRegistryTest, APoolThatIsHeldOutlivesItsHandle) {
  std::vector<int> gone;
  registry_.open(kPool, "")->record_buffer(numbered(1, gone));
  registry_.close(kPool, somebody);
  ASSERT_NE(registry_.find(kPool), nullptr);
  registry_.on_release(kPool, somebody);
  EXPECT_TRUE(gone.empty());
  registry_.on_release(kPool, nobody);
  EXPECT_EQ(registry_.find(kPool), nullptr);
  EXPECT_EQ(gone, (std::vector{1}));
}

TEST_F(PoolRegistryTest, AReleaseLeavesOpenHandlesAlone) {
  registry_.open(kPool, "");
  registry_.open(kOther, "");
  registry_.close(kOther, somebody);
  registry_.on_release(kPool, nobody);
  registry_.on_release(kOther, nobody);
  EXPECT_NE(registry_.find(kPool), nullptr);
  EXPECT_EQ(registry_.find(kOther), nullptr);
}

TEST_F(PoolRegistryTest, AHandleThatIsOpenedAgainKeepsThePool) {
  const auto pool = registry_.open(kPool, "");
  registry_.close(kPool, somebody);
  EXPECT_EQ(registry_.open(kPool, ""), pool);
  registry_.on_release(kPool, nobody);
  EXPECT_EQ(registry_.find(kPool), pool);
}

TEST_F(PoolRegistryTest, HoldsAreNotQueriedWhileAllHandlesAreOpen) {
  registry_.open(kPool, "");
  registry_.on_release(kPool, [](const PoolId&) -> bool { throw std::runtime_error("asked"); });
}

TEST_F(PoolRegistryTest, AReleaseQueriesOnePool) {
  for (std::uint64_t i = 0; i < 100; ++i) {
    registry_.open({0, 100 + i}, "");
    registry_.close({0, 100 + i}, somebody);
  }
  int asked = 0;
  registry_.on_release({0, 150}, [&](const PoolId& id) {
    EXPECT_EQ(id, (PoolId{0, 150}));
    return ++asked == 0;
  });
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(registry_.count(), 99U);
}

TEST_F(PoolRegistryTest, APoolThatIsOpenedAgainWhileHoldersAreAskedStays) {
  const auto pool = registry_.open(kPool, "");
  registry_.close(kPool, somebody);
  registry_.on_release(kPool, [this](const PoolId& id) {
    registry_.open(id, "");
    return false;
  });
  EXPECT_EQ(registry_.find(kPool), pool);
}

TEST_F(PoolRegistryTest, AllocatorsMayComeBackWhileTheyAreAsked) {
  registry_.open(kPool, "");
  registry_.close(kPool, [this](const PoolId& id) { return registry_.find(id) == nullptr; });
  EXPECT_EQ(registry_.find(kPool), nullptr);
}

TEST_F(PoolRegistryTest, FindsWhatIsSealed) {
  const auto pool = registry_.open(kPool, "");
  EXPECT_EQ(registry_.find_sealed(kPool), nullptr);
  pool->seal();
  EXPECT_EQ(registry_.find_sealed(kPool), pool);
  EXPECT_EQ(registry_.find_sealed(kOther), nullptr);
  pool->unseal();
  EXPECT_EQ(registry_.find_sealed(kPool), nullptr);
}

TEST_F(PoolRegistryTest, ThreadsOpenAndCloseSideBySide) {
  std::vector<std::thread> threads;
  for (std::uint64_t i = 0; i < 4; ++i) {
    threads.emplace_back([this, i] {
      for (std::uint64_t round = 0; round < 200; ++round) {
        const PoolId id{0, i * 1000 + round};
        registry_.open(id, "")->record_buffer(std::make_shared<int>(1));
        registry_.open(kPool, "");
        registry_.close(id, nobody);
        registry_.close(kPool, nobody);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  registry_.close(kPool, nobody);
  EXPECT_EQ(registry_.count(), 0U);
}

}  // namespace capture_pool_test
}  // namespace ferro
