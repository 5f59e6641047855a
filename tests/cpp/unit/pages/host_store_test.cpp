// Host memory for the contents of memory that sleeps: pieces of segments, in any order.
#include "ferro/core/pages/host_store.h"

#include "ferro/base/bytes.h"
#include "support/sim_gpu.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <numeric>
#include <random>
#include <unistd.h>
#include <vector>

namespace ferro {
namespace host_store_test {

using testing::SimGpu;
using Pieces = std::vector<HostStore::Piece>;

class HostStoreTest : public ::testing::Test {
 protected:
  Pieces take(std::size_t bytes, std::size_t more = 0) {
    Pieces pieces;
    EXPECT_TRUE(store_.take(bytes, more, pieces));
    return pieces;
  }

  SimGpu gpu_{16};
  Driver driver_{SimGpu::api(), 0};
  HostStore store_{driver_};
};

TEST_F(HostStoreTest, PiecesOfOneSegmentMergeInAnyOrder) {
  constexpr std::size_t kPieces = 7;
  std::vector<std::size_t> order(kPieces);
  std::iota(order.begin(), order.end(), 0U);
  std::mt19937 random(3);
  for (int round = 0; round < 50; ++round) {
    std::vector<Pieces> taken;
    for (std::size_t i = 0; i < kPieces; ++i) {
      // One segment has room for all.
      taken.push_back(take(2 * kMiB, (kPieces - 1 - i) * 2 * kMiB));
    }
    ASSERT_EQ(store_.held_bytes(), 2 * kPieces * kMiB);
    ASSERT_EQ(store_.used_bytes(), store_.held_bytes());
    std::ranges::shuffle(order, random);
    for (const std::size_t each : order) {
      EXPECT_EQ(store_.trim(), 0U) << "while a piece is in use";
      store_.put(taken[each]);
    }
    // All of it is one range again.
    const Pieces whole = take(2 * kPieces * kMiB);
    ASSERT_EQ(whole.size(), 1U) << round;
    store_.put(whole);
    ASSERT_EQ(store_.used_bytes(), 0U);
  }
  EXPECT_EQ(store_.trim(), 2 * kPieces * kMiB);
  EXPECT_EQ(store_.held_bytes(), 0U);
  EXPECT_EQ(store_.locked_bytes(), 0U);
}

TEST_F(HostStoreTest, WhatIsFreeServesInPieces) {
  const Pieces first = take(4 * kMiB, 8 * kMiB);
  const Pieces second = take(4 * kMiB);
  const Pieces third = take(4 * kMiB);
  ASSERT_EQ(store_.held_bytes(), 12 * kMiB);
  store_.put(first);
  store_.put(third);
  const Pieces both = take(8 * kMiB);
  EXPECT_EQ(both.size(), 2U);
  EXPECT_EQ(store_.held_bytes(), 12 * kMiB);
  store_.put(both);
  store_.put(second);
  EXPECT_EQ(store_.trim(), 12 * kMiB);
}

// The bytes of memory that the process has.
std::size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::size_t all = 0;
  std::size_t resident = 0;
  file >> all >> resident;
  return resident * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

// A sleep makes the next segment while it fills the last one. If it fails, it needs no more.
TEST_F(HostStoreTest, ATrimReleasesASegmentThatWasMadeInAdvance) {
  constexpr std::size_t kSegment = kGiB;
  constexpr std::size_t kNext = 256 * kMiB;
  if (available_host_bytes().value_or(4 * kGiB) < 2 * (kSegment + kNext)) {
    GTEST_SKIP() << "needs " << 2 * (kSegment + kNext) / kMiB << " MiB of host memory";
  }
  const std::size_t before = resident_bytes();
  store_.put(take(2 * kMiB, kSegment + kNext - 2 * kMiB));
  EXPECT_EQ(store_.held_bytes(), kSegment);
  EXPECT_EQ(store_.trim(), kSegment);
  EXPECT_LT(resident_bytes(), before + kNext / 2);
  EXPECT_EQ(store_.trim(), 0U);
}

}  // namespace host_store_test
}  // namespace ferro
