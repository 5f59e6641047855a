// Contents that memory holds by reference: compared with a model of bytes, and the times when they
// are computed and freed.
#include "ferro/base/bytes.h"
#include "sim/memory/physical_memory.h"
#include "sim/memory/shared_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace ferro::sim {
namespace sim_contents_test {

struct Drawn : ferro_sim_contents {
  std::vector<std::byte> all;
  bool fails = false;
  int computed = 0;
  int* destroyed = nullptr;
};

constexpr ferro_sim_contents_kind kDrawn = {
    [](ferro_sim_contents* self) -> const void* {
      auto* const drawn = static_cast<Drawn*>(self);
      ++drawn->computed;
      return drawn->fails ? nullptr : drawn->all.data();
    },
    [](ferro_sim_contents* self) {
      ++*static_cast<Drawn*>(self)->destroyed;
      delete static_cast<Drawn*>(self);
    },
};

Drawn* draw(std::size_t bytes, unsigned seed, int* destroyed) {
  auto* const drawn = new Drawn;
  drawn->kind = &kDrawn;
  drawn->references = 0;
  drawn->destroyed = destroyed;
  std::mt19937 random(seed);
  drawn->all.resize(bytes);
  std::generate(drawn->all.begin(), drawn->all.end(), [&] { return std::byte(random() & 0xff); });
  return drawn;
}

constexpr std::size_t kBytes = 5 * kMiB;

TEST(SimContents, AgreeWithAModelOfBytes) {
  int destroyed = 0;  // outlives the memory, which may hold contents to its end
  PhysicalMemory memory(2 * kBytes, true);
  ASSERT_TRUE(memory.allocate(2 * kBytes).has_value());
  std::vector<std::byte> model(2 * kBytes);
  std::mt19937 random(11);
  int made = 0;
  const auto below = [&](std::size_t end) { return random() % end; };
  for (int i = 0; i < 300; ++i) {
    const std::size_t bytes = 1 + below(i % 3 == 0 ? kBytes : 100 * kKiB);
    const std::size_t at = below(2 * kBytes - bytes);
    const auto begin = model.begin() + static_cast<std::ptrdiff_t>(at);
    switch (below(6)) {
      case 0: {
        const std::size_t skipped = below(100);
        const ContentsRef held(draw(skipped + bytes, random(), &destroyed));
        ++made;
        const auto* const from = static_cast<Drawn*>(held.get())->all.data() + skipped;
        memory.hold(at, bytes, held, skipped);
        std::copy_n(from, bytes, begin);
        EXPECT_EQ(static_cast<Drawn*>(held.get())->computed, 0);
        break;
      }
      case 1: {
        std::vector<std::byte> written(bytes, std::byte(below(256)));
        memory.write(at, written.data(), bytes);
        std::copy(written.begin(), written.end(), begin);
        break;
      }
      case 2:
        memory.discard(at, bytes);
        std::fill_n(begin, bytes, std::byte{0});
        break;
      case 3:
        memory.fill(at, 0x5a, 1, bytes);
        std::fill_n(begin, bytes, std::byte{0x5a});
        break;
      case 4: {
        const std::size_t half = bytes / 2;
        memory.copy(at + half, memory, at, half);
        std::copy_n(begin, half, begin + static_cast<std::ptrdiff_t>(half));
        break;
      }
      default: {
        std::vector<ferro_sim_piece> pieces;
        memory.take_pieces(at, bytes, pieces);
        std::vector<std::byte> seen;
        for (const auto& [contents, offset, size] : pieces) {
          seen.resize(seen.size() + size);
          if (contents != nullptr) {
            const auto* from = static_cast<const std::byte*>(contents->kind->bytes(contents));
            std::copy_n(from + offset, size, seen.end() - static_cast<std::ptrdiff_t>(size));
            const ContentsRef last(contents);
            --contents->references;
          }
        }
        ASSERT_TRUE(std::equal(seen.begin(), seen.end(), begin,
                               begin + static_cast<std::ptrdiff_t>(bytes)));
      }
    }
    std::vector<std::byte> read(bytes);
    memory.read(at, read.data(), bytes);
    ASSERT_TRUE(std::equal(read.begin(), read.end(), begin));
  }
  std::vector<std::byte> all(2 * kBytes);
  memory.read(0, all.data(), all.size());
  EXPECT_EQ(all, model);
  memory.free(0, 2 * kBytes);
  EXPECT_EQ(memory.held_parts(), 0U);
  EXPECT_EQ(destroyed, made);
}

TEST(SimContents, ThatCannotBeComputedAreUnknownZeros) {
  int destroyed = 0;
  PhysicalMemory memory(kBytes, true);
  ASSERT_TRUE(memory.allocate(kBytes).has_value());
  const ContentsRef held(draw(100, 1, &destroyed));
  static_cast<Drawn*>(held.get())->fails = true;
  memory.hold(50, 100, held, 0);
  memory.copy(1000, memory, 40, 120);
  EXPECT_EQ(memory.certainties().least(1000, 120), FERRO_SIM_KNOWN);
  memory.compute(1000, 120);
  EXPECT_EQ(memory.certainties().least(1000, 10), FERRO_SIM_KNOWN);
  EXPECT_EQ(memory.certainties().least(1010, 100), FERRO_SIM_UNKNOWN);
  EXPECT_EQ(memory.certainties().least(1110, 10), FERRO_SIM_KNOWN);
  EXPECT_EQ(static_cast<Drawn*>(held.get())->references, 2U);
}

TEST(SimContents, OfSharedMemoryAreComputedAtOnce) {
  int destroyed = 0;
  PhysicalMemory memory(kBytes, true);
  ASSERT_TRUE(memory.allocate(kBytes).has_value());
  {
    const ContentsRef held(draw(4 * kKiB, 1, &destroyed));
    memory.hold(0, 4 * kKiB, held, 0);
    auto file = SharedFile::create(kBytes, 0);
    ASSERT_TRUE(file.has_value());
    const auto shared = PhysicalMemory::shared(file->descriptor(), kBytes, true);
    shared->copy_onto_zeros(0, memory, 0, kBytes);
    EXPECT_EQ(static_cast<Drawn*>(held.get())->references, 2U);
    std::vector<std::byte> read(4 * kKiB);
    shared->read(0, read.data(), read.size());
    EXPECT_EQ(read, static_cast<Drawn*>(held.get())->all);
  }
  memory.discard(0, 4 * kKiB);
  EXPECT_EQ(destroyed, 1);
}

}  // namespace sim_contents_test
}  // namespace ferro::sim
