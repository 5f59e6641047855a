// How the blocks of a heap tile its spans, without a heap.
#include "ferro/core/blocks/block_tiling.h"

#include "support/sim_gpu.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <utility>
#include <vector>

namespace ferro {
namespace block_tiling_test {

using testing::kPageBytes;

using Blocks = std::vector<Block*>;

// More gaps than one request examines: live and missing pages in turns, and a gap of three pages at
// the end.
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

  // Makes so many live bytes and a gap after them. Returns the rest, or the gap if there is no
  // rest.
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

TEST_F(ManyGapsTest, ThoseBesideFreeBlocksAreFoundToo) {
  tiling_.insert(gaps_[50]->prev);
  EXPECT_EQ(tiling_.growth_candidates(kPageBytes, 0), (Blocks{gaps_[0], gaps_[49], gaps_[50]}));
}

// Sixteen pages on handles of four, four, one, one, two and four pages; all of them live.
class HolesTest : public ::testing::Test {
 protected:
  HolesTest() {
    auto span =
        std::make_unique<Span>(DevicePtr{kSpanAlignment}, kSpanAlignment, kPageBytes, nullptr);
    span_ = span.get();
    block_ = tiling_.add_span(std::move(span));
    tiling_.split_tail(block_, 16 * kPageBytes, BlockState::kTransit);
    block_->state = BlockState::kLive;
    tiling_.make_gap(block_->next);
    std::vector<HandleRange> handles;
    for (const std::size_t pages : {4U, 4U, 1U, 1U, 2U, 4U}) {
      handles.push_back({PageHandle{handles.size() + 1}, pages});
    }
    tiling_.back(*span_, span_->base(), handles);
  }
  // Frees the bytes from one page on up to another.
  void free(std::size_t first_page, std::size_t end_page, std::size_t shift = 0) {
    Block* block = span_->block_around(span_->base() + first_page * kPageBytes + shift);
    const DevicePtr begin = span_->base() + first_page * kPageBytes + shift;
    if (block->ptr < begin) {
      tiling_.split_tail(block, distance(block->ptr, begin), BlockState::kLive);
      block = block->next;
    }
    const std::size_t size = (end_page - first_page) * kPageBytes;
    if (block->size > size) {
      tiling_.split_tail(block, size, BlockState::kLive);
    }
    tiling_.insert(block);
    tiling_.check_invariants();
  }
  // The first page and the number of pages of each hole, large blocks first.
  std::vector<std::pair<std::size_t, std::size_t>> holes() const {
    std::vector<std::pair<std::size_t, std::size_t>> found;
    tiling_.for_each_hole([&](const Hole& hole) {
      found.emplace_back(distance(span_->base(), hole.run.begin) / kPageBytes,
                         hole.run.bytes / kPageBytes);
      return true;
    });
    return found;
  }

  using Runs = std::vector<std::pair<std::size_t, std::size_t>>;
  BlockTiling tiling_{kPageBytes};
  Span* span_ = nullptr;
  Block* block_ = nullptr;
};

TEST_F(HolesTest, APartlyFreeHandleIsNoHole) {
  free(1, 3);
  EXPECT_EQ(holes(), Runs{});
  free(4, 7);
  EXPECT_EQ(holes(), Runs{});
  free(13, 16);
  EXPECT_EQ(holes(), Runs{});
}

TEST_F(HolesTest, HandlesAtBothEndsThatAreFreeInPartAreLeftOut) {
  free(2, 11);
  EXPECT_EQ(holes(), (Runs{{4, 6}}));
  EXPECT_EQ(tiling_.handles_behind(*span_, {span_->base() + 4 * kPageBytes, 6 * kPageBytes}),
            (std::vector<HandleRange>{{PageHandle{2}, 4}, {PageHandle{3}, 1}, {PageHandle{4}, 1}}));
  free(0, 2);
  EXPECT_EQ(holes(), (Runs{{0, 10}}));
}

TEST_F(HolesTest, BytesOfAPageThatAreFreeInPartAreLeftOut) {
  free(8, 10, kBlockAlignment);
  EXPECT_EQ(holes(), (Runs{{9, 1}}));
}

TEST_F(HolesTest, FreeBytesOfAHandleThatIsFreeInPartAreStranded) {
  using Stranded = std::multiset<std::pair<std::size_t, std::size_t>>;
  const auto stranded = [this] {
    Stranded found;
    tiling_.for_each_stranded(
        [&](std::size_t pages, std::size_t bytes) { found.emplace(pages, bytes); });
    return found;
  };
  EXPECT_EQ(stranded(), Stranded{});
  free(1, 3);
  EXPECT_EQ(stranded(), (Stranded{{4, 2 * kPageBytes}})) << "inside one handle";
  free(7, 9, kBlockAlignment);
  EXPECT_EQ(
      stranded(),
      (Stranded{{1, kBlockAlignment}, {4, 2 * kPageBytes}, {4, kPageBytes - kBlockAlignment}}))
      << "at both ends of a block";
  free(0, 1);
  free(3, 4);
  EXPECT_EQ(stranded(), (Stranded{{1, kBlockAlignment}, {4, kPageBytes - kBlockAlignment}}))
      << "whole handles are not";
}

TEST_F(HolesTest, TheHandlesOfAHoleGoTogether) {
  free(8, 12);
  EXPECT_EQ(holes(), (Runs{{8, 4}}));
  Block* hole = span_->block_at(span_->base() + 8 * kPageBytes);
  tiling_.take(hole);
  tiling_.unback(*span_, {hole->ptr, hole->size});
  tiling_.make_gap(hole);
  tiling_.check_invariants();
  EXPECT_EQ(tiling_.backed_pages(), 12U);
  EXPECT_EQ(holes(), Runs{});
}

}  // namespace block_tiling_test
}  // namespace ferro
