// Any number of streams and pools: reserved addresses are proportional to mapped memory, and are
// released.
#include "support/device_fixture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace ferro {
namespace addresses_test {

using testing::bytes;
using testing::FaultyApi;
using testing::kPageBytes;
using testing::SimGpu;

class AddressesTest : public testing::DeviceFixture {
 protected:
  AddressesTest() : DeviceFixture(64) {}

  // The first span of a stream whose memory is not a graph's.
  std::size_t first_span() const { return align_up(device_->total_memory(), kSpanAlignment); }
};

TEST_F(AddressesTest, TwoThousandStreamsTakeOneSpanEach) {
  constexpr std::size_t kStreams = 2000;
  for (std::size_t i = 0; i < kStreams; ++i) {
    const StreamId stream = SimGpu::make_stream();
    const AllocateResult result = device_->allocate(kDefaultPool, stream, bytes(512));
    ASSERT_NE(result.ptr, kNull) << i;
    free(result.ptr);
  }
  EXPECT_LE(SimGpu::reserved_bytes(), kStreams * first_span());
  EXPECT_LE(pages().held, 64U);
  SimGpu::finish_all();
  device_->empty_cache();
  EXPECT_EQ(SimGpu::reserved_bytes(), 0U) << "none of them has memory";
  device_->report().check_invariants();
}

TEST_F(AddressesTest, ThousandsOfPoolsLiveSideBySideAndLeaveNothing) {
  constexpr std::uint64_t kPools = 3000;
  for (std::uint64_t i = 1; i <= kPools; ++i) {
    const PoolId pool{0, 100 + i};
    device_->pools().hold(pool);
    const AllocateResult result = device_->allocate(pool, stream_, bytes(512));
    ASSERT_NE(result.ptr, kNull) << i;
    free(result.ptr);
    if (i % 32 == 0) {  // the device has 64 pages
      for (std::uint64_t gone = i - 31; gone <= i; ++gone) {
        EXPECT_TRUE(device_->pools().release({0, 100 + gone}));
        device_->empty_pool({0, 100 + gone});
      }
    }
  }
  EXPECT_LE(SimGpu::reserved_bytes(), 32 * first_span());
  device_->report().check_invariants();
}

TEST_F(AddressesTest, AnExactAddressMayHaveBeenReleasedWithTheCache) {
  const DevicePtr a = allocate(6 * kPageBytes);
  free(a);
  device_->empty_cache();
  ASSERT_EQ(SimGpu::reserved_bytes(), 0U);
  const auto place = [this](DevicePtr ptr, std::size_t size) {
    const AllocateResult result = device_->allocate_at(kDefaultPool, stream_, ptr, bytes(size));
    EXPECT_EQ(result.failure, nullptr);
    device_->report().check_invariants();
    return result.ptr;
  };
  const DevicePtr middle = a + 2 * kPageBytes + kBlockAlignment;
  EXPECT_EQ(place(middle, 3 * kPageBytes), middle);
  EXPECT_EQ(SimGpu::reserved_bytes(), kSpanAlignment);
  EXPECT_EQ(pages().held, 4U) << "the pages that it touches";
  EXPECT_EQ(place(a, kPageBytes), a);
  free(middle);
  free(a);
}

TEST_F(AddressesTest, AnUnavailableExactAddressLeavesNothing) {
  const DevicePtr a = allocate(kPageBytes);
  free(a);
  device_->empty_cache();
  const auto place = [this](const PoolId& pool, DevicePtr ptr, std::size_t size) {
    const AllocateResult result = device_->allocate_at(pool, stream_, ptr, bytes(size));
    device_->report().check_invariants();
    return result.ptr;
  };
  EXPECT_EQ(place(kGraphPool, a, 512), kNull) << "an unknown pool";
  EXPECT_EQ(place(kDefaultPool, kNull, 512), kNull);
  EXPECT_EQ(place(kDefaultPool, DevicePtr{~std::uint64_t{511}}, 512), kNull);
  EXPECT_EQ(place(kDefaultPool, a, 65 * kPageBytes), kNull) << "more than the device has";
  FaultyApi::fail_only("cuMemCreate", 1, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(place(kDefaultPool, a, 512), kNull);
  EXPECT_EQ(SimGpu::reserved_bytes(), 0U);
  {
    // Another device memory has the addresses.
    AddressIndex addresses;
    DeviceMemory other(FaultyApi::table(), 0, addresses, {}, nullptr);
    const AllocateResult first = other.allocate(kDefaultPool, stream_, bytes(512));
    ASSERT_EQ(first.ptr, a) << "the first addresses that are free";
    EXPECT_EQ(place(kDefaultPool, a + kPageBytes, 512), kNull);
    EXPECT_EQ(SimGpu::reserved_bytes(), first_span());
    Span& span = *addresses.find(first.ptr);
    EXPECT_EQ(span.heap()->free(span, first.ptr).error, FreeError::kNone);
  }
}

// In a private pool too, as long as nothing was captured into it.
TEST_F(AddressesTest, BlocksOfAStreamGetTheirFormerAddressesInAnyOrderOfFrees) {
  device_->pools().hold(kGraphPool);
  for (const auto& [pool, unit] :
       {std::pair{kDefaultPool, kPageBytes}, std::pair{kGraphPool, kPageBytes},
        std::pair{kDefaultPool, kMiB / 4}, std::pair{kGraphPool, kMiB / 4}}) {
    const std::size_t reserved = SimGpu::reserved_bytes();
    std::vector<DevicePtr> first;
    for (int round = 0; round < 3; ++round) {
      std::vector<DevicePtr> blocks;
      for (std::size_t i = 0; i < 24; ++i) {
        blocks.push_back(allocate((1 + i % 3) * unit, stream_, pool));
      }
      EXPECT_EQ(SimGpu::reserved_bytes(), reserved + first_span());
      if (round == 0) {
        first = blocks;
      }
      EXPECT_EQ(blocks, first) << "round " << round;
      std::rotate(blocks.begin(), blocks.begin() + 7 * round, blocks.end());
      for (const DevicePtr block : blocks) {
        free(block);
      }
    }
    device_->empty_cache();
  }
  device_->pools().release(kGraphPool);
  device_->empty_cache();
}

TEST_F(AddressesTest, APoolOfGraphsHasShortSpans) {
  device_->pools().hold(kGraphPool);
  ASSERT_EQ(graphs_->begin_capture(kGraphPool), SharingResult::kOk);
  free(allocate(kPageBytes, stream_, kGraphPool));
  EXPECT_EQ(SimGpu::reserved_bytes(), kSpanAlignment);
  ASSERT_EQ(graphs_->end_capture(kGraphPool, GraphMemory::Outcome::kSucceeded), SharingResult::kOk);
  device_->pools().release(kGraphPool);
  graphs_->on_last_release(kGraphPool);
  device_->empty_cache();
}

TEST_F(AddressesTest, AnEmptySpanIsReleasedWhenAnotherOneExists) {
  const DevicePtr a = allocate(kPageBytes);
  const DevicePtr b = a + 2 * first_span();
  ASSERT_EQ(device_->allocate_at(kDefaultPool, stream_, b, bytes(kPageBytes)).ptr, b);
  ASSERT_NE(addresses_.find(a), addresses_.find(b));
  ASSERT_EQ(SimGpu::reserved_bytes(), first_span() + kSpanAlignment);
  free(b);
  SimGpu::finish_all();
  release_pages_of(a, ~std::size_t{0});
  EXPECT_EQ(SimGpu::reserved_bytes(), first_span());
}

// A device whose driver has no addresses until some are released.
class ShortOfAddressesTest : public testing::DeviceFixture {
 protected:
  // With as much memory as the shortest span, so that an empty first span may stay.
  ShortOfAddressesTest() : DeviceFixture(kSpanAlignment / kPageBytes) {
    api_.mem_address_reserve = reserve;
    api_.mem_address_free = free_range;
    short_ = false;
  }
  Span& span_of(DevicePtr ptr) { return *own_addresses_.find(ptr); }
  void free_own(DevicePtr ptr) {
    EXPECT_EQ(span_of(ptr).heap()->free(span_of(ptr), ptr).error, FreeError::kNone);
  }

  static bool short_;
  CudaApi api_ = FaultyApi::table();
  AddressIndex own_addresses_;
  DeviceMemory own_{api_, 0, own_addresses_, {}, nullptr};

 private:
  static CUresult CUDAAPI reserve(CUdeviceptr* out, std::size_t bytes, std::size_t alignment,
                                  CUdeviceptr at, unsigned long long flags) {
    return short_ ? CUDA_ERROR_OUT_OF_MEMORY
                  : SimGpu::api().mem_address_reserve(out, bytes, alignment, at, flags);
  }
  static CUresult CUDAAPI free_range(CUdeviceptr at, std::size_t bytes) {
    short_ = false;
    return SimGpu::api().mem_address_free(at, bytes);
  }
};

bool ShortOfAddressesTest::short_ = false;

TEST_F(ShortOfAddressesTest, EmptySpansAreReleasedForARequest) {
  const DevicePtr a = own_.allocate(kDefaultPool, side_, bytes(512)).ptr;
  Heap& arena = *span_of(a).heap();
  free_own(a);
  arena.release_pages(~std::size_t{0}, ReleaseAfter::kHostWait);
  own_.stale().remove_passed();
  EXPECT_EQ(own_.report().counters().unmapped_by_requests, 1U);
  ASSERT_EQ(SimGpu::reserved_bytes(), kSpanAlignment);
  short_ = true;
  const DevicePtr b = own_.allocate(kDefaultPool, stream_, bytes(512)).ptr;
  ASSERT_NE(b, kNull);
  EXPECT_EQ(SimGpu::reserved_bytes(), kSpanAlignment)
      << "the span of the other stream was released";
  short_ = true;
  const AllocateResult refused = own_.allocate(kDefaultPool, side_, bytes(512));
  ASSERT_NE(refused.failure, nullptr);
  EXPECT_EQ(diagnose(*refused.failure), Verdict::kAddresses);
  free_own(b);
  own_.empty_cache();
}

TEST_F(AddressesTest, AShortageOfAddressesIsTheVerdict) {
  const DevicePtr a = allocate(kPageBytes);
  FaultyApi::fail_only("cuMemAddressReserve", 1, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_NE(allocate(kPageBytes, side_), kNull) << "a shorter range is available";
  free(a);
  OutOfMemoryFacts none;
  none.no_addresses = true;
  none.request = kPageBytes;
  EXPECT_EQ(diagnose(none), Verdict::kAddresses);
  EXPECT_NE(explain(none).find("ADDRESSES"), std::string::npos);
}

}  // namespace addresses_test
}  // namespace ferro
