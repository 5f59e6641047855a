// The objects below DeviceMemory, without one: a driver on a simulated GPU, a store, and heaps on
// it.
#pragma once

#include "ferro/core/heap/heap.h"
#include "support/faulty_api.h"
#include "support/sim_gpu.h"
#include "support/store_calls.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace ferro::testing {

inline Request bytes(std::size_t size) { return {size, size}; }
// A request as in a climb where the stream may wait.
inline Request movable_bytes(std::size_t size) {
  Request request = bytes(size);
  request.stream_may_wait = true;
  return request;
}

// The layout of segments as text, for comparisons: "L1024 F512 gap" would be one live block, one
// free block and the rest of a span. Gaps are not shown, so "|" separates segments.
inline std::string layout(const std::vector<SegmentView>& segments) {
  std::string text;
  for (const SegmentView& segment : segments) {
    text += text.empty() ? "" : " | ";
    for (const BlockView& block : segment.blocks) {
      text += &block == &segment.blocks.front() ? "" : " ";
      text += block.state == BlockState::kLive      ? "L"
              : block.state == BlockState::kPending ? "P"
                                                    : "F";
      text += block.size % kPageBytes == 0 ? std::to_string(block.size / kPageBytes) + "p"
                                           : std::to_string(block.size);
    }
  }
  return text;
}

class HeapFixture : public ::testing::Test {
 protected:
  explicit HeapFixture(std::size_t device_pages = 64, const std::string& settings = SimGpu::kManual,
                       const HandleRules& handles = {})
      : gpu_(device_pages, settings),
        stream_(SimGpu::make_stream()),
        side_(SimGpu::make_stream()),
        driver_(FaultyApi::table(), 0),
        events_(driver_),
        timeline_(driver_, events_, captures_, nullptr),
        store_(driver_, timeline_, kPageBytes, handles),
        stale_(driver_, timeline_, observer_),
        context_{driver_,    store_, stale_,    events_,   timeline_,        exports_,
                 addresses_, stats_, captures_, observer_, with_free_pages_, with_pending_} {
    FaultyApi::reset();
  }
  ~HeapFixture() override { FaultyApi::reset(); }

  // Checks the invariants.
  void check(Heap& heap) {
    heap.check_invariants();
    const HeapView view = heap.view();
    const PageCounts pages = store_.counts();
    EXPECT_EQ(view.backed_bytes / kPageBytes + pages.idle, pages.held);
    EXPECT_EQ(SimGpu::used_pages(), pages.held);
  }
  // Makes freed memory pass: streams are usually idle.
  void pass_epochs() {
    timeline_.record();
    timeline_.update();
  }
  DevicePtr grow(Heap& heap, std::size_t size) {
    pass_epochs();
    DevicePtr ptr = kNull;
    EXPECT_EQ(heap.allocate_grown(bytes(size), GrowFrom::kAnyPages, &ptr), GrowResult::kGrown);
    check(heap);
    return ptr;
  }
  // Allocates by a hit if possible, else with new pages.
  DevicePtr allocate(Heap& heap, std::size_t size) {
    const DevicePtr ptr = heap.allocate_hit(bytes(size));
    return ptr != kNull ? ptr : grow(heap, size);
  }
  FreeResult try_free(Heap& heap, DevicePtr ptr) {
    const FreeResult result = heap.free(*addresses_.find(ptr), ptr);
    heap.check_invariants();
    return result;
  }
  void free(Heap& heap, DevicePtr ptr) { EXPECT_EQ(try_free(heap, ptr).error, FreeError::kNone); }
  bool record(Heap& heap, DevicePtr ptr, StreamId stream) {
    return heap.record_stream(*addresses_.find(ptr), ptr, stream);
  }
  // Keeps the stream from being idle until it is finished. `ptr` is backed.
  void make_busy(StreamId stream, DevicePtr ptr) { SimGpu::fill(stream, ptr, 1, 1); }
  std::string layout_of(Heap& heap) { return layout(heap.segments()); }
  // Releases whole free pages to the store, after a wait of the host, and removes their mappings.
  std::size_t release(Heap& heap, std::size_t pages) {
    const std::size_t released = heap.release_pages(pages, ReleaseAfter::kHostWait);
    stale_.remove_passed();
    store_.trim(0);
    return released;
  }
  // Frees all live blocks and releases every page, so that the heap can be destroyed.
  void drain(Heap& heap) {
    for (const BlockView& block : live_blocks_of(heap)) {
      free(heap, block.ptr);
    }
    heap.wait_for_pending();
    release(heap, ~std::size_t{0});
    check(heap);
    EXPECT_TRUE(heap.is_empty());
    store_.trim(~std::size_t{0});
    EXPECT_EQ(SimGpu::used_pages(), 0U);
  }

  SimGpu gpu_;
  const StreamId stream_;
  const StreamId side_;
  Driver driver_;
  EventPool events_;
  CaptureCount captures_;
  DeviceTimeline timeline_;
  PageStore store_;
  StaleMappings stale_;
  HeapList with_free_pages_{HeapList::kWithFreePages};
  HeapList with_pending_{HeapList::kWithPending};
  ExportTable exports_{driver_};
  AddressIndex addresses_;
  DeviceStats stats_;
  ObserverSlot observer_;
  const HeapContext context_;
};

}  // namespace ferro::testing
