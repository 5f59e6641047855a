// Parts with contents, compared with one entry for each byte.
#include "sim/memory/contents_ref.h"
#include "sim/memory/held_ranges.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <ostream>
#include <random>
#include <utility>
#include <vector>

namespace ferro::sim {
namespace sim_ranges_test {

struct Load {
  std::size_t bytes;
  std::size_t part;     // the most bytes of most parts
  unsigned long_parts;  // one of so many parts has up to `bytes`
  int steps;
};

void PrintTo(const Load& load, std::ostream* to) { *to << load.bytes << " bytes"; }

class SimHeldRanges : public ::testing::TestWithParam<Load> {};
INSTANTIATE_TEST_SUITE_P(FewAndMany, SimHeldRanges,
                         ::testing::Values(Load{200, 20, 4, 20'000}, Load{3'000, 3, 500, 10'000}));

TEST_P(SimHeldRanges, AgreeWithAModelOfBytes) {
  const std::size_t all_bytes = GetParam().bytes;
  // A part of at least one byte.
  const auto part_of = [&](std::mt19937& random) -> std::pair<std::uint64_t, std::size_t> {
    const bool is_long = random() % GetParam().long_parts == 0;
    const std::size_t bytes = 1 + random() % (is_long ? all_bytes : GetParam().part);
    return {random() % (all_bytes - bytes + 1), bytes};
  };
  struct Byte {
    const ferro_sim_contents* contents = nullptr;
    std::size_t offset = 0;
    bool held = false;
    bool operator==(const Byte&) const = default;
  };
  std::mt19937 random(5);
  HeldRanges<ContentsRef> ranges;
  std::vector<Byte> model(all_bytes);
  std::vector<ContentsRef> all(1);  // the first one stands for zeros
  for (int i = 1; i < 5; ++i) {
    all.push_back(copy_bytes(&i, sizeof i));
  }
  for (int i = 0; i < GetParam().steps; ++i) {
    const auto [begin, bytes] = part_of(random);
    if (random() % 3 == 0) {
      ranges.remove(begin, bytes);
      std::fill_n(model.begin() + static_cast<std::ptrdiff_t>(begin), bytes, Byte{});
    } else {
      const ContentsRef& contents = all[random() % all.size()];
      // Often what continues the bytes before.
      const std::size_t offset = random() % 2 == 0 ? begin : random() % all_bytes;
      ranges.set(begin, bytes, contents, offset);
      for (std::size_t j = 0; j < bytes; ++j) {
        model[begin + j] = {contents.get(), contents.is_zeros() ? 0 : offset + j, true};
      }
    }
    if (random() % 10 == 0) {
      const auto from = part_of(random).first % (all_bytes - bytes + 1);
      const std::vector<Byte> moved(model.begin() + static_cast<std::ptrdiff_t>(from),
                                    model.begin() + static_cast<std::ptrdiff_t>(from + bytes));
      ranges.copy(begin, ranges, from, bytes);
      std::copy(moved.begin(), moved.end(), model.begin() + static_cast<std::ptrdiff_t>(begin));
    }
    std::vector<Byte> found(all_bytes);
    std::size_t parts = 0;
    ranges.for_each_part(
        0, all_bytes,
        [&](std::uint64_t at, std::size_t part, const ContentsRef& contents, std::size_t offset) {
          ++parts;
          for (std::size_t j = 0; j < part; ++j) {
            found[at + j] = {contents.get(), contents.is_zeros() ? 0 : offset + j, true};
          }
        },
        [](std::uint64_t, std::size_t) {});
    ASSERT_EQ(found, model) << i;
    ASSERT_EQ(parts, ranges.count());
    std::size_t fewest = 0;
    for (std::size_t j = 0; j < all_bytes; ++j) {
      const bool continues =
          j > 0 && model[j - 1].held && model[j - 1].contents == model[j].contents &&
          model[j - 1].offset + (model[j].contents == nullptr ? 0 : 1) == model[j].offset;
      fewest += model[j].held && !continues ? 1 : 0;
    }
    ASSERT_EQ(parts, fewest) << i;
    const auto [at, size] = part_of(random);
    const auto from = model.begin() + static_cast<std::ptrdiff_t>(at);
    const bool zeros = std::all_of(from, from + static_cast<std::ptrdiff_t>(size),
                                   [](Byte byte) { return byte.held && byte.contents == nullptr; });
    ASSERT_EQ(ranges.holds(at, size, {}), zeros) << i;
  }
  const auto references = [&](std::size_t n) { return all[n].get()->references; };
  ranges.remove(0, all_bytes);
  EXPECT_TRUE(ranges.empty());
  for (std::size_t n = 1; n < all.size(); ++n) {
    EXPECT_EQ(references(n), 1U);
  }
}

}  // namespace sim_ranges_test
}  // namespace ferro::sim
