// The simulated GPU: physical memory, page table, plain allocations.
#include "ferro/base/bytes.h"
#include "sim/memory/address_space.h"
#include "sim/memory/allocations.h"
#include "sim/memory/host_memory.h"
#include "sim/memory/physical_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

namespace ferro::sim {
namespace sim_memory_test {

constexpr std::size_t kPage = kGranularity;

TEST(SimPhysicalMemory, HandsOutLowestOffsetsUpToItsCapacity) {
  PhysicalMemory memory(4 * kPage, true);
  EXPECT_EQ(memory.allocate(kPage), 0U);
  EXPECT_EQ(memory.allocate(2 * kPage), kPage);
  EXPECT_EQ(memory.allocate(kPage), 3 * kPage);
  EXPECT_EQ(memory.allocate(kPage), std::nullopt);
  memory.free(0, kPage);
  memory.free(3 * kPage, kPage);
  EXPECT_EQ(memory.allocated(), 2 * kPage);
  // Two free pages that do not touch: the capacity decides, not the layout.
  EXPECT_EQ(memory.allocate(2 * kPage), 3 * kPage);
  EXPECT_EQ(memory.allocated(), 4 * kPage);
}

TEST(SimPhysicalMemory, ForgetsWhatWasFreed) {
  PhysicalMemory memory(2 * kPage, true);
  const std::size_t offset = *memory.allocate(kPage);
  memory.fill(offset, 0xabababab, 4, kPage);
  EXPECT_GE(memory.host_bytes(), kPage);
  memory.free(offset, kPage);
  EXPECT_EQ(memory.host_bytes(), 0U);
  const std::size_t again = *memory.allocate(kPage);
  std::uint32_t word = 1;
  memory.read(again + 4096, &word, sizeof(word));
  EXPECT_EQ(word, 0U);
}

TEST(SimPhysicalMemory, BigMovesOfUntouchedMemoryCostNothing) {
  PhysicalMemory memory(kGiB, true);
  const std::size_t from = *memory.allocate(256 * kMiB);
  const std::size_t to = *memory.allocate(256 * kMiB);
  memory.fill(from, 0, 1, 256 * kMiB);
  memory.copy(to, memory, from, 256 * kMiB);
  std::vector<std::byte> host(kMiB);
  memory.read(to, host.data(), host.size());
  EXPECT_EQ(memory.host_bytes(), 0U);
}

TEST(SimPhysicalMemory, ZeroFillKeepsTheNeighbours) {
  PhysicalMemory memory(kPage, true);
  const std::size_t offset = *memory.allocate(kPage);
  memory.fill(offset, 0x11, 1, kPage);
  memory.fill(offset + 100, 0, 1, 20000);
  std::byte edges[4];
  memory.read(offset + 99, &edges[0], 1);
  memory.read(offset + 100, &edges[1], 1);
  memory.read(offset + 20099, &edges[2], 1);
  memory.read(offset + 20100, &edges[3], 1);
  EXPECT_EQ(edges[0], std::byte{0x11});
  EXPECT_EQ(edges[1], std::byte{0});
  EXPECT_EQ(edges[2], std::byte{0});
  EXPECT_EQ(edges[3], std::byte{0x11});
}

// Compared with plain bytes: chunks lie anywhere in the file, so every operation is split at their
// borders.
TEST(SimPhysicalMemory, AgreesWithAModelAcrossChunks) {
  constexpr std::size_t kBytes = 6 * kMiB;
  PhysicalMemory memory(2 * kBytes, true);
  // This chunk takes the first place of the file, so that the place of no other chunk equals its
  // offset.
  const std::size_t other = *memory.allocate(kPage);
  memory.fill(other, 1, 1, 1);
  const std::size_t base = *memory.allocate(kBytes);
  std::vector<std::byte> model(kBytes);
  std::vector<std::byte> seen(kBytes);
  std::mt19937 random(5);
  for (int step = 0; step < 60; ++step) {
    const std::size_t bytes = (1 + random() % 300'000) * 8;
    const std::size_t at = random() % (kBytes - bytes);
    if (const std::size_t kind = random() % 3; kind == 0) {
      const std::size_t width = std::size_t{1} << random() % 4;
      const std::uint64_t value = random() % 4 == 0 ? 0 : random() * 0x100000001ULL;
      memory.fill(base + at, value, width, bytes);
      for (std::size_t i = 0; i < bytes; ++i) {
        model[at + i] = static_cast<std::byte>(value >> i % width * 8);
      }
    } else if (kind == 1) {
      std::generate_n(seen.begin(), bytes, [&random] { return std::byte(random() & 0xff); });
      memory.write(base + at, seen.data(), bytes);
      std::copy_n(seen.begin(), bytes, model.begin() + static_cast<std::ptrdiff_t>(at));
    } else if (const std::size_t from = random() % (kBytes - bytes);
               from + bytes <= at || at + bytes <= from) {
      memory.copy(base + at, memory, base + from, bytes);
      std::copy_n(model.begin() + static_cast<std::ptrdiff_t>(from), bytes,
                  model.begin() + static_cast<std::ptrdiff_t>(at));
    }
    memory.read(base, seen.data(), kBytes);
    ASSERT_TRUE(seen == model) << step;
  }
  memory.free(base, kBytes);
  EXPECT_LE(memory.host_bytes(), kPage);
}

// Copies from any offset to any other, so that pieces are split at the borders of chunks on both
// sides; some chunks of the source have no place in the file, and some were written to in part.
TEST(SimPhysicalMemory, CopiesOntoZerosExactlyWhatWasWritten) {
  constexpr std::size_t kBytes = 7 * kPage;
  PhysicalMemory source(4 * kBytes, true);
  const std::size_t other = *source.allocate(kPage);
  source.fill(other, 1, 1, 1);
  const std::size_t base = *source.allocate(kBytes);
  std::vector<std::byte> model(kBytes);
  std::mt19937 random(9);
  for (const std::size_t chunk : {0U, 2U, 3U, 6U}) {
    for (int i = 0; i < 5; ++i) {
      const std::size_t at = chunk * kPage + random() % (kPage - 9000);
      const std::size_t bytes = 1 + random() % 9000;
      source.fill(base + at, 0x5a, 1, bytes);
      std::fill_n(model.begin() + static_cast<std::ptrdiff_t>(at), bytes, std::byte{0x5a});
    }
  }
  for (int round = 0; round < 8; ++round) {
    const std::size_t bytes = 1 + random() % (kBytes - 1);
    const std::size_t from = random() % (kBytes - bytes);
    const std::size_t to = random() % kPage;
    PhysicalMemory target(4 * kBytes, true);
    const std::size_t there = *target.allocate(kBytes + kPage);
    target.copy_onto_zeros(there + to, source, base + from, bytes);
    std::vector<std::byte> expected(kBytes + kPage);
    std::copy_n(model.begin() + static_cast<std::ptrdiff_t>(from), bytes,
                expected.begin() + static_cast<std::ptrdiff_t>(to));
    std::vector<std::byte> seen(expected.size());
    target.read(there, seen.data(), seen.size());
    ASSERT_TRUE(seen == expected) << from << " + " << bytes << " to " << to;
  }
}

TEST(SimPhysicalMemory, CopyingUnwrittenMemoryOntoZerosTakesNoHostMemory) {
  PhysicalMemory source(kGiB, true);
  PhysicalMemory target(kGiB, true);
  const std::size_t from = *source.allocate(256 * kMiB);
  const std::size_t to = *target.allocate(256 * kMiB);
  target.copy_onto_zeros(to, source, from, 256 * kMiB);
  EXPECT_EQ(target.host_bytes(), 0U);
  source.fill(from + 100 * kMiB, 7, 1, 1);
  source.fill(from + 101 * kMiB, 8, 1, 1);
  ASSERT_LT(source.host_bytes(), 2 * kMiB);
  target.copy_onto_zeros(to, source, from, 256 * kMiB);
  EXPECT_EQ(target.host_bytes(), source.host_bytes());
  std::byte seen{};
  target.read(to + 101 * kMiB, &seen, 1);
  EXPECT_EQ(seen, std::byte{8});
}

// A file that other processes write to cannot tell which of its pages were written.
TEST(SimPhysicalMemory, CopiesOntoZerosOfAFileAndFromOne) {
  const int file = memfd_create("copies", MFD_CLOEXEC);
  ASSERT_GE(file, 0);
  ASSERT_EQ(ftruncate(file, 2 * kPage), 0);
  const auto shared = PhysicalMemory::shared(file, 2 * kPage, true);
  PhysicalMemory own(4 * kPage, true);
  const std::size_t base = *own.allocate(2 * kPage);
  own.fill(base + kPage - 3, 0x31, 1, 6);
  shared->copy_onto_zeros(0, own, base, 2 * kPage);
  PhysicalMemory back(4 * kPage, true);
  const std::size_t there = *back.allocate(2 * kPage);
  back.copy_onto_zeros(there, *shared, 0, 2 * kPage);
  for (const PhysicalMemory* memory : {static_cast<const PhysicalMemory*>(shared.get()),
                                       static_cast<const PhysicalMemory*>(&back)}) {
    std::vector<std::byte> seen(2 * kPage);
    memory->read(memory == &back ? there : 0, seen.data(), seen.size());
    EXPECT_EQ(std::count(seen.begin(), seen.end(), std::byte{0x31}), 6);
    EXPECT_EQ(seen[kPage - 3], std::byte{0x31});
    EXPECT_EQ(seen[kPage + 2], std::byte{0x31});
  }
  close(file);
}

TEST(SimPhysicalMemory, UnbackedMemoryCountsButHoldsNothing) {
  PhysicalMemory memory(kGiB, false);
  const std::size_t offset = *memory.allocate(kGiB);
  memory.fill(offset, 0xff, 1, kGiB);
  std::uint32_t word = 7;
  memory.read(offset, &word, sizeof(word));
  EXPECT_EQ(word, 0U);
  EXPECT_EQ(memory.allocate(kPage), std::nullopt);
}

class SimAddressSpace : public ::testing::Test {
 protected:
  ~SimAddressSpace() override { space_.clear(); }
  CUmemGenericAllocationHandle create(std::size_t bytes = kPage) {
    return space_.create(memory_, 0, bytes)->id;
  }
  CUresult unmap(CUdeviceptr at, std::size_t bytes) {
    std::size_t handles = 0;
    return space_.unmap(at, bytes, &handles);
  }
  CUresult give_access(CUdeviceptr at, std::size_t bytes, int device = 0) {
    std::size_t handles = 0;
    return space_.set_access(at, bytes, device, Access::kReadWrite, &handles);
  }
  bool can_use(CUdeviceptr at, std::size_t bytes, int device = 0) {
    std::vector<Segment> segments;
    return space_.resolve(at, bytes, {device}, true, segments);
  }

  PhysicalMemory memory_{64 * kMiB, true};
  AddressSpace space_;
};

TEST_F(SimAddressSpace, TheSameCallsGiveTheSameAddresses) {
  const auto addresses = [] {
    AddressSpace space;
    std::vector<CUdeviceptr> taken;
    for (const std::size_t pages : {3U, 1U, 2U}) {
      taken.push_back(*space.reserve(pages * kPage, 0));
    }
    EXPECT_EQ(space.unreserve(taken[0], 3 * kPage), CUDA_SUCCESS);
    // The lowest gap that is large enough, then the rest of it, also where alignment skips some.
    taken.push_back(*space.reserve(4 * kPage, 0));
    taken.push_back(*space.reserve(kPage, 2 * kPage));
    taken.push_back(*space.reserve(kPage, 64 * kPage));
    // A hint that is in use is ignored.
    taken.push_back(*space.reserve(2 * kPage, 0, taken[1]));
    return taken;
  };
  const std::vector<CUdeviceptr> first = addresses();
  std::vector<CUdeviceptr> offsets;
  for (const CUdeviceptr at : first) {
    offsets.push_back((at - first[0]) / kPage);
  }
  EXPECT_EQ(offsets, (std::vector<CUdeviceptr>{0, 3, 4, 6, 0, 64, 1}));
  const auto held = space_.reserve(kPage, 0, first[0]);
  EXPECT_EQ(held, first[0]);
  EXPECT_NE(addresses()[0], first[0]);
  EXPECT_EQ(space_.unreserve(*held, kPage), CUDA_SUCCESS);
  EXPECT_EQ(addresses(), first);
}

TEST_F(SimAddressSpace, PhysicalMemoryLivesWithOwnersAndMappings) {
  const CUdeviceptr base = *space_.reserve(2 * kPage, 0);
  const auto handle = create();
  EXPECT_EQ(space_.map(base, kPage, 0, handle), CUDA_SUCCESS);
  EXPECT_EQ(space_.map(base + kPage, kPage, 0, handle), CUDA_SUCCESS);
  EXPECT_EQ(space_.release(handle), CUDA_SUCCESS);
  EXPECT_EQ(space_.release(handle), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(memory_.allocated(), kPage);
  EXPECT_EQ(unmap(base, kPage), CUDA_SUCCESS);
  EXPECT_EQ(memory_.allocated(), kPage);
  EXPECT_EQ(unmap(base + kPage, kPage), CUDA_SUCCESS);
  EXPECT_EQ(memory_.allocated(), 0U);
}

TEST_F(SimAddressSpace, RetainBringsBackAHandle) {
  const CUdeviceptr base = *space_.reserve(kPage, 0);
  const auto handle = create();
  space_.map(base, kPage, 0, handle);
  space_.release(handle);
  EXPECT_EQ(space_.find_pages(handle), nullptr);
  EXPECT_EQ(space_.retain(base + 100)->id, handle);
  unmap(base, kPage);
  EXPECT_EQ(memory_.allocated(), kPage);
  EXPECT_EQ(space_.release(handle), CUDA_SUCCESS);
  EXPECT_EQ(memory_.allocated(), 0U);
}

TEST_F(SimAddressSpace, RefusalsChangeNothing) {
  const CUdeviceptr base = *space_.reserve(4 * kPage, 0);
  const auto big = create(2 * kPage);
  const auto small = create();
  EXPECT_EQ(space_.map(base, kPage, 0, big), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(space_.map(base, kPage, kPage, big), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(space_.map(base, 3 * kPage, 0, big), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(space_.map(base + 3 * kPage, 2 * kPage, 0, big), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(space_.map(base + 4096, kPage, 0, small), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(space_.map(base + kPage, 2 * kPage, 0, big), CUDA_SUCCESS);
  EXPECT_EQ(space_.map(base + 2 * kPage, kPage, 0, small), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(unmap(base + kPage, kPage), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(unmap(base + 2 * kPage, kPage), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(give_access(base + kPage, kPage), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(space_.unreserve(base, 4 * kPage), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(space_.mappings().size(), 1U);
  EXPECT_EQ(unmap(base, 4 * kPage), CUDA_SUCCESS);
  EXPECT_EQ(space_.unreserve(base, 4 * kPage), CUDA_SUCCESS);
}

TEST_F(SimAddressSpace, AccessIsPerDeviceAndOwnersReachTheirPages) {
  const CUdeviceptr base = *space_.reserve(kPage, 0);
  space_.map(base, kPage, 0, create());
  EXPECT_FALSE(can_use(base, 8));
  EXPECT_EQ(give_access(base, kPage, 1), CUDA_SUCCESS);
  EXPECT_TRUE(can_use(base, 8, 1));
  EXPECT_FALSE(can_use(base, 8, 0));
  EXPECT_EQ(give_access(base, kPage, 0), CUDA_SUCCESS);
  EXPECT_TRUE(can_use(base, kPage, 0));
  EXPECT_FALSE(can_use(base, kPage, 2));
  // Copies between devices work through the owner of the pages.
  std::vector<Segment> segments;
  EXPECT_TRUE(space_.resolve(base, kPage, {2, true}, true, segments));
  EXPECT_FALSE(can_use(base, kPage + 1, 0));
}

TEST_F(SimAddressSpace, ResolvesAcrossMappings) {
  const CUdeviceptr base = *space_.reserve(2 * kPage, 0);
  const auto first = create();
  const auto second = create();
  // In reverse, so that neighbours in addresses are not neighbours in memory.
  space_.map(base, kPage, 0, second);
  space_.map(base + kPage, kPage, 0, first);
  give_access(base, 2 * kPage);
  std::vector<Segment> segments;
  ASSERT_TRUE(space_.resolve(base + kPage - 16, 32, {0}, false, segments));
  ASSERT_EQ(segments.size(), 2U);
  EXPECT_EQ(segments[0].offset, 2 * kPage - 16);
  EXPECT_EQ(segments[0].bytes, 16U);
  EXPECT_EQ(segments[1].offset, 0U);
  EXPECT_EQ(segments[1].bytes, 16U);
}

TEST(SimAllocations, RandomUseNeverOverlapsAndGivesEverythingBack) {
  PhysicalMemory memory(128 * kMiB, true);
  AddressSpace space;
  Allocations allocations(space, memory, 0);
  std::mt19937 random(9);
  std::map<CUdeviceptr, std::size_t> live;
  for (int step = 0; step < 3000; ++step) {
    if (random() % 5 < 3) {
      const std::size_t bytes =
          random() % 10 == 0 ? 1 + random() % (6 * kMiB) : 1 + random() % 9000;
      if (const auto at = allocations.allocate(bytes)) {
        const auto next = live.lower_bound(*at);
        ASSERT_TRUE(next == live.end() || *at + bytes <= next->first);
        ASSERT_TRUE(next == live.begin() ||
                    std::prev(next)->first + std::prev(next)->second <= *at);
        ASSERT_EQ(allocations.find(*at + bytes - 1)->base, *at);
        live.emplace(*at, bytes);
      } else {
        ASSERT_GT(memory.allocated() + align_up(bytes, kPage), memory.capacity());
      }
    } else if (!live.empty()) {
      auto victim = live.lower_bound(random());
      victim = victim == live.end() ? live.begin() : victim;
      ASSERT_TRUE(allocations.free(victim->first));
      ASSERT_FALSE(allocations.free(victim->first));
      live.erase(victim);
    }
    ASSERT_EQ(allocations.count(), live.size());
  }
  for (const auto& [at, bytes] : live) {
    ASSERT_TRUE(allocations.free(at));
  }
  EXPECT_EQ(memory.allocated(), 0U);
  EXPECT_TRUE(space.reservations().empty());
}

TEST(SimHostMemory, KnowsItsRanges) {
  HostMemory host;
  auto* memory = static_cast<char*>(host.allocate(100, HostMemory::Kind::kAllocated, 3, 0));
  EXPECT_EQ(host.find(memory + 99)->flags, 3U);
  EXPECT_FALSE(host.find(memory + 100).has_value());
  char other[64];
  EXPECT_TRUE(host.register_range(other, sizeof(other), 0, 0));
  EXPECT_FALSE(host.register_range(other + 32, 64, 0, 0));
  EXPECT_FALSE(host.free(other, HostMemory::Kind::kAllocated));
  EXPECT_TRUE(host.unregister_range(other));
  EXPECT_TRUE(host.free(memory, HostMemory::Kind::kAllocated));
  EXPECT_EQ(host.count(), 0U);
}

}  // namespace sim_memory_test
}  // namespace ferro::sim
