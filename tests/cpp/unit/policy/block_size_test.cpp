// Block sizes are PyTorch's; the unset rule was measured on its allocator.
#include "ferro/adapter/allocator/block_size.h"

#include <gtest/gtest.h>

#include <bit>

namespace ferro {
namespace block_size_test {

struct SizeCase {
  std::size_t bytes;
  std::size_t divisions;
  std::size_t size;
};

class BlockSizeTest : public ::testing::TestWithParam<SizeCase> {};

TEST_P(BlockSizeTest, IsPyTorchs) {
  const SizeCase& given = GetParam();
  EXPECT_EQ(block_size(given.bytes, given.divisions), given.size)
      << given.bytes << " bytes in " << given.divisions << " divisions";
}

INSTANTIATE_TEST_SUITE_P(
    Unset, BlockSizeTest,
    ::testing::Values(SizeCase{1, 0, 512}, SizeCase{511, 0, 512}, SizeCase{512, 0, 512},
                      SizeCase{513, 0, 1024}, SizeCase{kMiB, 0, kMiB},
                      SizeCase{kMiB + 1, 0, 1'049'088}, SizeCase{10 * kMiB + 1, 0, 10'486'272},
                      SizeCase{kMiB + 1, 1, 1'049'088}, SizeCase{3 * kGiB + 1, 0, 3 * kGiB + 512}));

INSTANTIATE_TEST_SUITE_P(
    PowerOfTwoDivisions, BlockSizeTest,
    ::testing::Values(
        // Sizes up to 512 * divisions keep the plain rule.
        SizeCase{1, 4, 512}, SizeCase{513, 4, 1024}, SizeCase{2048, 4, 2048},
        // Above: four steps between two powers of two.
        SizeCase{2049, 4, 2560}, SizeCase{2561, 4, 3072}, SizeCase{4097, 4, 5120},
        SizeCase{1200 * kMiB, 4, 1280 * kMiB}, SizeCase{1280 * kMiB, 4, 1280 * kMiB},
        SizeCase{1280 * kMiB + 1, 4, 1536 * kMiB}, SizeCase{2047 * kMiB, 4, 2048 * kMiB},
        // A power of two stays as it is.
        SizeCase{4096, 4, 4096}, SizeCase{kGiB, 8, kGiB}, SizeCase{kGiB + 1, 8, kGiB + 128 * kMiB},
        SizeCase{kGiB + 1, 2, kGiB + 512 * kMiB}));

TEST(BlockSize, IsAMultipleOf512ThatHoldsTheRequest) {
  for (const std::size_t divisions : {0U, 1U, 2U, 4U, 8U, 16U, 64U}) {
    for (std::size_t bytes = 1; bytes < 64 * kMiB; bytes += 1 + bytes / 7) {
      const std::size_t size = block_size(bytes, divisions);
      ASSERT_GE(size, bytes);
      ASSERT_TRUE(is_aligned(size, kBlockAlignment));
      ASSERT_LE(size, std::max(std::bit_ceil(bytes), kBlockAlignment));
      ASSERT_EQ(block_size(size, divisions), size) << "rounding is idempotent";
    }
  }
}

TEST(DivisionsIndex, EachPowerOfTwoFrom1MiBHasItsOwnAndTheLastServesWhatIsLarger) {
  EXPECT_EQ(divisions_index(1, 16), 0U);
  for (std::size_t power = 0; power < 16; ++power) {
    EXPECT_EQ(divisions_index(kMiB << power, 16), power);
    EXPECT_EQ(divisions_index((kMiB << (power + 1)) - 1, 16), power);
  }
  EXPECT_EQ(divisions_index(kMiB << 16, 16), 15U);
  EXPECT_EQ(divisions_index(kMiB << 30, 16), 15U);
}

}  // namespace block_size_test
}  // namespace ferro
