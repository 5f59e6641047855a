// The terms of the core, and the block.
//
//  page      A unit of physical device memory. All pages of a device have one size.
//  handle    One allocation of physical memory (cuMemCreate): one page or several, mapped whole.
//  backed    Of an address: it has a page.
//  span      One reserved range of addresses, owned by one heap.
//  arena     All spans of a heap: the addresses of its blocks.
//  block     A run of bytes of a span in one state. Blocks tile their span.
//  gap       A block that has no pages. Covers the addresses of whole pages.
//  transit   A block whose mapping is being created, or whose stale mapping awaits removal. Covers
//            the addresses of whole pages; becomes free or a gap.
//  hole      Whole free handles inside a free block.
//  heap      The blocks of one pool, stream and size class, with their spans, indexes and lock.
//  pool      The heaps of one owner: the default pool, a graph's pool, a user's MemPool.
//  store     The handles of one device that belong to no heap.
//  idle      A page of the store, in any state (page_store.h).
//  cached    A handle of the store that is mapped nowhere and that no work uses.
//  stale     A mapping left where a handle was: work before the end of its epoch may still use it.
//  point     A moment in a device's work: an event after all work that the device received before.
//  epoch     The time between two points; a free is stamped with it (streams/device_timeline.h).
//  passed    Of an epoch: all work that the device received before its end has finished.
//  pending   Freed by the program while another stream may still use it.
//  retired   Free, but not handed out while its pool is held: a graph that may replay writes it.
//  scratch   Memory that a graph received in its capture and freed by its end. Its addresses stay
//            the graph's; the handles that back them also serve other graphs (graph_memory.h).
//  set       The handles that several graphs share as their scratch.
//  aliased   A block of scratch, backed by handles of a set. Covers whole handles.
//  borrowed  A handle of a set that backs an arena of a capturing pool until the capture ends.
//  asleep    Of a handle: its memory was returned to the driver, and its addresses stay with the
//            blocks on them until the handle wakes (device/sleeper.h).
//  unit      A handle that stays at its addresses, because other processes may map it or the
//            program pinned it (exported_units.h).
//  capture   CUDA's recording of a graph. CaptureOrder has its order, CapturePool its memory,
//            CapturedGraph its result.
//  diversion A rule that sends the allocations that its filter accepts to a pool (pool_router.h).
//  climb     One request on the ladder (ladder_steps.h).
//  tag       The program's name for memory that it requests, such as "kv cache" (observer.h).
#pragma once

#include "ferro/core/types/epoch.h"
#include "ferro/core/types/observer.h"
#include "ferro/driver/types.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace ferro {

class Span;

// Sizes and addresses of blocks are multiples of this, as in PyTorch's allocator.
inline constexpr std::size_t kBlockAlignment = 512;

enum class BlockState : std::uint8_t {
  kGap,      // has no pages; no neighbour is a gap
  kTransit,  // has no pages of its own: a mapping is being created or removed
  kFree,     // in the free index; no neighbour is free
  kLive,     // handed out
  kPending,  // freed; waits for other streams
  kRetired,  // freed, and not handed out while its pool is held; no neighbour is retired
  kAliased,  // backed by handles of a set, not of its heap
  kAsleep,   // free or retired, on handles that are asleep
};

// A stream other than the heap's own that uses a live block (`record_stream`).
struct StreamUse {
  StreamId stream{};
  // The capture in which the use was recorded; 0 when none. The end of that capture joins the use.
  std::uint64_t capture_id = 0;
};

// Data that only few blocks need.
struct BlockExtra {
  std::vector<StreamUse> uses;
  std::size_t events = 0;  // recorded, but not yet seen complete
  CallContext context;     // of the allocation
};

// A block never moves in host memory, so indexes may point to it. The heap's lock guards it.
struct Block {
  DevicePtr ptr{};
  std::size_t size = 0;  // bytes; multiple of kBlockAlignment
  // Live or pending: the bytes that the program requested. Gap: the size of the largest gap in its
  // subtree of the index. Else 0.
  std::size_t requested = 0;
  Span* span = nullptr;
  Block* prev = nullptr;  // neighbours by address in the span
  Block* next = nullptr;
  Block* left = nullptr;  // links of an index
  Block* right = nullptr;
  Block* up = nullptr;
  BlockExtra* extra = nullptr;  // owned; null for most blocks
  // Pending or free: the epoch of the free, the latest one of merged blocks; with pages from
  // elsewhere, no earlier than they were freed there (streams/device_timeline.h).
  Epoch freed = kUnused;
  BlockState state = BlockState::kGap;
  std::uint8_t rank = 0;  // in a bin (blocks/size_bins.h)
  BlockTag tag = 0;       // the observer's, while live; else 0

  DevicePtr end() const { return ptr + size; }
  bool is_free() const { return state == BlockState::kFree; }
  bool has_uses() const { return extra != nullptr && !extra->uses.empty(); }
  bool is_used_outside_captures() const {
    return extra != nullptr && std::ranges::any_of(extra->uses, [](const StreamUse& use) {
             return use.capture_id == 0;
           });
  }
  // Whether handles that its heap owns or borrows back it, also if they are asleep.
  bool is_backed() const {
    return state != BlockState::kGap && state != BlockState::kTransit &&
           state != BlockState::kAliased;
  }
};

}  // namespace ferro
