// The simulated GPU: addresses, which host and devices share, and their limit.
#include "ferro/base/bytes.h"
#include "sim/memory/address_space.h"
#include "sim/memory/free_ranges.h"
#include "sim/memory/plain_addresses.h"
#include "support/sanitizers.h"
#include "support/sim_gpu.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <sys/mman.h>
#include <utility>
#include <vector>

namespace ferro::sim {
namespace sim_addresses_test {

using testing::SimGpu;

constexpr std::size_t kTiB = 1024 * kGiB;

class HostRange {
 public:
  explicit HostRange(std::size_t bytes)
      : bytes_(bytes),
        at_(mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~HostRange() {
    if (exists()) {
      munmap(at_, bytes_);
    }
  }
  HostRange(const HostRange&) = delete;
  HostRange& operator=(const HostRange&) = delete;
  bool exists() const { return at_ != MAP_FAILED; }

 private:
  const std::size_t bytes_;
  void* const at_;
};

std::vector<CUdeviceptr> reserve_all(AddressSpace& space, std::size_t bytes) {
  std::vector<CUdeviceptr> taken;
  while (const auto base = space.reserve(bytes, 0)) {
    taken.push_back(*base);
  }
  return taken;
}

std::size_t map_entries() {
  std::ifstream maps("/proc/self/maps");
  return static_cast<std::size_t>(
      std::count(std::istreambuf_iterator<char>(maps), std::istreambuf_iterator<char>(), '\n'));
}

std::size_t status_bytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field + ":")) {
      return std::stoul(line.substr(field.size() + 1)) * kKiB;
    }
  }
  FERRO_CHECK(false, field);
}
std::size_t page_table_bytes() { return status_bytes("VmPTE"); }
std::size_t mapped_bytes() { return status_bytes("VmSize"); }

TEST(SimFreeRanges, BestFitThenLowest) {
  FreeRanges ranges;
  ranges.add(100, 50);
  ranges.add(200, 20);
  ranges.add(300, 20);
  EXPECT_EQ(ranges.take(20), 200U);
  EXPECT_EQ(ranges.take(10), 300U);
  EXPECT_EQ(ranges.take(51), std::nullopt);
  ranges.add(200, 20);
  // 310 to 320 is smaller, but has no multiple of 16 with room for ten bytes.
  EXPECT_EQ(ranges.take(10, 16), 208U);
  EXPECT_EQ(ranges.count(), 4U);
}

TEST(SimFreeRanges, FirstAndLast) {
  FreeRanges ranges;
  ranges.add(100, 10);
  ranges.add(200, 50);
  ranges.add(300, 20);
  ranges.add(400, 19);
  EXPECT_EQ(ranges.take_first(20), 200U);
  EXPECT_EQ(ranges.take_first(10), 100U);
  EXPECT_EQ(ranges.take_first(31), std::nullopt);
  // 400 to 416 is the highest range with a multiple of 16 that has room, 304 to 320 the next.
  EXPECT_EQ(ranges.take_last(16, 16), 400U);
  EXPECT_EQ(ranges.take_last(16, 16), 304U);
  EXPECT_EQ(ranges.take_last(31, 1), std::nullopt);
}

TEST(SimFreeRanges, AgreesWithAModelByTheByte) {
  constexpr std::size_t kBytes = 400;
  std::vector<bool> free(kBytes, true);
  FreeRanges ranges;
  ranges.add(0, kBytes);
  std::mt19937 random(4);
  for (int step = 0; step < 20000; ++step) {
    const std::size_t bytes = 1 + random() % 24;
    if (const std::size_t kind = random() % 3; kind == 0) {
      const std::size_t alignment = std::size_t{1} << random() % 4;
      std::size_t fits = 0;
      for (std::size_t at = 0; at + bytes <= kBytes; at += alignment) {
        const auto begin = free.begin() + static_cast<std::ptrdiff_t>(at);
        fits += std::count(begin, begin + static_cast<std::ptrdiff_t>(bytes), false) == 0 ? 1 : 0;
      }
      const auto taken = ranges.take(bytes, alignment);
      ASSERT_EQ(taken.has_value(), fits > 0) << step;
      for (std::size_t i = 0; taken && i < bytes; ++i) {
        ASSERT_TRUE(free[*taken + i] && *taken % alignment == 0) << step;
        free[*taken + i] = false;
      }
    } else {
      const std::size_t begin = random() % (kBytes - bytes);
      const auto first = free.begin() + static_cast<std::ptrdiff_t>(begin);
      const auto last = first + static_cast<std::ptrdiff_t>(bytes);
      if (kind == 1) {
        ranges.remove(begin, bytes);
        std::fill(first, last, false);
      } else if (std::count(first, last, true) == 0) {
        ranges.add(begin, bytes);
        std::fill(first, last, true);
      }
    }
    std::size_t runs = 0;
    for (std::size_t i = 0; i < kBytes; ++i) {
      runs += free[i] && (i == 0 || !free[i - 1]) ? 1 : 0;
    }
    ASSERT_EQ(ranges.count(), runs) << step;
  }
}

TEST(SimPlainAddresses, NoTakenByteIsTakenAgain) {
  constexpr std::size_t kAll = 64 * kGiB;
  FreeRanges gaps;
  gaps.add(0, kAll);
  PlainAddresses addresses(gaps);
  std::map<std::uint64_t, std::pair<std::size_t, int>> taken;  // bytes and device, by address
  std::mt19937 random(5);
  for (int step = 0; step < 20000; ++step) {
    if (!taken.empty() && random() % 8 < (step % 2000 < 1000 ? 3U : 6U)) {
      const auto put =
          std::next(taken.begin(), static_cast<std::ptrdiff_t>(random() % taken.size()));
      ASSERT_TRUE(addresses.put(put->first, put->second.first)) << step;
      taken.erase(put);
      continue;
    }
    // Some lie in two ranges of 32 MiB and more, which follow each other.
    const std::size_t bytes = (1 + random() % 60) * 2 * kMiB;
    const int device = static_cast<int>(random() % 2);
    const auto at = addresses.take(device, bytes);
    ASSERT_TRUE(at) << step;
    const auto next = taken.lower_bound(*at);
    ASSERT_TRUE(next == taken.end() || *at + bytes <= next->first) << step;
    ASSERT_TRUE(next == taken.begin() ||
                std::prev(next)->first + std::prev(next)->second.first <= *at)
        << step;
    taken.emplace(*at, std::pair(bytes, device));
  }
  for (const auto& [at, bytes] : taken) {
    ASSERT_TRUE(addresses.put(at, bytes.first));
  }
  // All but the addresses of the two contexts.
  std::size_t left = 0;
  while (const auto at = gaps.take_last(32 * kMiB, 1)) {
    left += 32 * kMiB;
  }
  EXPECT_EQ(left, kAll - 2 * 512 * kMiB);
}

TEST(SimAddresses, EndWhereThoseOfTheProcessDo) {
  if (kThreadSanitizer) {
    GTEST_SKIP() << "TSan keeps most addresses for itself";
  }
  AddressSpace space;
  constexpr std::size_t kRange = 159 * kGiB;
  const std::vector<CUdeviceptr> taken = reserve_all(space, kRange);
  EXPECT_EQ(space.reserved_bytes(), taken.size() * kRange);
  EXPECT_LE(taken.size(), 128 * 1024 * kGiB / kRange);
  EXPECT_GE(taken.size(), kAddressSanitizer ? 600U : 810U);
  // The host cannot get addresses of the devices, and vice versa.
  EXPECT_FALSE(HostRange(kRange).exists());
  EXPECT_EQ(space.unreserve(taken[5], kRange), CUDA_SUCCESS);
  {
    const HostRange host(kRange);
    EXPECT_TRUE(host.exists());
    EXPECT_EQ(space.reserve(kRange, 0), std::nullopt);
  }
  EXPECT_EQ(space.reserve(kRange, 0), taken[5]);
}

// The machine takes no host memory beyond the GiB that was written, however much its cards hold.
TEST(SimAddresses, UnwrittenMemoryTakesNoHostMemory) {
  if (kThreadSanitizer || kAddressSanitizer) {
    GTEST_SKIP() << "sanitizers map and unmap on their own";
  }
  const std::size_t before = mapped_bytes();
  const SimGpu gpu(80 * 1024, "devices=8,mode=eager");
  CUdeviceptr at = 0;
  SimGpu::expect(SimGpu::api().mem_alloc(&at, 3 * kMiB));
  SimGpu::fill(StreamId{}, DevicePtr{at}, 7, 3 * kMiB);
  EXPECT_EQ(SimGpu::peek(DevicePtr{at + 3 * kMiB - 1}), 7);
  EXPECT_LE(mapped_bytes() - before, kGiB + 256 * kMiB);
}

TEST(SimAddresses, AreSharedWithTheHost) {
  if (kThreadSanitizer) {
    GTEST_SKIP() << "TSan keeps most addresses for itself";
  }
  AddressSpace space;
  std::vector<CUdeviceptr> taken;
  {
    const HostRange host(16 * kTiB);
    ASSERT_TRUE(host.exists());
    taken = reserve_all(space, kTiB);
    EXPECT_GE(taken.size(), kAddressSanitizer ? 70U : 105U);
  }
  const std::size_t more = reserve_all(space, kTiB).size();
  EXPECT_GE(more, 15U);
  EXPECT_LE(more, 16U);
}

TEST(SimAddresses, ThirtyThousandReservationsAndAHundredThousandMappings) {
  // TSan leaves few addresses. The numbers include a sanitizer's own entries and tables.
  constexpr std::size_t kCount = kThreadSanitizer ? 1'000 : 30'000;
  constexpr std::size_t kBytes = 64 * kMiB;
  constexpr bool kCountsAreOurs = !kThreadSanitizer && !kAddressSanitizer;
  const std::size_t entries = map_entries();
  const std::size_t tables = page_table_bytes();
  AddressSpace space;
  std::vector<CUdeviceptr> taken;
  for (std::size_t i = 0; i < kCount; ++i) {
    taken.push_back(space.reserve(kBytes, 0).value());
  }
  EXPECT_EQ(space.reserved_bytes(), kCount * kBytes);
  // One entry for all of them. The vectors above may cost a few, and their own page tables.
  if (kCountsAreOurs) {
    EXPECT_LE(map_entries(), entries + 8);
    EXPECT_LE(page_table_bytes(), tables + kMiB);
  }

  PhysicalMemory memory(4 * kMiB, false);
  const auto handle = space.create(memory, 0, kGranularity)->id;
  constexpr std::size_t kEach = 4;
  for (std::size_t i = 0; i < kCount; ++i) {
    for (std::size_t page = 0; page < kEach; ++page) {
      ASSERT_EQ(space.map(taken[i] + page * kGranularity, kGranularity, 0, handle), CUDA_SUCCESS);
    }
  }
  EXPECT_EQ(space.mappings().size(), kCount * kEach);
  std::size_t handles = 0;
  for (std::size_t i = 0; i < kCount; i += 2) {
    CUdeviceptr base = 0;
    ASSERT_NE(space.find_mapping(taken[i] + 3 * kGranularity + 7, &base), nullptr);
    ASSERT_EQ(base, taken[i] + 3 * kGranularity);
    ASSERT_EQ(space.unreserve(taken[i], kBytes), CUDA_ERROR_INVALID_VALUE);
    ASSERT_EQ(space.unmap(taken[i], kBytes, &handles), CUDA_SUCCESS);
    ASSERT_EQ(handles, kEach);
    ASSERT_EQ(space.unreserve(taken[i], kBytes), CUDA_SUCCESS);
    ASSERT_FALSE(space.is_reserved(taken[i]));
  }
  EXPECT_EQ(space.reserved_bytes(), kCount / 2 * kBytes);
  // The holes are reused first, from the lowest on.
  for (std::size_t i = 0; i < kCount; i += 2) {
    ASSERT_EQ(space.reserve(kBytes, 0), taken[i]);
  }
  if (kCountsAreOurs) {
    EXPECT_LE(map_entries(), entries + 8);
  }
  space.clear();
}

// The order that PyTorch's own allocator met on an H100: first upwards in the addresses of the
// context, then ranges of whole 32 MiB, each below the last, whose rests are used from below.
TEST(SimPlainAddresses, GoDownInRangesAndUpWithinThem) {
  FreeRanges gaps;
  constexpr std::size_t kEnd = 8 * kGiB;
  gaps.add(0, kEnd);
  PlainAddresses addresses(gaps);
  const auto take = [&](std::size_t mib, int device = 0) {
    const auto at = addresses.take(device, mib * kMiB);
    return at ? static_cast<std::int64_t>(*at / kMiB) : -1;
  };
  const std::int64_t context = kEnd / kMiB - 512;
  EXPECT_EQ(take(2), context);
  EXPECT_EQ(take(400), context + 2);
  // 10 MiB are left below the code of the libraries, and 20 above.
  EXPECT_EQ(take(20), context + 492);
  EXPECT_EQ(take(80), context - 96);
  EXPECT_EQ(take(128), context - 224);
  EXPECT_EQ(take(26), context - 256);
  EXPECT_EQ(take(6), context - 250 + 20);
  EXPECT_EQ(take(14), context - 16);
  // Other devices have addresses of their own.
  EXPECT_EQ(take(2, 1), context - 256 - 512);
  // A range that is free goes back, and the highest that has room is taken next.
  EXPECT_TRUE(addresses.put(static_cast<std::uint64_t>(context - 224) * kMiB, 128 * kMiB));
  EXPECT_EQ(take(100), context - 224);
  EXPECT_FALSE(addresses.put(0, 2 * kMiB));
  EXPECT_EQ(take(9000), -1);
}

// Reservations and cuMemAlloc's memory of two devices.
TEST(SimAddresses, LimitCountsAllDevices) {
  const SimGpu gpu(64, "devices=2,address_space=20MiB");
  const CudaApi& api = SimGpu::api();
  const auto reserve = [&api](std::size_t bytes, CUdeviceptr* at) {
    return api.mem_address_reserve(at, bytes, 0, 0, 0);
  };
  CUdeviceptr first = 0;
  SimGpu::expect(reserve(10 * kMiB, &first));
  CUcontext second_device = nullptr;
  SimGpu::expect(api.primary_ctx_retain(&second_device, 1));
  SimGpu::expect(api.ctx_set_current(second_device));
  CUdeviceptr second = 0;
  SimGpu::expect(reserve(6 * kMiB, &second));
  CUdeviceptr plain = 0;
  SimGpu::expect(api.mem_alloc(&plain, 3 * kMiB));
  EXPECT_EQ(SimGpu::reserved_bytes(), 20 * kMiB);

  CUdeviceptr refused = 0;
  EXPECT_EQ(reserve(2 * kMiB, &refused), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(api.mem_alloc(&refused, 3 * kMiB), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(refused, 0U);
  // The refused allocation kept no memory.
  EXPECT_EQ(ferro_sim_allocated_bytes(1), 4 * kMiB);

  SimGpu::expect(api.mem_address_free(second, 6 * kMiB));
  EXPECT_EQ(SimGpu::reserved_bytes(), 14 * kMiB);
  EXPECT_EQ(reserve(8 * kMiB, &refused), CUDA_ERROR_OUT_OF_MEMORY);
  SimGpu::expect(reserve(6 * kMiB, &second));
  SimGpu::expect(api.mem_free(plain));
  EXPECT_EQ(SimGpu::reserved_bytes(), 16 * kMiB);
  SimGpu::expect(reserve(4 * kMiB, &plain));
}

}  // namespace sim_addresses_test
}  // namespace ferro::sim
