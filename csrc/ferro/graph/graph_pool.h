// The record of one pool that graphs are captured into. Plain data of GraphMemory.
//
// Belongs to the climb lock of the device, but `captured`, which GraphMemory guards with a lock of
// its own.
#pragma once

#include "ferro/core/policy/capture_lifetimes.h"
#include "ferro/core/policy/carried_memory.h"
#include "ferro/core/types/address_ranges.h"
#include "ferro/core/types/pool_id.h"
#include "ferro/driver/types.h"
#include "ferro/graph/graph_sizes.h"
#include "ferro/graph/moved_pages.h"
#include "ferro/graph/scratch_set.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

namespace ferro {

// What a capture into a member borrows.
struct CaptureLoan {
  explicit CaptureLoan(ScratchUser by) : user(by), users{by} {}

  const ScratchUser user;
  // Of this capture: one more each time that what died in it is lent to it again.
  std::set<ScratchUser> users;
  // Handles that died in the capture, which serve it again in the order of one stream.
  std::map<PageHandle, StreamId> died_on;
  // Addresses of pages that the arena keeps: the graph wrote them as scratch before.
  AddressRanges kept;
  // False: the capture has ended, and blocks that it left alive have no pages of their own yet.
  bool is_running = true;
  // The end of the capture is being tried again.
  bool is_ending = false;
};

struct GraphPool {
  explicit GraphPool(const PoolId& of) : id(of) {}

  // One allocation of a capture.
  struct Given {
    DevicePtr ptr{};
    std::size_t requested = 0;  // bytes that the caller asked for
    std::size_t bytes = 0;      // of the block
    std::uint64_t capture = 0;  // the driver's id; 0: unknown, or the stream did not capture
  };
  // With GraphOrder::kAny, of a pool in no group: whether a capture into it has begun, or ended
  // with pages. The next one makes the pool a group of its own.
  enum class First : std::uint8_t { kNone, kBegun, kEnded };

  bool is_member() const { return set != nullptr; }
  bool should_be_tracked() const { return is_member() || first != First::kNone; }
  bool is_of_tree() const { return carried.is_of_tree(); }
  // Do its arenas borrow at this moment?
  bool borrows() const { return loan && loan->is_running; }
  // Is the order of allocations recorded?
  bool records_order() const { return borrows() || first == First::kBegun; }
  // The recorded order ends: `captured` has what it had.
  void close_order() {
    for (const Given& each : given) {
      note_captured(each.capture, each.ptr, each.requested);
    }
    given.clear();
  }
  void note_captured(std::uint64_t capture, DevicePtr ptr, std::size_t bytes) {
    if (capture != 0) {
      captured[capture].add(ptr, bytes);
    }
  }

  const PoolId id;
  // What captures were given. An allocation is in `given`, in order, as long as the order counts,
  // and in `captured` afterwards.
  std::vector<Given> given;
  CapturedRanges captured;
  AddressRanges written;  // by graphs that there may be; of members, and with First::kEnded
  First first = First::kNone;
  bool is_tracked = false;  // allocations are looked at: see GraphMemory::any
  CaptureLifetimes lifetimes;
  CarriedMemory carried;
  MovedPages moved;  // of a pool in no group

  // Of a member.
  ScratchSet* set = nullptr;     // null: in no group
  std::vector<ScratchUse> uses;  // scratch of its graphs
  std::vector<ScratchUse> gone;  // of graphs that are gone
  std::optional<CaptureLoan> loan;
};

}  // namespace ferro
