// Sets of bytes and parts with contents, compared with one entry for each byte.
#include "sim/memory/byte_ranges.h"
#include "sim/memory/contents_ranges.h"
#include "sim/memory/origins.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

namespace ferro::sim {
namespace sim_ranges_test {

constexpr std::size_t kBytes = 200;
constexpr int kSteps = 20'000;

// A part of at least one byte.
std::pair<std::uint64_t, std::size_t> part_of(std::mt19937& random) {
  const std::size_t bytes = 1 + random() % (random() % 4 == 0 ? kBytes : 20);
  return {random() % (kBytes - bytes + 1), bytes};
}

TEST(SimByteRanges, AgreeWithAModelOfBytes) {
  std::mt19937 random(3);
  ByteRanges ranges;
  std::vector<bool> model(kBytes);
  for (int i = 0; i < kSteps; ++i) {
    const auto [begin, bytes] = part_of(random);
    const auto first = model.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto last = first + static_cast<std::ptrdiff_t>(bytes);
    switch (random() % 4) {
      case 0:
        ranges.add(begin, bytes);
        std::fill(first, last, true);
        break;
      case 1:
        ranges.remove(begin, bytes);
        std::fill(first, last, false);
        break;
      case 2: {
        const auto to = part_of(random).first % (kBytes - bytes + 1);
        const std::vector<bool> moved(first, last);
        ranges.copy(to, ranges, begin, bytes);
        std::copy(moved.begin(), moved.end(), model.begin() + static_cast<std::ptrdiff_t>(to));
        break;
      }
      default:
        break;
    }
    const auto [at, size] = part_of(random);
    const auto from = model.begin() + static_cast<std::ptrdiff_t>(at);
    const bool any = std::find(from, from + static_cast<std::ptrdiff_t>(size), true) !=
                     from + static_cast<std::ptrdiff_t>(size);
    ASSERT_EQ(ranges.overlaps(at, size), any) << i;
    ASSERT_FALSE(ranges.overlaps(at, 0));
    std::vector<bool> found(kBytes);
    ranges.for_each_within(0, kBytes, [&](std::uint64_t where, std::size_t part) {
      std::fill_n(found.begin() + static_cast<std::ptrdiff_t>(where), part, true);
    });
    ASSERT_EQ(found, model) << i;
  }
}

TEST(SimContentsRanges, AgreeWithAModelOfBytes) {
  struct Byte {
    const ferro_sim_contents* contents = nullptr;
    std::size_t offset = 0;
    bool held = false;
    bool operator==(const Byte&) const = default;
  };
  std::mt19937 random(5);
  ContentsRanges ranges;
  std::vector<Byte> model(kBytes);
  std::vector<ContentsRef> all(1);  // the first one stands for zeros
  for (std::uint64_t identity = 1; identity < 5; ++identity) {
    all.push_back(make_origin({identity, FERRO_SIM_KNOWN, 0, 0}));
  }
  for (int i = 0; i < kSteps; ++i) {
    const auto [begin, bytes] = part_of(random);
    if (random() % 3 == 0) {
      ranges.remove(begin, bytes);
      std::fill_n(model.begin() + static_cast<std::ptrdiff_t>(begin), bytes, Byte{});
    } else {
      const ContentsRef& contents = all[random() % all.size()];
      // Often what continues the bytes before.
      const std::size_t offset = random() % 2 == 0 ? begin : random() % kBytes;
      ranges.set(begin, bytes, contents, offset);
      for (std::size_t j = 0; j < bytes; ++j) {
        model[begin + j] = {contents.get(), contents.is_zeros() ? 0 : offset + j, true};
      }
    }
    std::vector<Byte> found(kBytes);
    std::size_t parts = 0;
    ranges.for_each_part(
        0, kBytes,
        [&](std::uint64_t at, std::size_t part, const ContentsRef& contents, std::size_t offset) {
          ++parts;
          for (std::size_t j = 0; j < part; ++j) {
            found[at + j] = {contents.get(), contents.is_zeros() ? 0 : offset + j, true};
          }
        },
        [](std::uint64_t, std::size_t) {});
    ASSERT_EQ(found, model) << i;
    ASSERT_EQ(parts, ranges.count());
    const auto [at, size] = part_of(random);
    const auto from = model.begin() + static_cast<std::ptrdiff_t>(at);
    const bool zeros = std::all_of(from, from + static_cast<std::ptrdiff_t>(size),
                                   [](Byte byte) { return byte.held && byte.contents == nullptr; });
    // It may see two ranges where one would do.
    ASSERT_TRUE(zeros || !ranges.holds_zeros(at, size)) << i;
  }
  const auto references = [&](std::size_t n) { return all[n].get()->references; };
  ranges.remove(0, kBytes);
  EXPECT_TRUE(ranges.empty());
  for (std::size_t n = 1; n < all.size(); ++n) {
    EXPECT_EQ(references(n), 1U);
  }
}

}  // namespace sim_ranges_test
}  // namespace ferro::sim
