#include "ferro/graph/graph_sizes.h"

#include "ferro/graph/graph_memory.h"
#include "support/device_fixture.h"
#include "support/sim_gpu.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <random>
#include <set>
#include <vector>

namespace ferro {
namespace graph_sizes_test {

using testing::bytes;
using testing::kPageBytes;
using testing::SimGpu;

AddressRanges ranges(std::initializer_list<std::array<std::uint64_t, 2>> spans) {
  AddressRanges made;
  for (const auto& [begin, end] : spans) {
    made.add(DevicePtr{begin}, end - begin);
  }
  return made;
}

TEST(AddressRangesTest, CountsEachByteOnce) {
  EXPECT_EQ(ranges({}).bytes(), 0U);
  EXPECT_EQ(ranges({{10, 20}, {30, 40}}).bytes(), 20U);
  EXPECT_EQ(ranges({{10, 20}, {20, 30}}).bytes(), 20U);
  EXPECT_EQ(ranges({{10, 20}, {30, 40}, {15, 35}}).bytes(), 30U);
  EXPECT_EQ(ranges({{10, 40}, {20, 30}}).bytes(), 30U);
  EXPECT_EQ(ranges({{20, 30}, {10, 40}}).bytes(), 30U);
}

TEST(AddressRangesTest, AgreesWithASetOfBytes) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::array<AddressRanges, 2> made;
    std::array<std::set<std::uint64_t>, 2> bytes;
    for (int i = 0; i < 20; ++i) {
      const std::size_t which = random() % 2;
      const std::uint64_t begin = random() % 100 + 1;
      const std::uint64_t length = random() % 12 + 1;
      made[which].add(DevicePtr{begin}, length);
      for (std::uint64_t byte = begin; byte < begin + length; ++byte) {
        bytes[which].insert(byte);
      }
    }
    std::vector<std::uint64_t> both;
    std::ranges::set_intersection(bytes[0], bytes[1], std::back_inserter(both));
    EXPECT_EQ(made[0].bytes(), bytes[0].size());
    EXPECT_EQ(made[0].intersection(made[1]).bytes(), both.size());
    made[0].unite(made[1]);
    bytes[0].insert(bytes[1].begin(), bytes[1].end());
    EXPECT_EQ(made[0].bytes(), bytes[0].size());
    for (int i = 0; i < 5; ++i) {
      const std::uint64_t begin = random() % 100 + 1;
      const std::uint64_t length = random() % 12 + 1;
      made[0].remove(DevicePtr{begin}, length);
      bytes[0].erase(bytes[0].lower_bound(begin), bytes[0].lower_bound(begin + length));
      EXPECT_EQ(made[0].bytes(), bytes[0].size());
    }
  }
}

TEST(GraphSizesTest, AGraphsBytesArePrivateOrSharedAndLiveOrScratch) {
  const CapturedRanges captures{{1, ranges({{1000, 1100}, {2000, 2050}})},
                                {2, ranges({{1050, 1150}})}};
  const std::vector<BlockView> live{{DevicePtr{2000}, 50}, {DevicePtr{3000}, 70}};
  const GraphSizes first = sizes_of_graph(captures, 1, live);
  EXPECT_EQ(first.private_bytes, 100U);
  EXPECT_EQ(first.shared_bytes, 50U);
  EXPECT_EQ(first.live_bytes, 50U);
  EXPECT_EQ(first.scratch_bytes, 100U);
  EXPECT_EQ(shared_bytes_of(captures), 50U);
}

TEST(GraphSizesTest, ACaptureThatWasGivenNothingHasNoBytes) {
  EXPECT_EQ(sizes_of_graph({}, 1, {}).private_bytes, 0U);
}

// The memory that captures received is recorded while they run and afterwards, also in pools
// without a group.
class GivenTest : public testing::DeviceFixture {
 protected:
  static constexpr PoolId kOther{0, 8};

  GivenTest() : DeviceFixture(64, SimGpu::kManual, {.graph_order = GraphOrder::kAny}) {
    device_->pools().hold(kGraphPool);
    device_->pools().hold(kOther);
  }
  // Captures one block that dies. Returns the capture's id.
  std::uint64_t capture(const PoolId& pool, std::size_t size) {
    device_->set_captures(1);
    SimGpu::begin_capture(stream_);
    const std::uint64_t id = device_->driver().capture_info(stream_).id;
    EXPECT_EQ(graphs_->begin_capture(pool), SharingResult::kOk);
    const DevicePtr ptr =
        graphs_->allocate(pool, stream_, bytes(size), GraphMemory::InCapture::kYes).ptr;
    EXPECT_EQ(graphs_->addresses_of_capture(pool, id).bytes(), size);
    free(ptr);
    EXPECT_EQ(graphs_->end_capture(pool, GraphMemory::Outcome::kSucceeded), SharingResult::kOk);
    SimGpu::abandon_capture(stream_);
    device_->set_captures(0);
    EXPECT_EQ(graphs_->addresses_of_capture(pool, id).bytes(), size);
    return id;
  }
};

TEST_F(GivenTest, AGraphThatIsForgottenSharesNothing) {
  ASSERT_EQ(graphs_->join(1, kOther), SharingResult::kOk);
  const std::uint64_t first = capture(kGraphPool, kPageBytes);
  graphs_->note_foreign(kGraphPool, stream_, DevicePtr{512}, 512);  // the stream does not capture
  EXPECT_EQ(graphs_->sizes_of(kGraphPool, first, {}).private_bytes, kPageBytes);
  const std::uint64_t other = capture(kOther, 2 * kPageBytes);
  EXPECT_EQ(graphs_->sizes_of(kOther, other, {}).scratch_bytes, 2 * kPageBytes);
  EXPECT_EQ(graphs_->sizes_of(kOther, first, {}).scratch_bytes, 0U);
  graphs_->forget_capture(kGraphPool, first);
  graphs_->forget_capture(kGraphPool, first);
  EXPECT_EQ(graphs_->sizes_of(kGraphPool, first, {}).private_bytes, 0U);
  ASSERT_TRUE(device_->pools().release(kOther));
  graphs_->on_last_release(kOther);
  EXPECT_EQ(graphs_->addresses_of_capture(kOther, other).bytes(), 0U);
}

TEST_F(GivenTest, TheBytesAskedForCountAndNotThoseOfTheBlock) {
  ASSERT_EQ(graphs_->join(1, kOther), SharingResult::kOk);
  capture(kOther, kPageBytes + kPageBytes / 2);
}

TEST_F(GivenTest, MemoryOfAnotherAllocatorCounts) {
  const PoolId unknown{0, 99};
  SimGpu::begin_capture(stream_);
  const std::uint64_t id = device_->driver().capture_info(stream_).id;
  graphs_->note_foreign(unknown, stream_, DevicePtr{512}, 512);
  SimGpu::abandon_capture(stream_);
  EXPECT_EQ(graphs_->addresses_of_capture(unknown, id).bytes(), 512U);
  EXPECT_EQ(graphs_->shared_bytes(unknown), 0U);
  graphs_->on_last_release(unknown);
  EXPECT_EQ(graphs_->addresses_of_capture(unknown, id).bytes(), 0U);
}

}  // namespace graph_sizes_test
}  // namespace ferro
