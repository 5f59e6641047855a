// Contents that memory holds by reference: compared with a model of bytes, and the times when they
// are computed and freed.
#include "ferro/base/bytes.h"
#include "sim/memory/origins.h"
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
    [](ferro_sim_contents* self) -> std::size_t {
      auto* const drawn = static_cast<Drawn*>(self);
      return drawn->computed > 0 ? drawn->all.size() : 0;
    },
};

Drawn* draw(std::size_t bytes, unsigned seed, int* destroyed) {
  auto* const drawn = new Drawn;
  drawn->kind = &kDrawn;
  drawn->references = 0;
  drawn->origin = {0, FERRO_SIM_KNOWN, 0, 0, 0, 0};
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

TEST(SimContents, AreListedUpToTheMostParts) {
  int destroyed = 0;
  PhysicalMemory memory(kBytes, true);
  ASSERT_TRUE(memory.allocate(kBytes).has_value());
  const ContentsRef held(draw(100, 1, &destroyed));
  for (std::size_t i = 0; i < 100; ++i) {
    memory.hold(10 * i, 1, held, i);
  }
  std::vector<ferro_sim_piece> pieces;
  EXPECT_EQ(memory.take_pieces(0, 1000, pieces, 3), 30U);
  EXPECT_EQ(pieces.size(), 6U);
  EXPECT_EQ(memory.take_pieces(5, 10, pieces, 1), 10U);
  for (const ferro_sim_piece& piece : pieces) {
    const ContentsRef last(piece.contents);
    if (piece.contents != nullptr) {
      --piece.contents->references;
    }
  }
}

TEST(SimContents, ThatCannotBeComputedAreUnknownZeros) {
  int destroyed = 0;
  PhysicalMemory memory(kBytes, true);
  ASSERT_TRUE(memory.allocate(kBytes).has_value());
  const ContentsRef held(draw(100, 1, &destroyed));
  static_cast<Drawn*>(held.get())->fails = true;
  memory.hold(50, 100, held, 0);
  memory.copy(1000, memory, 40, 120);
  EXPECT_EQ(memory.knowledge().least_certainty(1000, 120), FERRO_SIM_KNOWN);
  memory.compute(1000, 120);
  EXPECT_EQ(memory.knowledge().least_certainty(1000, 10), FERRO_SIM_KNOWN);
  EXPECT_EQ(memory.knowledge().least_certainty(1010, 100), FERRO_SIM_UNKNOWN);
  EXPECT_EQ(memory.knowledge().least_certainty(1110, 10), FERRO_SIM_KNOWN);
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

// What `list_origins` says of each byte: the identity and the offset there.
using Sources = std::vector<std::pair<std::uint64_t, std::size_t>>;

Sources sources_of(PhysicalMemory& memory, std::size_t at, std::size_t bytes) {
  std::vector<ferro_sim_origin_piece> pieces;
  memory.list_origins(at, bytes, 1000, pieces);
  Sources all;
  for (const ferro_sim_origin_piece& piece : pieces) {
    for (std::size_t i = 0; i < piece.bytes; ++i) {
      all.emplace_back(piece.origin.identity, piece.offset + i);
    }
  }
  return all;
}

TEST(SimContents, SmallPartsThatAreComputedDoNotHoldTheRest) {
  for (const bool is_read_first : {true, false}) {
    int destroyed = 0;
    PhysicalMemory memory(4 * kBytes, true);
    ASSERT_TRUE(memory.allocate(4 * kBytes).has_value());
    Drawn* const drawn = draw(kBytes, 3, &destroyed);
    drawn->origin.identity = 9;
    const std::vector<std::byte> all = drawn->all;
    memory.hold(0, kBytes, ContentsRef(drawn), 0);
    memory.mark(100, 50, FERRO_SIM_DRAWN);
    if (is_read_first) {
      memory.compute(0, 1);
      memory.compute(1000, 4);
      EXPECT_EQ(memory.held_parts(), 1U) << "reads do not split it";
    }
    const std::size_t small = kBytes / 8;
    memory.copy(kBytes + 7, memory, 100, small);
    memory.compute(kBytes + 7, small);
    memory.discard(0, kBytes);
    EXPECT_EQ(destroyed, 1);
    std::vector<std::byte> read(small);
    memory.read(kBytes + 7, read.data(), small);
    EXPECT_TRUE(std::equal(read.begin(), read.end(), all.begin() + 100));
    EXPECT_EQ(sources_of(memory, kBytes + 7, 1)[0],
              (std::pair<std::uint64_t, std::size_t>(9, 100)));
    EXPECT_EQ(memory.knowledge().least_certainty(kBytes + 7, 50), FERRO_SIM_DRAWN);
    EXPECT_EQ(memory.knowledge().least_certainty(kBytes + 57, small - 50), FERRO_SIM_KNOWN);
  }
}

TEST(SimOrigins, AgreeWithAListOfBytes) {
  constexpr std::size_t kLength = 64;
  PhysicalMemory memory(kLength, true);
  ASSERT_TRUE(memory.allocate(kLength).has_value());
  memory.forget(0, kLength, false, {1, FERRO_SIM_KNOWN, 0, 0, 0, 0}, 0);
  Sources model;
  for (std::size_t i = 0; i < kLength; ++i) {
    model.emplace_back(1, i);
  }
  std::mt19937 random(5);
  for (std::uint64_t step = 2; step < 3000; ++step) {
    // Copies do not overlap.
    const std::size_t at = random() % (kLength / 2);
    const std::size_t bytes = 1 + random() % (kLength / 2 - at);
    const auto begin = model.begin() + static_cast<std::ptrdiff_t>(at);
    if (random() % 2 == 0) {
      memory.forget(at, bytes, random() % 2 == 0, {step, FERRO_SIM_KNOWN, 0, 0, 0, 0}, 7);
      for (std::size_t i = 0; i < bytes; ++i) {
        begin[static_cast<std::ptrdiff_t>(i)] = {step, 7 + i};
      }
    } else {
      const std::size_t to = kLength / 2 + random() % (kLength / 2 - bytes + 1);
      const Sources copied(begin, begin + static_cast<std::ptrdiff_t>(bytes));
      memory.copy(to, memory, at, bytes);
      std::copy(copied.begin(), copied.end(), model.begin() + static_cast<std::ptrdiff_t>(to));
    }
    ASSERT_EQ(sources_of(memory, 0, kLength), model) << "after step " << step;
    EXPECT_EQ(memory.knowledge().least_certainty(0, kLength), FERRO_SIM_UNKNOWN);
  }
}

TEST(SimOrigins, OfEqualBytesAreEqual) {
  std::vector<std::byte> bytes(kBytes);
  std::mt19937 random(5);
  std::generate(bytes.begin(), bytes.end(), [&] { return std::byte(random() & 0xff); });
  PhysicalMemory memory(3 * kBytes, true);
  ASSERT_TRUE(memory.allocate(3 * kBytes).has_value());
  memory.write(0, bytes.data(), kBytes);
  memory.write(kBytes + 12345, bytes.data(), kBytes);
  const std::uint64_t identity = sources_of(memory, 0, kBytes)[0].first;
  EXPECT_EQ(sources_of(memory, kBytes + 12345, kBytes)[0].first, identity);
  // Where they are taken, they become contents piece by piece.
  std::vector<ferro_sim_piece> pieces;
  memory.take_pieces(0, kBytes, pieces);
  EXPECT_EQ(sources_of(memory, 0, kBytes)[0].first, identity);
  EXPECT_EQ(sources_of(memory, 8, 8)[0], (std::pair<std::uint64_t, std::size_t>(identity, 8)));
  for (const ferro_sim_piece& piece : pieces) {
    --piece.contents->references;  // memory holds another one
  }
  bytes[kBytes - 1] ^= std::byte{1};
  memory.write(0, bytes.data(), kBytes);
  EXPECT_NE(sources_of(memory, 0, kBytes)[0].first, identity);
  memory.fill(0, 0, 1, kBytes);
  const std::uint64_t zeros = sources_of(memory, 0, kBytes)[0].first;
  EXPECT_NE(zeros, identity);
  memory.discard(0, kBytes);
  EXPECT_EQ(sources_of(memory, 0, kBytes)[0].first, zeros);
}

TEST(SimOrigins, AreThoseOfContentsWithOne) {
  int destroyed = 0;
  PhysicalMemory memory(kBytes, true);
  ASSERT_TRUE(memory.allocate(kBytes).has_value());
  Drawn* const drawn = draw(64, 1, &destroyed);
  drawn->origin.identity = 9;
  memory.hold(100, 64, ContentsRef(drawn), 0);
  EXPECT_EQ(sources_of(memory, 104, 2), (Sources{{9, 4}, {9, 5}}));
  EXPECT_EQ(drawn->computed, 0);
  // Few origins are listed of a range that has many.
  for (std::size_t i = 0; i < 100; ++i) {
    memory.forget(2 * i, 1, false, {i + 1, FERRO_SIM_KNOWN, 0, 0, 0, 0}, 0);
  }
  std::vector<ferro_sim_origin_piece> pieces;
  memory.list_origins(0, 200, 10, pieces);
  EXPECT_LE(pieces.size(), 20u);
  EXPECT_EQ(pieces.front().origin.identity, 1u);
}

}  // namespace sim_contents_test
}  // namespace ferro::sim
