// A DeviceMemory and its graphs on a simulated GPU.
#pragma once

#include "ferro/core/device/device_memory.h"
#include "ferro/graph/graph_memory.h"
#include "support/faulty_api.h"
#include "support/heap_fixture.h"
#include "support/sim_gpu.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>

namespace ferro::testing {

inline std::uint64_t ended_by(DeviceMemory& device, LadderStep step) {
  return device.report().counters().ladder[static_cast<std::size_t>(step)];
}

class DeviceFixture : public ::testing::Test {
 protected:
  static constexpr PoolId kGraphPool{0, 7};

  explicit DeviceFixture(std::size_t device_pages = 16,
                         const std::string& settings = SimGpu::kManual, AllocatorConfig config = {})
      : gpu_(device_pages, settings), stream_(SimGpu::make_stream()), side_(SimGpu::make_stream()) {
    FaultyApi::reset();
    config.rejection_limit = [this](std::size_t) { return rejection_limit_; };
    make_device(FaultyApi::table(), config);
  }
  // Only memory that the test keeps alive may be left, and nothing after that is released.
  ~DeviceFixture() override {
    FaultyApi::reset();
    free_everything();
    device_->report().check_invariants();
    graphs_.reset();
    device_.reset();
    EXPECT_EQ(SimGpu::used_pages(), 0U);
  }

  // Replaces the previous device.
  void make_device(const CudaApi& api, const AllocatorConfig& config) {
    graphs_.reset();
    device_ = std::make_unique<DeviceMemory>(api, 0, addresses_, config,
                                             [this] { return on_shortage_ && on_shortage_(); });
    graphs_ = std::make_unique<GraphMemory>(*device_);
  }
  AllocateResult try_allocate(std::size_t size, StreamId stream, const PoolId& pool) {
    AllocateResult result = pool == kDefaultPool ? device_->allocate(pool, stream, bytes(size))
                                                 : graphs_->allocate(pool, stream, bytes(size));
    device_->report().check_invariants();
    const std::size_t held = device_->report().held_bytes();
    EXPECT_EQ(SimGpu::used_pages() * kPageBytes, held);
    EXPECT_GE(device_->report().reserved()[kAll].peak, static_cast<std::int64_t>(held));
    return result;
  }
  DevicePtr allocate(std::size_t size, StreamId stream, const PoolId& pool = kDefaultPool) {
    AllocateResult result = try_allocate(size, stream, pool);
    EXPECT_NE(result.ptr, kNull) << (result.failure ? explain(*result.failure) : "");
    return result.ptr;
  }
  DevicePtr allocate(std::size_t size) { return allocate(size, stream_); }
  // Null where the request fails.
  std::unique_ptr<OutOfMemoryFacts> refuse(std::size_t size, StreamId stream,
                                           const PoolId& pool = kDefaultPool) {
    AllocateResult result = try_allocate(size, stream, pool);
    EXPECT_EQ(result.ptr, kNull);
    EXPECT_NE(result.failure, nullptr);
    return std::move(result.failure);
  }
  Heap& heap_of(DevicePtr ptr) { return *addresses_.find(ptr)->heap(); }
  // Releases whole free pages of the block's heap to the store, after a wait of the host, and
  // removes their mappings.
  std::size_t release_pages_of(DevicePtr ptr, std::size_t pages) {
    const std::size_t released = heap_of(ptr).release_pages(pages, ReleaseAfter::kHostWait);
    device_->stale().remove_passed();
    return released;
  }
  void free(DevicePtr ptr) {
    EXPECT_EQ(heap_of(ptr).free(*addresses_.find(ptr), ptr).error, FreeError::kNone);
  }
  // Frees a block that `stream` still works on.
  void free_used_by(DevicePtr ptr, StreamId stream) {
    EXPECT_TRUE(heap_of(ptr).record_stream(*addresses_.find(ptr), ptr, stream));
    SimGpu::fill(stream, ptr, 1, 1);
    free(ptr);
    EXPECT_TRUE(heap_of(ptr).has_pending());
  }
  void free_everything() {
    for (const SegmentView& segment : device_->report().segments(nullptr)) {
      for (const BlockView& block : segment.blocks) {
        if (block.state == BlockState::kLive) {
          free(block.ptr);
        }
      }
    }
    SimGpu::finish_all();
    device_->collect_pending();
  }
  PageCounts pages() { return device_->store().counts(); }
  std::string layout_of(const PoolId& pool) { return layout(device_->report().segments(&pool)); }
  std::uint64_t ended_by(LadderStep step) { return testing::ended_by(*device_, step); }

  SimGpu gpu_;
  const StreamId stream_;
  const StreamId side_;
  AddressIndex addresses_;
  std::function<bool()> on_shortage_;
  std::size_t rejection_limit_ = PageStore::kNoLimit;
  std::unique_ptr<DeviceMemory> device_;
  std::unique_ptr<GraphMemory> graphs_;
};

// With a stream that the program created, and whose lifetime is unknown.
class GoneStreamFixture : public DeviceFixture {
 protected:
  explicit GoneStreamFixture(std::size_t device_pages = 16)
      : DeviceFixture(device_pages, SimGpu::kManual, config_of(*this)) {}

  const StreamId gone_ = SimGpu::make_stream();

 private:
  static AllocatorConfig config_of(GoneStreamFixture& test) {
    AllocatorConfig config;
    config.stream_lasts = [&test](DeviceId, StreamId stream) { return stream != test.gone_; };
    return config;
  }
};

}  // namespace ferro::testing
