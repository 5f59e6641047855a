// Memory for small records: zeroed, aligned, in small chunks first and in large ones later.
#include "ferro/base/host_chunks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <span>

namespace ferro {
namespace host_chunks_test {

bool is_zero(std::span<const std::byte> bytes) {
  return std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{0}; });
}

TEST(HostChunks, AreZeroAndBeginAtACacheLine) {
  HostChunks chunks;
  EXPECT_EQ(chunks.bytes(), 0U);
  for (int i = 0; i < 3; ++i) {
    const std::span<std::byte> chunk = chunks.add();
    EXPECT_EQ(chunk.size(), HostChunks::kSmall);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(chunk.data()) % 64, 0U);
    EXPECT_TRUE(is_zero(chunk));
    std::ranges::fill(chunk, std::byte{0xff});
  }
  EXPECT_EQ(chunks.bytes(), 3 * HostChunks::kSmall);
}

TEST(HostChunks, AreHugeWhenThereAreManyAndDoNotOverlap) {
  HostChunks chunks;
  std::set<std::uintptr_t> begins;
  std::size_t bytes = 0;
  std::size_t huge = 0;
  while (huge < 3) {
    const std::span<std::byte> chunk = chunks.add();
    const auto begin = reinterpret_cast<std::uintptr_t>(chunk.data());
    bytes += chunk.size();
    EXPECT_EQ(chunks.bytes(), bytes);
    if (chunk.size() == HostChunks::kHuge) {
      ++huge;
      EXPECT_EQ(begin % HostChunks::kHuge, 0U) << "it may be one huge page";
      EXPECT_TRUE(is_zero(chunk));
      EXPECT_LE(3 * chunk.size(), bytes) << "at most a third is not used yet";
    } else {
      EXPECT_EQ(huge, 0U) << "the small ones come first";
    }
    std::ranges::fill(chunk, std::byte{0xff});
    EXPECT_TRUE(begins.insert(begin).second);
  }
}

}  // namespace host_chunks_test
}  // namespace ferro
