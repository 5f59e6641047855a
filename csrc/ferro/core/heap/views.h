// Copies of a heap's state at one moment, for snapshots, checkpoints and reports.
#pragma once

#include "ferro/core/types/block.h"
#include "ferro/core/types/heap_kind.h"
#include "ferro/core/types/observer.h"
#include "ferro/core/types/pool_id.h"
#include "ferro/driver/types.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

namespace ferro {

struct BlockView {
  DevicePtr ptr{};
  std::size_t size = 0;
  std::size_t requested = 0;
  BlockState state = BlockState::kFree;
  CallContext context = nullptr;  // of the allocation, of a live or pending block
  std::uint64_t span_number = 0;  // as in SegmentView; 0 where it is not needed
  BlockTag tag = 0;
  bool is_asleep = false;  // some of it; only from Heap::visit_live
};

// A contiguous backed range; its blocks tile it in order of address.
struct SegmentView {
  DevicePtr ptr{};
  std::size_t size = 0;
  StreamId stream{};
  PoolId pool{};
  HeapKind kind = HeapKind::kPages;
  std::uint64_t span_number = 0;  // ascends in the order of creation
  CallContext context = nullptr;  // of the first mapping in it that one request filled
  std::vector<BlockView> blocks;
};

// Called under the lock of a heap.
using VisitLive = std::function<void(const BlockView& block)>;

// Bytes by tag.
using TagBytes = std::map<BlockTag, std::size_t>;

// Sums that the heap maintains, so a view's cost does not depend on the number of blocks.
struct HeapView {
  std::size_t backed_bytes = 0;  // of handles, also those asleep
  std::size_t free_bytes = 0;
  std::size_t free_blocks = 0;
  std::size_t pending_bytes = 0;  // waiting for other streams
  std::size_t retired_bytes = 0;
  std::size_t borrowed_bytes = 0;     // of backed_bytes, handles of a scratch set
  std::size_t asleep_bytes = 0;       // of backed_bytes, handles that are asleep
  std::size_t asleep_free_bytes = 0;  // of asleep_bytes, not in use
  std::size_t largest_free = 0;

  std::size_t live_bytes() const {
    return backed_bytes - free_bytes - pending_bytes - retired_bytes - asleep_free_bytes;
  }
};

}  // namespace ferro
