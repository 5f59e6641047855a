#include "ferro/graph/watched_blocks.h"

#include <gtest/gtest.h>

#include <memory>

namespace ferro {
namespace watched_blocks_test {

constexpr PoolId kPool{0, 7};

BlockView block_at(std::uint64_t ptr, std::size_t bytes = 512, CallContext context = nullptr) {
  return {DevicePtr{ptr}, bytes, bytes - 12, BlockState::kLive, std::move(context)};
}

TEST(WatchedBlocksTest, IsOffAtFirst) {
  WatchedBlocks blocks;
  EXPECT_FALSE(blocks.is_on());
  blocks.turn_on();
  EXPECT_TRUE(blocks.is_on());
  blocks.turn_off();
  EXPECT_FALSE(blocks.is_on());
}

TEST(WatchedBlocksTest, OneBlockIsOneObjectUntilItIsFreed) {
  WatchedBlocks blocks;
  const auto here = std::make_shared<int>(1);
  const auto there = std::make_shared<int>(2);
  const auto watched = blocks.watch(block_at(512, 1024, here), kPool);
  EXPECT_EQ(blocks.watch(block_at(512, 1024, here), kPool), watched);
  EXPECT_EQ(watched->requested(), 1012U);
  EXPECT_EQ(watched->pool(), kPool);
  EXPECT_EQ(watched->ptr(), DevicePtr{512});
  EXPECT_EQ(watched->size(), 1024U);
  blocks.on_free(block_at(512, 1024, here), kPool, there, false);
  EXPECT_TRUE(watched->is_freed());
  EXPECT_EQ(watched->allocated_at(), here);
  EXPECT_EQ(watched->freed_at(), there);
  EXPECT_EQ(watched->free_number(), 1U);
  EXPECT_EQ(blocks.frees(), 1U);
  // The same address again.
  const auto next = blocks.watch(block_at(512, 1024), kPool);
  EXPECT_NE(next, watched);
  EXPECT_FALSE(next->is_freed());
  EXPECT_TRUE(watched->is_freed());
}

TEST(WatchedBlocksTest, AFreeOfSomethingElseChangesNothing) {
  WatchedBlocks blocks;
  const auto watched = blocks.watch(block_at(512), kPool);
  blocks.on_free(block_at(1024), kPool, nullptr, false);
  EXPECT_FALSE(watched->is_freed());
  EXPECT_EQ(blocks.freed_in_captures(), 0U);
}

TEST(WatchedBlocksTest, FreesInCapturesAreKeptInTheirOrder) {
  WatchedBlocks blocks;
  const auto watched = blocks.watch(block_at(512), kPool);
  blocks.on_free(block_at(1024), kPool, nullptr, true);
  const std::size_t mark = blocks.freed_in_captures();
  blocks.on_free(block_at(512), kPool, nullptr, true);
  blocks.on_free(block_at(2048), kPool, nullptr, true);
  blocks.on_free(block_at(4096), kPool, nullptr, false);
  EXPECT_EQ(mark, 1U);
  EXPECT_EQ(blocks.freed_in_captures(), 3U);
  EXPECT_EQ(blocks.freed_in_captures_since(0).size(), 3U);
  const auto since = blocks.freed_in_captures_since(mark);
  ASSERT_EQ(since.size(), 2U);
  EXPECT_EQ(since[0], watched);
  EXPECT_EQ(since[1]->ptr(), DevicePtr{2048});
  EXPECT_TRUE(since[1]->is_freed());
  blocks.forget_freed();
  EXPECT_EQ(blocks.freed_in_captures(), 3U);  // marks stay valid
  EXPECT_TRUE(blocks.freed_in_captures_since(mark).empty());
  blocks.on_free(block_at(8192), kPool, nullptr, true);
  EXPECT_EQ(blocks.freed_in_captures_since(mark).size(), 1U);
  EXPECT_TRUE(blocks.freed_in_captures_since(4).empty());
}

TEST(WatchedBlocksTest, ACheckpointMakesABlockLiveAgain) {
  WatchedBlocks blocks;
  const auto gone = blocks.watch(block_at(512), kPool);
  const auto kept = blocks.watch(block_at(1024), kPool);
  const auto other = blocks.watch(block_at(2048), kPool);
  const auto larger = blocks.watch(block_at(4096, 1024), kPool);
  blocks.on_free(block_at(512), kPool, nullptr, false);
  blocks.on_free(block_at(4096, 1024), kPool, nullptr, false);
  blocks.on_restore({block_at(1024), block_at(2048)},
                    {block_at(512), block_at(1024), block_at(4096)}, kPool);
  EXPECT_FALSE(gone->is_freed());
  EXPECT_FALSE(kept->is_freed());  // it was live before and after
  EXPECT_TRUE(other->is_freed());
  EXPECT_TRUE(larger->is_freed());  // another block has its address
}

TEST(WatchedBlocksTest, NothingIsFollowedOnceItIsOff) {
  WatchedBlocks blocks;
  blocks.turn_on();
  const auto watched = blocks.watch(block_at(512), kPool);
  blocks.on_free(block_at(1024), kPool, nullptr, true);
  blocks.turn_off();
  EXPECT_TRUE(blocks.freed_in_captures_since(0).empty());
  EXPECT_FALSE(watched->is_freed());
  blocks.turn_on();
  EXPECT_NE(blocks.watch(block_at(512), kPool), watched);
}

}  // namespace watched_blocks_test
}  // namespace ferro
