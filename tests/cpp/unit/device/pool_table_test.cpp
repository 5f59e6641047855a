// Creation and removal of pools: the data that remains, and queries about pools.
#include "support/device_fixture.h"

#include <gtest/gtest.h>

namespace ferro {
namespace pool_table_test {

using testing::kPageBytes;

class PoolTableTest : public testing::DeviceFixture {};

TEST_F(PoolTableTest, NumbersOfTheLastRemovedPoolsStay) {
  constexpr std::uint64_t kPools = 300;
  for (std::uint64_t number = 1; number <= kPools; ++number) {
    const PoolId pool{0, number};
    device_->pools().hold(pool);
    free(allocate(kPageBytes, stream_, pool));
    ASSERT_TRUE(device_->pools().release(pool));
    device_->empty_cache();
  }
  const auto known = device_->report().reserved_by_pool();
  EXPECT_EQ(known.size(), 256U);
  EXPECT_TRUE(known.contains({0, kPools}));
  EXPECT_FALSE(known.contains({0, 1}));
}

TEST_F(PoolTableTest, ARemovedPoolHasNoSmallHeaps) {
  device_->pools().hold(kGraphPool);
  free(allocate(512, stream_, kGraphPool));
  EXPECT_EQ(device_->pools().small_heaps().size(), 1U);
  ASSERT_TRUE(device_->pools().release(kGraphPool));
  device_->empty_cache();
  EXPECT_TRUE(device_->pools().small_heaps().empty());
}

TEST_F(PoolTableTest, APoolThatComesBackHasANewHeap) {
  for (int round = 0; round < 2; ++round) {
    device_->pools().hold(kGraphPool);
    free(allocate(512, stream_, kGraphPool));
    EXPECT_EQ(device_->pools().heaps_of(kGraphPool).size(), 1U);
    ASSERT_TRUE(device_->pools().release(kGraphPool));
    device_->empty_cache();
    EXPECT_TRUE(device_->pools().heaps_of(kGraphPool).empty());
  }
}

// More than the threads' cache of heaps has places for.
TEST_F(PoolTableTest, EachStreamPoolAndKindHasAHeapOfItsOwn) {
  for (int round = 0; round < 2; ++round) {
    for (std::uint64_t stream = 1; stream <= 2000; ++stream) {
      for (const PoolId& pool : {kDefaultPool, kGraphPool}) {
        for (const HeapKind kind : {HeapKind::kSmallPages, HeapKind::kPages}) {
          const Heap& heap = device_->pools().arena(pool, StreamId{stream}, kind);
          ASSERT_EQ(heap.stream(), StreamId{stream});
          ASSERT_EQ(heap.pool(), pool);
          ASSERT_EQ(heap.kind(), kind);
        }
      }
    }
  }
  EXPECT_EQ(device_->pools().all_heaps().size(), 8000U);
}

TEST_F(PoolTableTest, FlagsWaitForTheirPool) {
  device_->pools().set_use_on_oom(kGraphPool, true);
  EXPECT_EQ(device_->pools().use_count(kGraphPool), -1);  // a flag makes no pool
  device_->empty_cache();
  device_->pools().hold(kGraphPool);
  free(allocate(4 * kMiB, stream_, kGraphPool));
  EXPECT_EQ(device_->pools().reclaimable_heaps().size(), 1U);
  EXPECT_TRUE(device_->pools().release(kGraphPool));
  device_->empty_cache();
  EXPECT_EQ(device_->pools().use_count(kGraphPool), -1);
  device_->pools().hold(kGraphPool);
  free(allocate(4 * kMiB, stream_, kGraphPool));
  EXPECT_TRUE(device_->pools().reclaimable_heaps().empty()) << "the flag was removed with the pool";
  EXPECT_TRUE(device_->pools().release(kGraphPool));
}

TEST_F(PoolTableTest, AFlagMayBeClearedBeforeThePoolExists) {
  device_->pools().set_use_on_oom(kGraphPool, true);
  device_->pools().set_use_on_oom(kGraphPool, false);
  device_->pools().hold(kGraphPool);
  free(allocate(4 * kMiB, stream_, kGraphPool));
  EXPECT_TRUE(device_->pools().reclaimable_heaps().empty());
  EXPECT_TRUE(device_->pools().release(kGraphPool));
}

TEST_F(PoolTableTest, AFlagMayBeSetBeforeThePoolIsHeld) {
  device_->pools().set_use_on_oom(kGraphPool, true);
  device_->pools().hold(kGraphPool);
  free(allocate(16 * kPageBytes, stream_, kGraphPool));
  EXPECT_NE(allocate(2 * kPageBytes), kNull);
  EXPECT_TRUE(device_->pools().release(kGraphPool));
}

TEST_F(PoolTableTest, AnUnknownPoolIsNotRemoved) {
  EXPECT_FALSE(device_->pools().remove_unused(kGraphPool).has_value());
  device_->pools().set_use_on_oom(kGraphPool, true);
  EXPECT_FALSE(device_->pools().remove_unused(kGraphPool).has_value()) << "a flag makes no pool";
  EXPECT_EQ(device_->pools().use_count(kGraphPool), -1);
}

TEST_F(PoolTableTest, APoolWithoutHeapsIsRemovedWithItsHoldsAndFlag) {
  device_->pools().set_use_on_oom(kGraphPool, true);
  device_->pools().hold(kGraphPool);
  device_->pools().hold(kGraphPool);
  const auto unused = device_->pools().remove_unused(kGraphPool);
  ASSERT_TRUE(unused.has_value());
  EXPECT_EQ(unused->use_count, 2);
  EXPECT_TRUE(unused->use_on_oom);
  EXPECT_EQ(device_->pools().use_count(kGraphPool), -1);
  EXPECT_FALSE(device_->pools().release(kGraphPool));
  EXPECT_FALSE(device_->pools().remove_unused(kGraphPool).has_value());
  // A new pool with the same id starts without them.
  device_->pools().hold(kGraphPool);
  EXPECT_EQ(device_->pools().use_count(kGraphPool), 1);
  free(allocate(kPageBytes, stream_, kGraphPool));
  EXPECT_TRUE(device_->pools().reclaimable_heaps().empty());
  EXPECT_TRUE(device_->pools().release(kGraphPool));
}

TEST_F(PoolTableTest, APoolWithAHeapIsNotRemoved) {
  device_->pools().hold(kGraphPool);
  const DevicePtr ptr = allocate(kPageBytes, stream_, kGraphPool);
  EXPECT_FALSE(device_->pools().remove_unused(kGraphPool).has_value());
  free(ptr);
  EXPECT_FALSE(device_->pools().remove_unused(kGraphPool).has_value()) << "the heap is still there";
  EXPECT_EQ(device_->pools().use_count(kGraphPool), 1);
  EXPECT_TRUE(device_->pools().release(kGraphPool));
}

}  // namespace pool_table_test
}  // namespace ferro
