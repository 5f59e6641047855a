// The words of the core, and the block.
//
//  page      One handle of physical device memory, mapped whole. All pages have one size.
//  backed    An address with a page behind it.
//  span      One reserved range of addresses, owned by one heap for its whole life.
//  line      All spans of a heap: the addresses on which it lays its blocks.
//  block     A run of bytes of a span in one state. Blocks tile their span without gaps.
//  gap       A block without pages behind it. Always whole pages.
//  stale     A former free block whose pages were moved elsewhere or lent, as long as the old
//            mapping is still there. Always whole pages; becomes a gap.
//  heap      The blocks of one (pool, stream) of one device, with its line, indexes and lock.
//  pool      The heaps of one owner: the default pool, a graph's pool, a user's MemPool.
//  store     The pages of one device, whoever uses them.
//  loan      Pages of one heap that another one maps, whose stream waits for the first one's.
//  idle page A page of the store that is mapped nowhere and that no work uses.
//  pending   Freed by the program while another stream may still use it.
//  fence     An event behind the last work that may touch some memory.
#pragma once

#include "ferro/core/observer.h"
#include "ferro/driver/types.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ferro {

class Span;

// Sizes and addresses of blocks are multiples of this, as in PyTorch's allocator.
inline constexpr std::size_t kBlockAlignment = 512;

enum class BlockState : std::uint8_t {
  kGap,       // no pages behind it; no neighbour is a gap
  kStale,     // no pages of its own behind it; waits for the removal of an old mapping
  kFree,      // in the free index; no neighbour is free
  kUnmerged,  // free, and kept in a bin for the next request of its size
  kLive,      // handed out
  kPending,   // freed; waits for other streams
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
  std::size_t size = 0;       // bytes; multiple of kBlockAlignment
  std::size_t requested = 0;  // bytes the program asked for; 0 unless live or pending
  Span* span = nullptr;
  Block* prev = nullptr;  // neighbours by address in the span
  Block* next = nullptr;
  Block* left = nullptr;  // children in the free index, or links of a bin
  Block* right = nullptr;
  BlockExtra* extra = nullptr;  // owned; null for most blocks
  BlockState state = BlockState::kGap;
  bool oversize = false;         // counted as such when it was handed out (segments only)
  std::uint32_t free_since = 0;  // searches of the pool when it became free (segments only)

  DevicePtr end() const { return ptr + size; }
  bool is_free() const { return state == BlockState::kFree; }
  bool has_uses() const { return extra != nullptr && !extra->uses.empty(); }
  bool is_backed() const { return state != BlockState::kGap && state != BlockState::kStale; }
};

}  // namespace ferro
