// What the core asks of the pages that graphs share. graph/graph_memory.h answers.
//
// While a graph is captured into a pool of an exclusive group, the arenas of the pool *borrow*:
// they grow by handles of the group's set (block.h), which the set owns until the capture has
// ended. Everything is called under the climb lock of the device.
#pragma once

#include "ferro/core/types/address_ranges.h"
#include "ferro/core/types/block.h"
#include "ferro/core/types/handle_range.h"
#include "ferro/core/types/pool_id.h"
#include "ferro/core/types/sleep.h"
#include "ferro/driver/types.h"

#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <vector>

namespace ferro {

// An aliased block and the handles behind it. Not merged with others.
struct AliasedBlock {
  Block* block = nullptr;
  std::vector<HandleRange> handles;
};

class GraphPages {
 public:
  // Must free pages of the pool stay behind their addresses? True from the first capture into it,
  // allocation in a capture, checkpoint or membership in a group on, as long as the pool exists.
  virtual bool keeps_pages(const PoolId& pool) const = 0;
  // An arena grows. Do arenas of the pool borrow at this moment?
  virtual bool borrows(const PoolId& pool) const = 0;
  // Handles of the set that `stream` may use next in the running capture: at most `pages`, or fewer
  // where the set has no more.
  //  kBorrow     The capture does not have them, or they hold no live byte of it. The last one may
  //              exceed `pages`. The set owns them.
  //  kBorrowFit  The same, and none exceeds `pages`.
  //  kKeep       They hold no live byte, and no other graph has them. The arena owns them.
  enum class Loan : std::uint8_t { kBorrow, kBorrowFit, kKeep };
  virtual std::vector<HandleRange> lend(const PoolId& pool, StreamId stream, std::size_t pages,
                                        Loan loan) = 0;
  // What `lend` gave was mapped from `begin` on, and then `added`: new handles, which join the set
  // and count as borrowed.
  virtual void on_mapped(const PoolId& pool, DevicePtr begin, std::span<const HandleRange> lent,
                         std::span<const HandleRange> added) = 0;
  // What `lend` gave was not mapped.
  virtual void reclaim(const PoolId& pool, std::span<const HandleRange> lent) = 0;
  // Where a capture does not borrow: may free pages of the pool serve it at other addresses too?
  // The old addresses stay mapped, because earlier kernels of the capture write there.
  virtual bool moves_within(const PoolId& pool) const = 0;
  // The pages behind `from`, which is aliased from now on, serve at `to` too.
  virtual void notify_moved(const PoolId& pool, AliasedBlock from, DevicePtr to) = 0;

  // Removes scratch of graphs that are gone, and shares what recorded graphs do not carry. Waits
  // for the device if there is anything to do; does nothing where a capture forbids the wait.
  virtual void collect() = 0;
  // Before pages of the pool leave: retires free memory that its graphs may write. False: no page
  // of the pool may leave.
  virtual bool prepare_release(const PoolId& pool) = 0;
  // Sleep (device/sleeper.h). Unmaps scratch of the sets whose pools `which` has, all of them, and
  // releases the handles. Returns their pages; adds what stays to `staying`. Until it wakes,
  // no pool joins or leaves, and no capture into a member begins.
  virtual std::size_t sleep_scratch(const SleepFilter& which, StayingBytes& staying) = 0;
  // Addresses at which the program may hold tensors although the pool says that they are free: what
  // the graphs of a tree carry (policy/carried_memory.h).
  virtual AddressRanges held_by_trees(const PoolId& pool) = 0;
  // Pages of scratch that is asleep in the sets with a pool that `which` has.
  virtual std::size_t asleep_scratch(const SleepFilter& which) const = 0;
  // Wakes it, on new handles. False, and when it throws DriverError: nothing woke.
  virtual bool wake_scratch(const SleepFilter& which) = 0;
  virtual bool is_scratch_asleep(const PoolId& pool) const = 0;
  // The handles that are behind addresses of several graphs, or of one at different times.
  virtual std::set<PageHandle> shared_handles() const = 0;
  // Pages of sets that the pool takes into account, and those of all pools.
  virtual std::size_t pages_of(const PoolId& pool) const = 0;
  virtual std::size_t pages() const = 0;
  // Throws InternalError on the first violation.
  virtual void check_invariants() const = 0;

 protected:
  ~GraphPages() = default;
};

}  // namespace ferro
