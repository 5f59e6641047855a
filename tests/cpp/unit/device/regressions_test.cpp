// Small programs for planted faults that only random programs had noticed, or no test. Each test
// failed with the fault that its comment describes.
#include "ferro/core/streams/pending_frees.h"
#include "ferro/driver/error.h"
#include "ferro/graph/checkpoint.h"
#include "ferro/graph/pool_registry.h"
#include "support/device_fixture.h"
#include "support/driver_ledger.h"

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace ferro {
namespace regressions_test {

using testing::bytes;
using testing::DriverLedger;
using testing::FaultyApi;
using testing::kPageBytes;
using testing::raw;
using testing::SimGpu;

class RegressionsTest : public testing::DeviceFixture {
 protected:
  explicit RegressionsTest(std::size_t device_pages = 64) : DeviceFixture(device_pages) {
    FaultyApi::keep(&ledger_);
  }
  ~RegressionsTest() override { FaultyApi::keep(nullptr); }

  ExportResult share(DevicePtr ptr, SharedRange* range) {
    return device_->export_block(*addresses_.find(ptr), ptr, range);
  }
  // Checks that the pages which the heaps record behind their addresses are mapped there.
  void expect_pages_in_place() {
    for (const SegmentView& segment : device_->report().segments(nullptr)) {
      const Span& span = *addresses_.find(segment.ptr);
      for (std::size_t at = 0; at < segment.size; at += kPageBytes) {
        const PageHandle handle = span.page(span.page_slot(segment.ptr + at));
        EXPECT_EQ(ledger_.handle_behind(address_of(segment.ptr) + at),
                  static_cast<DriverLedger::Handle>(handle));
      }
    }
  }

  DriverLedger ledger_;
};

class RefusedAccessTest : public RegressionsTest, public ::testing::WithParamInterface<CUresult> {
 protected:
  // Null where the driver refused.
  DevicePtr try_to_allocate(std::size_t size) {
    DevicePtr ptr = kNull;
    try {
      ptr = device_->allocate(kDefaultPool, stream_, bytes(size)).ptr;
    } catch (const DriverError&) {
      EXPECT_EQ(GetParam(), CUDA_ERROR_UNKNOWN);
    }
    device_->report().check_invariants();
    return ptr;
  }
};

INSTANTIATE_TEST_SUITE_P(Errors, RefusedAccessTest,
                         ::testing::Values(CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN));

// The addresses of the first growth stayed reserved.
TEST_P(RefusedAccessTest, LeavesNoAddressesReserved) {
  ferro_sim_add_fault("cuMemSetAccess", "after", 0, GetParam());
  EXPECT_EQ(try_to_allocate(3 * kPageBytes), kNull);
  EXPECT_EQ(ledger_.counts().reservations, 0U);
  EXPECT_EQ(ledger_.counts().mappings, 0U);
  ferro_sim_clear_faults();
  EXPECT_NE(try_to_allocate(3 * kPageBytes), kNull);
  EXPECT_EQ(ledger_.counts().reservations, 1U);
}

// The event behind which pages were to move was lost.
TEST_P(RefusedAccessTest, LosesNoEvent) {
  std::vector<DevicePtr> blocks;
  for (int i = 0; i < 4; ++i) {
    blocks.push_back(allocate(kPageBytes));
  }
  SimGpu::fill(stream_, blocks[0], 1, 1);
  free(blocks[0]);
  free(blocks[2]);
  FaultyApi::fail_only("cuMemSetAccess", 1, GetParam());
  if (try_to_allocate(2 * kPageBytes) == kNull) {
    EXPECT_NE(try_to_allocate(2 * kPageBytes), kNull);
  }
  EXPECT_STREQ(FaultyApi::failed(), "cuMemSetAccess");
  EXPECT_EQ(heap_of(blocks[1]).pages_moved(), 2U);
  EXPECT_LE(ledger_.counts().events, 2U) << "one for each point that has not passed";
}

// Only announced captures were noticed, and the wait for the device invalidated this one.
TEST_F(RegressionsTest, ABlockIsSharedWhileItsStreamCaptures) {
  const DevicePtr block = allocate(20 * kPageBytes);
  SimGpu::begin_capture(stream_, CU_STREAM_CAPTURE_MODE_RELAXED);
  const DriverCalls before = device_->driver().calls();
  SharedRange range;
  EXPECT_EQ(share(block, &range), ExportResult::kOk);
  const DriverCalls after = device_->driver().calls();
  EXPECT_EQ(after.create + after.map + after.unmap + after.event_wait,
            before.create + before.map + before.unmap + before.event_wait);
  EXPECT_EQ(device_->driver().capture_info(stream_).status, CaptureStatus::kActive);
  SimGpu::end_capture(stream_);
}

// A heap that was destroyed with its pool counted as restorable, but was not restored.
TEST_F(RegressionsTest, ACheckpointIsNotRestoredInAPoolThatWasGone) {
  device_->pools().hold(kGraphPool);
  const DevicePtr ptr = allocate(kPageBytes, stream_, kGraphPool);
  PoolCheckpoint checkpoint;
  ASSERT_EQ(take_checkpoint(*graphs_, kGraphPool, &checkpoint), CheckpointError::kNone);
  free(ptr);
  EXPECT_TRUE(device_->pools().release(kGraphPool));
  device_->empty_cache();
  ASSERT_EQ(device_->pools().use_count(kGraphPool), -1);
  device_->pools().hold(kGraphPool);
  CheckpointChange change;
  EXPECT_EQ(restore_checkpoint(*graphs_, checkpoint, &change), CheckpointError::kPagesGone);
  EXPECT_TRUE(change.freed.empty());
  EXPECT_TRUE(change.allocated.empty());
  EXPECT_TRUE(device_->pools().release(kGraphPool));
}

// The end of the range was computed, and wrapped around.
TEST_F(RegressionsTest, NoSizeIsTooLargeToBeRefusedAtAnAddress) {
  const DevicePtr ptr = allocate(2 * kPageBytes);
  free(ptr);
  const std::string before = layout_of(kDefaultPool);
  for (const std::size_t size : {~std::size_t{0} - kBlockAlignment + 1,
                                 ~std::size_t{0} - address_of(ptr) + 1 + kBlockAlignment}) {
    const AllocateResult result =
        device_->allocate_at(kDefaultPool, stream_, ptr, {size, kBlockAlignment});
    EXPECT_EQ(result.ptr, kNull) << size;
    device_->report().check_invariants();
    EXPECT_EQ(layout_of(kDefaultPool), before);
  }
}

// The simulated driver's table, with a function that runs right before a stream is made to wait.
struct BeforeStreamWait {
  static inline std::function<void()> act;
  static const CudaApi& table() {
    static const CudaApi table = [] {
      CudaApi made = FaultyApi::table();
      made.stream_wait_event = [](CUstream stream, CUevent event, unsigned flags) {
        if (const std::function<void()> due = std::exchange(act, nullptr)) {
          due();
        }
        return FaultyApi::table().stream_wait_event(stream, event, flags);
      };
      return made;
    }();
    return table;
  }
};

// Pages that move between streams, on a device without other memory.
class LoansTest : public RegressionsTest {
 protected:
  LoansTest() : RegressionsTest(16) { make_device(BeforeStreamWait::table(), {}); }
  // Frees a block whose stream has unfinished work.
  void free_busy(DevicePtr ptr, StreamId stream) {
    SimGpu::fill(stream, ptr, 1, 1);
    free(ptr);
  }
};

// The pages released first got the addresses of those released last.
TEST_F(LoansTest, WhatWouldNotBeEnoughIsNotReleased) {
  const StreamId third = SimGpu::make_stream();
  const DevicePtr free_at_once = allocate(2 * kPageBytes, side_);
  allocate(kPageBytes, side_);
  const DevicePtr pending = allocate(3 * kPageBytes, side_);
  allocate(10 * kPageBytes, side_);
  free_used_by(pending, third);
  free_busy(free_at_once, side_);
  const std::string before = layout_of(kDefaultPool);
  // Six pages would be too many, and the third stream's work is not done.
  const std::uint64_t waits = device_->driver().calls().stream_wait;
  refuse(6 * kPageBytes, stream_);
  EXPECT_EQ(device_->driver().calls().stream_wait - waits, 1U) << "of the pending block";
  EXPECT_EQ(device_->report().counters().pages_transferred, 0U);
  expect_pages_in_place();
}

// Pending blocks, without a heap.
class PendingRegressionsTest : public ::testing::Test {
 protected:
  ~PendingRegressionsTest() override {
    for (Block& block : blocks_) {
      delete block.extra;
    }
  }
  Block* add(std::vector<StreamUse> uses) {
    Block& block = blocks_.emplace_back();
    block.state = BlockState::kPending;
    block.extra = new BlockExtra;
    block.extra->uses = std::move(uses);
    EXPECT_TRUE(pending_.add(&block));
    pending_.check_invariants();
    return &block;
  }
  StreamUse captured(StreamId stream) { return {stream, driver_.capture_info(stream).id}; }
  std::vector<Block*> collect() {
    std::vector<Block*> ready;
    pending_.collect(ready);
    pending_.check_invariants();
    return ready;
  }

  SimGpu gpu_{8};
  const StreamId own_ = SimGpu::make_stream();
  const StreamId a_ = SimGpu::make_stream();
  const StreamId b_ = SimGpu::make_stream();
  Driver driver_{SimGpu::api(), 0};
  EventPool events_{driver_};
  PendingFrees pending_{driver_, events_, own_};
  std::deque<Block> blocks_;
};

using Blocks = std::vector<Block*>;

// The wait reported that there was nothing to wait for, so requests failed although it had just
// freed memory.
TEST_F(PendingRegressionsTest, AWaitWithoutAnEventReportsProgress) {
  SimGpu::begin_capture(a_);
  Block* block = add({captured(a_)});
  Blocks ready;
  EXPECT_FALSE(pending_.next_event(ready).has_value());
  EXPECT_EQ(ready, Blocks{});
  SimGpu::end_capture(a_);
  EXPECT_FALSE(pending_.next_event(ready).has_value());
  EXPECT_EQ(ready, Blocks{block});
  EXPECT_EQ(driver_.calls().event_wait, 0U);
}

// A use before the capture was treated as ordered by the graph.
TEST_F(PendingRegressionsTest, TheOrderOfAGraphDoesNotCoverUsesOutsideOfIt) {
  SimGpu::begin_capture(own_);
  SimGpu::fork(own_, b_);
  Block* block = add({{a_, 0}, captured(b_)});
  SimGpu::fork(b_, own_);
  EXPECT_EQ(collect(), Blocks{});
  SimGpu::end_capture(own_);
  EXPECT_EQ(collect(), Blocks{}) << "the other stream's work is not done";
  SimGpu::finish(a_);
  EXPECT_EQ(collect(), Blocks{block});
}

// The pool was removed although its handle was open again.
TEST(PoolRegistryRegressionsTest, APoolThatIsOpenedInItsOwnSweepStays) {
  constexpr PoolId kPool{0, 3};
  std::function<void(const PoolId&)> while_asked = [](const PoolId&) {};
  PoolRegistry registry([&](const PoolId& id) {
    std::exchange(while_asked, [](const PoolId&) {})(id);
    return false;
  });
  const CapturePool* pool = registry.open(kPool, "").get();
  while_asked = [&](const PoolId& id) { EXPECT_EQ(registry.open(id, "").get(), pool); };
  registry.close(kPool);
  EXPECT_EQ(registry.find(kPool).get(), pool);
  registry.close(kPool);
  EXPECT_EQ(registry.count(), 0U);
}

class HeadroomTakenTest : public testing::DeviceFixture {
 protected:
  HeadroomTakenTest()
      : DeviceFixture(16, SimGpu::kManual, AllocatorConfig{.headroom = 5 * kPageBytes}) {}
};

// Shared pages can serve other requests only after the driver has released them, and those that
// restore the headroom serve none. The request failed although a third page could have been
// released.
TEST_F(HeadroomTakenTest, SharedPagesGoToTheDriverUntilTheRequestHasRoomBesideTheHeadroom) {
  allocate(8 * kPageBytes);
  const DevicePtr shared = allocate(3 * kPageBytes);
  SharedRange range;
  ASSERT_EQ(device_->export_block(*addresses_.find(shared), shared, &range), ExportResult::kOk);
  ASSERT_EQ(range.units.size(), 3U);
  CUdeviceptr others = 0;
  SimGpu::expect(SimGpu::api().mem_alloc(&others, 2 * kPageBytes));
  free(shared);
  const AllocateResult result = device_->allocate(kDefaultPool, side_, {kPageBytes, kPageBytes});
  EXPECT_NE(result.ptr, kNull);
  EXPECT_EQ(pages().held, 9U);
  EXPECT_EQ(device_->driver().memory_info().free_bytes, 5 * kPageBytes);
  SimGpu::expect(SimGpu::api().mem_free(others));
}

}  // namespace regressions_test
}  // namespace ferro
