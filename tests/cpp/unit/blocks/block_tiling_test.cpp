// How the blocks of a heap tile its spans, without a heap.
#include "ferro/core/blocks/block_tiling.h"

#include "support/sim_gpu.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace ferro {
namespace {

using testing::kPageBytes;

using Blocks = std::vector<Block*>;

// More gaps than are looked at for one request: live and missing pages in turns, and a gap of three
// pages at the end.
class ManyGapsTest : public ::testing::Test {
 protected:
  ManyGapsTest() {
    auto span =
        std::make_unique<Span>(DevicePtr{kSpanAlignment}, 8 * kSpanAlignment, kPageBytes, nullptr);
    Block* rest = tiling_.add_span(std::move(span));
    for (int i = 0; i < 100; ++i) {
      rest = cut_gap(rest, kPageBytes, kPageBytes);
    }
    gaps_.push_back(cut_gap(rest, rest->size - 3 * kPageBytes, 3 * kPageBytes));
    tiling_.check_invariants();
  }

  // So many live bytes and a gap behind them. What is left, or the gap when that is nothing.
  Block* cut_gap(Block* block, std::size_t live, std::size_t missing) {
    tiling_.split_tail(block, live, BlockState::kTransit);
    block->state = BlockState::kLive;
    Block* gap = block->next;
    Block* rest = gap;
    if (gap->size > missing) {
      tiling_.split_tail(gap, missing, BlockState::kTransit);
      rest = gap->next;
      gaps_.push_back(gap);
    }
    tiling_.make_gap(gap);
    return rest;
  }

  BlockTiling tiling_{kPageBytes};
  Blocks gaps_;
};

TEST_F(ManyGapsTest, TheFirstThatHasRoomIsFound) {
  EXPECT_EQ(tiling_.growth_candidates(kPageBytes, 0), Blocks{gaps_.front()});
  EXPECT_EQ(tiling_.growth_candidates(2 * kPageBytes, 0), Blocks{gaps_.back()});
  EXPECT_EQ(tiling_.growth_candidates(4 * kPageBytes, 0), Blocks{});
}

TEST_F(ManyGapsTest, TheFirstThatHasRoomForSparePagesIsFound) {
  EXPECT_EQ(tiling_.growth_candidates(kPageBytes, 2), Blocks{gaps_.back()});
  EXPECT_EQ(tiling_.growth_candidates(kPageBytes, 3), Blocks{});
}

}  // namespace
}  // namespace ferro
