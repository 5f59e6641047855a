// Faults that random programs on the model (model/device_model.h) found, each as a small program.
//
// The comments describe the faults.
#include "ferro/driver/error.h"
#include "support/device_fixture.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>

namespace ferro {
namespace found_test {

using testing::bytes;
using testing::DriverLedger;
using testing::FaultyApi;
using testing::kPageBytes;
using testing::raw;
using testing::SimGpu;

class FoundTest : public testing::DeviceFixture {
 protected:
  FoundTest() : DeviceFixture(64, "mode=adversarial,turn=1e-300,devices=2") {}
};

// The rejection of the nested request stayed, and rejected the outer one too.
TEST_F(FoundTest, ARejectionInACallbackDoesNotRejectTheRequest) {
  rejection_limit_ = 40 * kPageBytes;
  bool nested = false;
  on_shortage_ = [&] {
    if (!std::exchange(nested, true)) {
      static_cast<void>(device_->allocate(kDefaultPool, stream_, bytes(50 * kPageBytes)));
    }
    return false;
  };
  SimGpu::expect(ferro_sim_add_fault("cuMemCreate", "after", 0, CUDA_ERROR_OUT_OF_MEMORY) == 0
                     ? CUDA_SUCCESS
                     : CUDA_ERROR_UNKNOWN);
  const auto facts = refuse(4 * kMiB, stream_);
  EXPECT_FALSE(facts->rejected_beyond.has_value()) << "4 MiB are within the limit";
  ferro_sim_clear_faults();
  on_shortage_ = nullptr;
}

// The request was rejected for the result of its earlier attempt, although a pool had released
// pages since.
TEST_F(FoundTest, ARequestMayFitAfterACallbackRaisedTheLimit) {
  device_->pools().hold(kGraphPool);
  free(allocate(10 * kPageBytes, stream_, kGraphPool));
  EXPECT_TRUE(device_->pools().release(kGraphPool));
  allocate(18 * kPageBytes);
  ASSERT_EQ(device_->report().held_bytes(), 28 * kPageBytes);
  device_->store().set_limit(30 * kPageBytes);
  rejection_limit_ = 29 * kPageBytes;
  on_shortage_ = [this] {
    device_->store().set_limit(40 * kPageBytes);
    return true;
  };
  EXPECT_NE(try_allocate(3 * kPageBytes, stream_, kDefaultPool).ptr, kNull);
  on_shortage_ = nullptr;
}

// The request was refused: exported pages went to the driver in the shortage, but no attempt
// followed.
TEST_F(FoundTest, ExportedPagesAreReleasedDuringACapture) {
  device_->pools().hold(kGraphPool);
  device_->store().set_limit(30 * kPageBytes);
  PageHandle handle{};
  ASSERT_EQ(device_->store().create_one(29, &handle), TakeResult::kOk);
  const auto mapping = std::make_shared<StaleMapping>();
  device_->store().retire({{handle, 29}, mapping});
  mapping->removed.store(true);
  device_->set_captures(1);
  EXPECT_NE(try_allocate(4 * kMiB, stream_, kGraphPool).ptr, kNull);
  device_->set_captures(0);
  EXPECT_TRUE(device_->pools().release(kGraphPool));
}

// The request was refused although 24 pages were free: only as many pages of shared blocks as the
// request needed went to the driver, and the limit did not allow new ones yet.
TEST_F(FoundTest, SharedPagesGoUntilTheLimitAllowsNewOnes) {
  std::vector<DevicePtr> blocks;
  for (int i = 0; i < 12; ++i) {
    blocks.push_back(allocate(2 * kPageBytes, side_));
    SharedRange range;
    Span& span = *addresses_.find(blocks.back());
    ASSERT_EQ(device_->export_block(span, blocks.back(), &range), ExportResult::kOk);
  }
  for (const DevicePtr block : blocks) {
    free(block);
  }
  device_->store().set_limit(10 * kPageBytes);
  EXPECT_NE(try_allocate(2 * kPageBytes, stream_, kDefaultPool).ptr, kNull);
}

// The device lost an existing peer when adding it again failed.
TEST_F(FoundTest, APeerIsNotLostWhenItIsAddedAgain) {
  allocate(kPageBytes);
  device_->add_peer(1);
  FaultyApi::fail_only("cuMemSetAccess", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_THROW(device_->add_peer(1), DriverError);
  FaultyApi::reset();
  const DevicePtr later = allocate(4 * kPageBytes);
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = 1;
  unsigned long long flags = 0;
  SimGpu::expect(SimGpu::api().mem_get_access(&flags, &location, address_of(later)));
  EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
}

TEST_F(FoundTest, AFailedAdditionLeavesNoPeer) {
  allocate(kPageBytes);
  FaultyApi::fail_only("cuMemSetAccess", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_THROW(device_->add_peer(1), DriverError);
  EXPECT_TRUE(device_->driver().peers().empty());
  FaultyApi::reset();
  device_->add_peer(1);
  EXPECT_FALSE(device_->driver().peers().empty());
}

// The heap of the pool was destroyed while its own request climbed and then used it. The address
// sanitizer stops there. Without it the request may return a block of no pool, or not return.
TEST_F(FoundTest, AnUnheldPoolOutlivesItsRequest) {
  on_shortage_ = [this] {
    device_->empty_cache();
    return true;
  };
  const DevicePtr busy = allocate(40 * kPageBytes);
  SimGpu::fill(stream_, busy, 1, 1);
  free(busy);
  const DevicePtr ptr = allocate(50 * kPageBytes, stream_, kGraphPool);
  EXPECT_EQ(layout_of(kGraphPool), "L50p");
  EXPECT_EQ(heap_of(ptr).pool(), kGraphPool);
}

class FoundOnGoneStreamTest : public testing::GoneStreamFixture {
 protected:
  FoundOnGoneStreamTest() : GoneStreamFixture(64) { FaultyApi::keep(&ledger_); }
  ~FoundOnGoneStreamTest() override { FaultyApi::keep(nullptr); }

  void lose_stream() {
    SimGpu::destroy_stream(gone_);
    ledger_.lose(raw(gone_));
  }
  DriverLedger ledger_;
};

// The export queried whether the stream captures.
TEST_F(FoundOnGoneStreamTest, ADestroyedStreamIsNotQueriedByAnExport) {
  const DevicePtr block = allocate(20 * kPageBytes, gone_);
  lose_stream();
  SharedRange range;
  EXPECT_EQ(device_->export_block(*addresses_.find(block), block, &range), ExportResult::kOk);
  EXPECT_EQ(range.units.size(), 20U);
  EXPECT_EQ(ledger_.violation(), "");
}

// The free queried the place of the stream in the capture that uses the block.
TEST_F(FoundOnGoneStreamTest, ADestroyedStreamIsNotQueriedByAFreeInACapture) {
  const DevicePtr block = allocate(kPageBytes, gone_);
  lose_stream();
  SimGpu::begin_capture(side_, CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_TRUE(heap_of(block).record_stream(*addresses_.find(block), block, side_));
  free(block);
  device_->collect_pending();
  SimGpu::end_capture(side_);
  EXPECT_EQ(ledger_.violation(), "");
}

}  // namespace found_test
}  // namespace ferro
