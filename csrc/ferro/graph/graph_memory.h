// The memory of CUDA graphs on one device: a record of each pool that graphs are captured into, and
// the pages that graphs share (ADR 25, 32, 33 and 35).
//
// A pool may be a *member* of a group, which has one ScratchSet. While a graph is captured into it,
// its arenas borrow handles of the set that this capture does not have, at new addresses. New
// handles join the set where it has too few. When the capture has ended,
//  * a handle without a live byte is the graph's scratch: its addresses stay mapped and are never
//    handed out again, and the handle serves the next capture too;
//  * one with a live byte leaves the set. Where other graphs use it as scratch, a new handle is
//    mapped at the same addresses. Contents do not matter, because nothing was executed;
//  * free memory of the pool's own handles that the capture was given is retired.
// What dies after its capture serves later captures of the same pool, by whole handles and at other
// addresses. What dies within a capture serves that capture again, at other addresses and in the
// order of the stream on which it died; the capture goes on as one more user. An arena of the pool
// may keep a handle whose users are all of its capture.
//
// A pool without a record has no graph, and its pages move (GraphPages::keeps_pages). The record
// stays as long as the pool has heaps, because a graph that is gone may still run.
//
// A pool in no group does not borrow. With GraphOrder::kAny it is alone in a group from its second
// capture on. A pool of which checkpoints are taken is a *tree's*: captures into it do not borrow,
// and its whole handles without carried memory (policy/carried_memory.h) are shared when it joins a
// declared group and after each checkpoint.
//
// Thread-safe: public functions take the climb lock, but `allocate` while no pool shares pages, and
// `forget_capture`. The core calls GraphPages under that lock. No replay of a member may be in
// flight while it joins or leaves; both wait for the device themselves.
//
// Invariants: those of ScratchSet and MovedPages; a moved handle of a pool is its own, or serves
// its captures alone.
#pragma once

#include "ferro/base/mutex.h"
#include "ferro/core/device/device_memory.h"
#include "ferro/core/pages/graph_pages.h"
#include "ferro/core/types/address_ranges.h"
#include "ferro/graph/graph_pool.h"
#include "ferro/graph/graph_sizes.h"
#include "ferro/graph/scratch_set.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

namespace ferro {

struct GroupBytes {
  std::size_t set = 0;      // of the handles of the set, each once
  std::size_t scratch = 0;  // of addresses of scratch, which they are behind

  void add(const GroupBytes& more) {
    set += more.set;
    scratch += more.scratch;
  }
};

class GraphMemory final : public GraphPages {
 public:
  // Attaches itself to the device, which outlives it. No private pool has a heap yet.
  explicit GraphMemory(DeviceMemory& device);
  // Nothing may be live, as for the device's.
  ~GraphMemory();
  GraphMemory(const GraphMemory&) = delete;
  GraphMemory& operator=(const GraphMemory&) = delete;

  DeviceMemory& device() { return device_; }

  // Allocations in private pools: those of DeviceMemory, recorded. The driver is asked which capture
  // the stream is part of; the sizes of graphs count those of announced captures, with `kYes`.
  enum class InCapture : std::uint8_t { kNo, kYes };
  AllocateResult allocate(const PoolId& id, StreamId stream, const Request& request,
                          InCapture in = InCapture::kNo) FERRO_EXCLUDES(climb_mutex_);
  AllocateResult allocate_at(const PoolId& id, StreamId stream, DevicePtr ptr,
                             const Request& request) FERRO_EXCLUDES(climb_mutex_);
  // Records memory that another allocator gave to a capture.
  void note_foreign(const PoolId& id, StreamId stream, DevicePtr ptr, std::size_t bytes)
      FERRO_EXCLUDES(climb_mutex_);

  // What captures were given. A capture is known by the driver's id. Those of a graph that is gone
  // count until it is forgotten.
  enum class Places : std::uint8_t { kOriginal, kCurrent };  // of pages that moved
  AddressRanges addresses_of_capture(const PoolId& id, std::uint64_t capture,
                                     Places places = Places::kOriginal)
      FERRO_EXCLUDES(climb_mutex_);
  // `live`: the blocks in use of the pool.
  GraphSizes sizes_of(const PoolId& id, std::uint64_t capture, std::span<const BlockView> live)
      FERRO_EXCLUDES(climb_mutex_);
  // Bytes that more than one graph of the pool was given.
  std::size_t shared_bytes(const PoolId& id) FERRO_EXCLUDES(climb_mutex_);
  void forget_capture(const PoolId& id, std::uint64_t capture) FERRO_EXCLUDES(records_mutex_);

  // A capture into the pool begins. kOutOfMemory: what an earlier one left alive still has no pages
  // of its own. kAsleep: the scratch of its group is asleep.
  SharingResult begin_capture(const PoolId& id) FERRO_EXCLUDES(climb_mutex_);
  // The capture has ended; no-op where none had begun. Where memory lacks for what it left alive,
  // the cache is emptied first. kOutOfMemory and DriverError: it has no pages of its own; the next
  // capture tries again.
  enum class Outcome : std::uint8_t { kSucceeded, kFailed };
  SharingResult end_capture(const PoolId& id, Outcome outcome) FERRO_EXCLUDES(climb_mutex_);
  // No graph and no MemPool holds the pool. `collect` removes the scratch of its graphs.
  void on_last_release(const PoolId& id) FERRO_EXCLUDES(climb_mutex_);

  // Shares what is free in the pool, which its graphs may write. Where the driver fails to map,
  // some of it is not shared until the pool joins again. kCapturing and DriverError: nothing
  // changed.
  SharingResult join(GroupId group, const PoolId& id) FERRO_EXCLUDES(climb_mutex_);
  // What `join` would return.
  SharingResult may_join(GroupId group, const PoolId& id) FERRO_EXCLUDES(climb_mutex_);
  // The pool gets handles of its own for its scratch. It is a group of its own then, which no pool
  // joins. On failure, also when it throws DriverError, nothing changed.
  SharingResult leave(const PoolId& id) FERRO_EXCLUDES(climb_mutex_);
  // None: the pool is no member.
  std::optional<GroupId> group_of(const PoolId& id) FERRO_EXCLUDES(climb_mutex_);
  GroupBytes bytes_of(GroupId group) FERRO_EXCLUDES(climb_mutex_);
  // What these pools would share as a group: whole handles without a live byte. Pools that may not
  // join share nothing.
  GroupBytes bytes_if_joined(std::span<const PoolId> ids) FERRO_EXCLUDES(climb_mutex_);

  // The pool is a tree's from now on. False: a capture into it borrows, or what the last one left
  // alive has no pages of its own.
  bool expect_checkpoints(const PoolId& id) FERRO_EXCLUDES(climb_mutex_);
  bool is_of_tree(const PoolId& id) FERRO_EXCLUDES(climb_mutex_);
  // A checkpoint was taken. Where the host may wait for the device, new scratch of a member is
  // shared.
  void on_checkpoint(const PoolId& id) FERRO_EXCLUDES(climb_mutex_);
  void on_restore(const PoolId& id) FERRO_EXCLUDES(climb_mutex_);
  // Calls `function(const std::vector<Heap*>&)` with the heaps of one pool, in order of stream and
  // kind. They stay for the time of the call.
  template <typename Function>
  void with_heaps_of(const PoolId& id, Function function) FERRO_EXCLUDES(climb_mutex_) {
    const RecursiveMutexLock lock(climb_mutex_);
    const ObserverSlot::DeliveryAtEnd delivery(parts_.observer);
    function(parts_.pools.heaps_of(id));
  }

 private:
  // GraphPages.
  bool keeps_pages(const PoolId& id) const override { return find(id) != nullptr; }
  bool borrows(const PoolId& id) const override;
  std::vector<HandleRange> lend(const PoolId& id, StreamId stream, std::size_t pages,
                                Loan loan) override;
  void on_mapped(const PoolId& id, DevicePtr begin, std::span<const HandleRange> lent,
                 std::span<const HandleRange> added) override;
  void reclaim(const PoolId& id, std::span<const HandleRange> lent) override;
  bool moves_within(const PoolId& id) const override;
  void notify_moved(const PoolId& id, AliasedBlock from, DevicePtr to) override;
  void collect() override { collect(News::kShared); }
  bool prepare_release(const PoolId& id) override;
  // Is a page of what the pool keeps at other addresses too?
  bool keeps_aliased(const PoolId& id) const;
  std::size_t sleep_scratch(const SleepFilter& which, StayingBytes& staying) override;
  AddressRanges held_by_trees(const PoolId& id) override;
  std::size_t asleep_scratch(const SleepFilter& which) const override;
  bool wake_scratch(const SleepFilter& which) override;
  bool is_scratch_asleep(const PoolId& id) const override;
  std::set<PageHandle> shared_handles() const override;
  std::size_t pages_of(const PoolId& id) const override;
  std::size_t pages() const override;
  void check_invariants() const override;

  using User = ScratchUser;
  // kPoolPrivate: does not fold, and serves captures into the same pool alone.
  enum class Folding : std::uint8_t { kMayFold, kMayNot, kPoolPrivate };
  enum class Died : std::uint8_t { kAny, kOfThisGraph };
  enum class News : std::uint8_t { kShared, kLeft };  // new scratch of trees

  // Does any pool share pages, or record the order of its allocations? Without a lock.
  bool any() const { return tracked_.load(std::memory_order_relaxed) != 0; }
  void update_tracked(GraphPool& pool);
  GraphPool* find(const PoolId& id);
  const GraphPool* find(const PoolId& id) const;
  // Made where it is missing.
  GraphPool& pool_of(const PoolId& id);
  AddressRanges live_ranges_of(const PoolId& id);
  AddressRanges backed_ranges_of(const PoolId& id);

  AllocateResult allocate_unrecorded(const PoolId& id, StreamId stream, Request request);
  bool is_on_own_pages(DevicePtr ptr);
  bool record(const PoolId& id, StreamId stream, const AllocateResult& result,
              std::size_t requested, InCapture in);
  bool may_have(const GraphPool& pool, Span& span, const BlockView& block);
  std::uint64_t capture_of(const PoolId& id, StreamId stream, InCapture in);
  void expect_graphs(const PoolId& id);
  void forget_gone_pools();
  void note_captured(const PoolId& id, std::uint64_t capture, DevicePtr ptr, std::size_t bytes);
  void close_order(GraphPool& pool);
  CapturedRanges captured_of(const PoolId& id, Places places);

  void end_first_capture(GraphPool& pool);
  // Records the allocations of the capture that has ended: its graph writes them.
  void learn_capture(GraphPool& pool);
  SharingResult end_loan(GraphPool& pool, Outcome outcome);
  SharingResult end_loan_again(GraphPool& pool, Outcome outcome);
  SharingResult settle(GraphPool& pool);
  bool exchange_borrowed(Heap& heap, const Heap::PlacedHandle& borrowed);
  void retire_written(GraphPool& pool);
  void share_what_died(GraphPool& pool);
  bool share_dead_borrowed(GraphPool& pool, std::vector<ScratchUse>& to, Folding folding);
  void share_what_died_on(StreamId stream, GraphPool& pool, std::size_t pages, Died which);
  void add_uses(GraphPool& pool, std::vector<ScratchUse>& to, Heap& heap, User user,
                std::vector<AliasedBlock> found, Folding folding);

  void release(GraphPool& pool);
  void collect(News news);
  SharingResult check_join(GroupId group, const PoolId& id) const;
  // The host waits for all work of the devices.
  SharingResult wait_for_rest();
  ScratchSet& set_of(GroupId group);
  void add_member(GroupId group, GraphPool& pool, const AddressRanges* written);
  std::set<PageHandle> staying_handles(const GraphPool& pool);
  static bool has_news(const GraphPool& pool);
  User share_what_is_not_carried(GraphPool& pool);
  void check_moved(const GraphPool& pool) const;

  static constexpr GroupId kFirstLone = GroupId{1} << 63;

  DeviceMemory& device_;
  const DeviceParts& parts_;
  RecursiveMutex& climb_mutex_;
  // GraphPool::captured, and changes of `pools_`: a thread that holds this lock or the climb
  // lock may look up a pool; adding or removing one takes both. Last in the order of locks.
  Mutex records_mutex_;
  std::map<PoolId, GraphPool> pools_;
  std::map<GroupId, ScratchSet> sets_;
  std::vector<AliasedBlock> gone_moves_;  // old addresses of pools without graphs
  std::atomic<std::size_t> tracked_{0};   // see any()
  User next_user_ = 1;
  GroupId next_lone_ = kFirstLone;  // of pools that have left, or are in no declared group
};

}  // namespace ferro
