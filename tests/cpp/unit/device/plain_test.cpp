// Requests for plain allocations of the driver where others get pages.
#include "support/device_fixture.h"

#include <gtest/gtest.h>

namespace ferro {
namespace plain_test {

using testing::kPageBytes;
using testing::SimGpu;

class PlainTest : public testing::DeviceFixture {
 protected:
  AllocateResult try_allocate_plain(std::size_t size, const PoolId& pool = kDefaultPool) {
    AllocateResult result =
        device_->allocate(pool, stream_, {.size = size, .requested = size, .plain = true});
    device_->report().check_invariants();
    return result;
  }
  DevicePtr allocate_plain(std::size_t size, const PoolId& pool = kDefaultPool) {
    const AllocateResult result = try_allocate_plain(size, pool);
    EXPECT_NE(result.ptr, kNull);
    return result.ptr;
  }
  bool is_paged_block(DevicePtr ptr) { return is_paged(heap_of(ptr).kind()); }
  std::size_t held() { return device_->report().held_bytes(); }
};

TEST_F(PlainTest, ItIsServedByAPlainAllocationAndOthersAreNot) {
  const DevicePtr plain = allocate_plain(4 * kMiB);
  EXPECT_EQ(SimGpu::calls("cuMemAlloc_v2"), 1U);
  EXPECT_EQ(SimGpu::calls("cuMemCreate"), 0U);
  EXPECT_FALSE(is_paged_block(plain));
  EXPECT_EQ(held(), 20 * kMiB) << "a segment, as PyTorch's own allocator takes one";
  EXPECT_EQ(allocate_plain(4 * kMiB), plain + 4 * kMiB);
  EXPECT_TRUE(is_paged_block(allocate(4 * kMiB)));
}

TEST_F(PlainTest, EachKindIsServedAgainFromWhatItFreed) {
  const DevicePtr plain = allocate_plain(4 * kMiB);
  const DevicePtr paged = allocate(4 * kMiB);
  free(plain);
  free(paged);
  EXPECT_EQ(allocate(4 * kMiB), paged);
  EXPECT_EQ(allocate_plain(4 * kMiB), plain);
}

TEST_F(PlainTest, WhatIsCachedInSegmentsServesPagesBeforeARequestFails) {
  free(allocate_plain(20 * kMiB));
  EXPECT_TRUE(is_paged_block(allocate(14 * kPageBytes)));
  EXPECT_EQ(held(), 14 * kPageBytes);
  EXPECT_EQ(ended_by(LadderStep::kReclaim), 1U);
}

TEST_F(PlainTest, SegmentsThatAStreamStillUsesAreWaitedForBeforeARequestFails) {
  const DevicePtr plain = allocate_plain(20 * kMiB);
  free_used_by(plain, side_);
  EXPECT_TRUE(is_paged_block(allocate(14 * kPageBytes)));
  EXPECT_EQ(ended_by(LadderStep::kWait), 1U);
}

// The request failed although these were all that was missing.
TEST_F(PlainTest, PagesThatLeftWhileTheirStreamUsedThemAreWaitedForBeforeARequestFails) {
  device_->store().set_limit(14 * kPageBytes);  // the driver is not asked, which would wait
  const DevicePtr block = allocate(14 * kPageBytes);
  SimGpu::fill(stream_, block, 1, 1);
  free(block);
  static_cast<void>(
      device_->report().bytes_from_driver(side_, testing::bytes(512)));  // records a point
  EXPECT_EQ(arena_of(block).release_pages(14, ReleaseAfter::kStreamWait), 14U);
  EXPECT_FALSE(is_paged_block(allocate_plain(20 * kMiB)));
  EXPECT_EQ(ended_by(LadderStep::kWait), 1U);
}

TEST_F(PlainTest, CachedPagesServeSegmentsBeforeARequestFails) {
  free(allocate(14 * kPageBytes));
  EXPECT_FALSE(is_paged_block(allocate_plain(20 * kMiB)));
  EXPECT_EQ(held(), 20 * kMiB);
}

TEST_F(PlainTest, CachedSegmentsOfTheDefaultPoolStayDuringACapture) {
  free(allocate_plain(20 * kMiB));
  device_->set_captures(1);
  EXPECT_NE(refuse(14 * kPageBytes, stream_), nullptr);
  EXPECT_EQ(held(), 20 * kMiB);
  device_->set_captures(0);
  EXPECT_NE(allocate(14 * kPageBytes), kNull);
}

TEST_F(PlainTest, APrivatePoolMayHoldBoth) {
  device_->pools().hold(kGraphPool);
  const DevicePtr paged = allocate(4 * kMiB, stream_, kGraphPool);
  const DevicePtr plain = allocate_plain(4 * kMiB, kGraphPool);
  EXPECT_TRUE(is_paged_block(paged));
  EXPECT_FALSE(is_paged_block(plain));
  EXPECT_EQ(heap_of(plain).pool(), kGraphPool);
  EXPECT_EQ(device_->report().reserved_by_pool()[kGraphPool][kAll].current,
            std::int64_t{24 * kMiB});
  free(paged);
  free(plain);
  EXPECT_TRUE(device_->pools().release(kGraphPool));
  device_->empty_pool(kGraphPool);
  EXPECT_EQ(held(), 0U);
}

TEST_F(PlainTest, PagesOfSmallBlocksAndTheirSegmentsCountAsSmall) {
  const auto reserved = [&](StatClass cls) { return device_->report().reserved()[cls].current; };
  const DevicePtr plain = allocate_plain(4096);
  EXPECT_EQ(reserved(kSmall), std::int64_t{2 * kMiB});
  const DevicePtr paged = allocate(8192);
  EXPECT_EQ(reserved(kSmall), std::int64_t{2 * kMiB + kPageBytes});
  EXPECT_EQ(reserved(kLarge), 0);
  free(plain);
  free(paged);
  EXPECT_EQ(reserved(kSmall), std::int64_t{2 * kMiB + kPageBytes}) << "both are cached";
  EXPECT_EQ(reserved(kAll), std::int64_t{2 * kMiB + kPageBytes});
}

TEST_F(PlainTest, ABlockOfAPoolWithoutSplitsThatIsAWholeSegmentIsLarge) {
  device_->pools().hold(kGraphPool);
  device_->pools().set_no_split(kGraphPool);
  const DevicePtr whole = allocate(512, stream_, kGraphPool);
  const auto reserved = device_->report().reserved();
  EXPECT_EQ(reserved[kSmall].current, std::int64_t{2 * kMiB});
  EXPECT_EQ(reserved[kLarge].current, 0);
  free(whole);
  EXPECT_TRUE(device_->pools().release(kGraphPool));
}

TEST_F(PlainTest, EmptyCacheGivesBothBack) {
  free(allocate_plain(4 * kMiB));
  free(allocate(4 * kMiB));
  device_->empty_cache();
  EXPECT_EQ(held(), 0U);
}

TEST_F(PlainTest, WhatItWouldTakeFromTheDriverIsASegment) {
  const auto wanted = [&](std::size_t size) {
    return device_->report().bytes_from_driver(stream_,
                                               {.size = size, .requested = size, .plain = true});
  };
  EXPECT_EQ(wanted(4 * kMiB), 20 * kMiB);
  free(allocate_plain(4 * kMiB));
  EXPECT_EQ(wanted(4 * kMiB), 0U);
}

}  // namespace plain_test
}  // namespace ferro
