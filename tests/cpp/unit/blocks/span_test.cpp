#include "ferro/core/blocks/span.h"

#include "ferro/core/blocks/address_index.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace ferro {
namespace span_test {

constexpr std::size_t kPage = 2 * kMiB;
constexpr DevicePtr kBase{std::uint64_t{0x7f} << 40};

TEST(Span, KnowsWhichPageIsBehindAnAddress) {
  const Span span(kBase, kGiB, kPage, nullptr);
  EXPECT_EQ(span.page_slots(), kGiB / kPage);
  EXPECT_EQ(span.page_slot(kBase), 0U);
  EXPECT_EQ(span.page_slot(kBase + (kPage - 1)), 0U);
  EXPECT_EQ(span.page_slot(kBase + kPage), 1U);
  EXPECT_EQ(span.page_slot(kBase + (kGiB - 1)), kGiB / kPage - 1);
}

TEST(Span, CountsTheFilledSlots) {
  Span span(kBase, kGiB, kPage, nullptr);
  EXPECT_EQ(span.page(3), kNoPage);
  span.put_handle(3, PageHandle{7}, 1);
  span.put_handle(5, PageHandle{8}, 3);
  EXPECT_EQ(span.backed_pages(), 4U);
  EXPECT_EQ(span.page(3), PageHandle{7});
  EXPECT_EQ(span.page(7), PageHandle{8});
  EXPECT_EQ(span.handle_begin(6), 5U);
  EXPECT_EQ(span.handle_end(6), 8U);
  span.remove_handle(3);
  EXPECT_EQ(span.backed_pages(), 3U);
  EXPECT_EQ(span.page(3), kNoPage);
  span.remove_handle(5);
  EXPECT_EQ(span.backed_pages(), 0U);
  EXPECT_EQ(span.page(7), kNoPage);
}

TEST(Span, FindsABlockByItsFirstByteOnly) {
  Span span(kBase, kGiB, kPage, nullptr);
  Block block;
  block.ptr = kBase + 3 * kBlockAlignment;
  EXPECT_EQ(span.block_at(block.ptr), nullptr);
  span.set_block(block.ptr, &block);
  EXPECT_EQ(span.block_at(block.ptr), &block);
  EXPECT_EQ(span.block_at(block.ptr + 1), nullptr);
  EXPECT_EQ(span.block_at(block.ptr + (kBlockAlignment - 1)), nullptr);
  EXPECT_EQ(span.block_at(block.ptr + kBlockAlignment), nullptr);
  EXPECT_EQ(span.block_at(kBase + 2 * kBlockAlignment), nullptr);
  span.set_block(block.ptr, nullptr);
  EXPECT_EQ(span.block_at(block.ptr), nullptr);
}

TEST(Span, HoldsBlocksAnywhereAndManyRegions) {
  Span span(kBase, 2 * kGiB, kPage, nullptr);
  std::mt19937_64 random(11);
  std::map<std::size_t, Block> blocks;
  // More regions than one chunk of the index covers.
  for (int i = 0; i < 2000; ++i) {
    const std::size_t offset = random() % (2 * kGiB / kBlockAlignment) * kBlockAlignment;
    Block& block = blocks[offset];
    block.ptr = kBase + offset;
    span.set_block(block.ptr, &block);
  }
  for (std::size_t last : {std::size_t{0}, 2 * kGiB - kBlockAlignment}) {
    span.set_block(kBase + last, &blocks[last]);
  }
  for (auto& [offset, block] : blocks) {
    ASSERT_EQ(span.block_at(kBase + offset), &block);
  }
}

TEST(AddressIndex, FindsTheSpanOfEveryAddressInIt) {
  AddressIndex index;
  Span span(kBase, 3 * kGiB, kPage, nullptr);
  Span neighbour(kBase + 3 * kGiB, kGiB, kPage, nullptr);
  ASSERT_TRUE(index.add(&span));
  ASSERT_TRUE(index.add(&neighbour));
  EXPECT_EQ(index.find(kBase), &span);
  EXPECT_EQ(index.find(kBase + (3 * kGiB - 1)), &span);
  EXPECT_EQ(index.find(kBase + 3 * kGiB), &neighbour);
  EXPECT_EQ(index.find(kBase + 4 * kGiB), nullptr);
  EXPECT_EQ(index.find(DevicePtr{address_of(kBase) - 1}), nullptr);
  EXPECT_EQ(index.find(kNull), nullptr);
}

TEST(AddressIndex, ForgetsExactlyTheRemovedSpan) {
  AddressIndex index;
  Span span(kBase, 2 * kGiB, kPage, nullptr);
  Span neighbour(kBase + 2 * kGiB, kGiB, kPage, nullptr);
  ASSERT_TRUE(index.add(&span));
  ASSERT_TRUE(index.add(&neighbour));
  index.remove(&span);
  EXPECT_EQ(index.find(kBase), nullptr);
  EXPECT_EQ(index.find(kBase + (2 * kGiB - 1)), nullptr);
  EXPECT_EQ(index.find(kBase + 2 * kGiB), &neighbour);
}

TEST(AddressIndex, RefusesAddressesBeyondItsRange) {
  constexpr std::uint64_t kEnd = std::uint64_t{1} << AddressIndex::kAddressBits;
  AddressIndex index;
  Span last(DevicePtr{kEnd - kGiB}, kGiB, kPage, nullptr);
  Span over(DevicePtr{kEnd - kGiB}, 2 * kGiB, kPage, nullptr);
  EXPECT_FALSE(index.add(&over));
  EXPECT_EQ(index.find(last.base()), nullptr) << "a refused span leaves nothing behind";
  EXPECT_TRUE(index.add(&last));
  EXPECT_EQ(index.find(DevicePtr{kEnd - 1}), &last);
  EXPECT_EQ(index.find(DevicePtr{kEnd}), nullptr);
  EXPECT_EQ(index.find(DevicePtr{~std::uint64_t{0}}), nullptr);
}

}  // namespace span_test
}  // namespace ferro
