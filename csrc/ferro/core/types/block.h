// The words of the core, and the block.
//
//  page      A unit of physical device memory. All pages of a device have one size.
//  handle    One allocation of physical memory (cuMemCreate): one page or several, mapped whole.
//  backed    An address with a page behind it.
//  span      One reserved range of addresses, owned by one heap.
//  arena     All spans of a heap: the addresses on which it lays its blocks.
//  block     A run of bytes of a span in one state. Blocks tile their span without gaps.
//  gap       A block without pages behind it. Always whole pages.
//  transit   A block whose mapping is being made, or whose old mapping waits for its removal.
//            Always whole pages; becomes free or a gap.
//  hole      Whole free handles inside a free block.
//  heap      The blocks of one (pool, stream) of one device, with its spans, indexes and lock.
//  pool      The heaps of one owner: the default pool, a graph's pool, a user's MemPool.
//  store     The handles of one device that no heap has.
//  idle      A page of the store, in whichever state (page_store.h).
//  cached    A handle of the store that is mapped nowhere and that no work uses.
//  stale     A mapping that is left where a handle was: work before its epoch ends may still use it.
//  point     A moment of a device's work: an event behind all that the device was given before.
//  epoch     The time between two points; a free is stamped with it (streams/device_timeline.h).
//  passed    Of an epoch: all work that the device was given before its end is over.
//  pending   Freed by the program while another stream may still use it.
//  unmerged  Free, and kept apart from its free neighbours for the next request of its size.
//  retired   Free, and never handed out again: a graph that may replay writes it.
//  scratch   What a graph was given in its capture and holds nothing at its end. Its addresses stay
//            the graph's; the handles behind them serve other graphs too (graph_memory.h).
//  set       The handles that several graphs have as their scratch.
//  aliased   A block of scratch: the handles behind it belong to a set. Always whole handles.
//  borrowed  A handle of a set behind an arena of a pool that captures, until the capture ends.
//  unit      A handle that stays behind its addresses: other processes may map it, or the program
//            pinned it (exported_units.h).
//  capture   CUDA's recording of a graph. CaptureOrder is its order, CapturePool its memory,
//            CapturedGraph what comes of it.
//  diversion Sends the allocations that its filter accepts to a pool (pool_router.h).
//  climb     One request on the ladder (ladder_steps.h).
//  tag       What the program calls the memory that it asks for, as in "kv cache" (observer.h).
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
  kGap,       // no pages behind it; no neighbour is a gap
  kTransit,   // no pages of its own behind it: a mapping is being made or removed
  kFree,      // in the free index; no neighbour is free
  kUnmerged,  // free, and kept in a bin for the next request of its size
  kLive,      // handed out
  kPending,   // freed; waits for other streams
  kRetired,   // freed, and not handed out while its pool is held; no neighbour is retired
  kAliased,   // no handle of its heap is behind it, but handles of a set
};

// A stream other than the heap's own that uses a live block (`record_stream`).
struct StreamUse {
  StreamId stream{};
  // The capture in which the use was recorded; 0 when none. The end of that capture joins the use.
  std::uint64_t capture_id = 0;
};

// What only few blocks have.
struct BlockExtra {
  std::vector<StreamUse> uses;
  std::size_t events = 0;  // recorded and not yet seen complete
  CallContext context;     // of the allocation
};

// A block never moves in memory while it exists, so that indexes may point to it. All fields belong
// to the heap's lock.
struct Block {
  DevicePtr ptr{};
  std::size_t size = 0;  // bytes; multiple of kBlockAlignment
  // Live or pending: bytes the program asked for. A gap: the largest gap below it in its index.
  // Else 0.
  std::size_t requested = 0;
  Span* span = nullptr;
  Block* prev = nullptr;  // neighbours by address in the span
  Block* next = nullptr;
  Block* left = nullptr;  // children in an index, or links of a bin
  Block* right = nullptr;
  BlockExtra* extra = nullptr;  // owned; null for most blocks
  // Pending or free: when the memory was freed, the latest of what was merged; with pages that came
  // from elsewhere, no earlier than they were freed there (streams/device_timeline.h).
  Epoch freed = kUnused;
  BlockState state = BlockState::kGap;
  BlockTag tag = 0;  // while live, what the observer put there; else 0

  DevicePtr end() const { return ptr + size; }
  bool is_free() const { return state == BlockState::kFree; }
  bool has_uses() const { return extra != nullptr && !extra->uses.empty(); }
  bool is_used_outside_captures() const {
    return extra != nullptr && std::ranges::any_of(extra->uses, [](const StreamUse& use) {
             return use.capture_id == 0;
           });
  }
  // By handles of its heap, or such as it borrowed.
  bool is_backed() const {
    return state != BlockState::kGap && state != BlockState::kTransit &&
           state != BlockState::kAliased;
  }
};

}  // namespace ferro
