// What graphs ask of the memory of one device: the scratch that they have in common, which is
// ScratchSharing under the climb lock, and the heaps of their pools. Each function takes the lock. Nothing but one load where no pool is a
// member of a group.
#pragma once

#include "ferro/base/mutex.h"
#include "ferro/core/blocks/address_index.h"
#include "ferro/core/device/device_parts.h"
#include "ferro/core/device/ladder.h"
#include "ferro/core/device/reclaimer.h"
#include "ferro/core/device/scratch_sharing.h"

#include <optional>
#include <span>
#include <vector>

namespace ferro {

class GraphScratch {
 public:
  using GroupId = ScratchSharing::GroupId;

  GraphScratch(const DeviceParts& parts, Reclaimer& reclaimer, Ladder& ladder,
               const AddressIndex& addresses, RecursiveMutex& climb_mutex)
      : parts_(parts),
        reclaimer_(reclaimer),
        ladder_(ladder),
        addresses_(addresses),
        climb_mutex_(climb_mutex) {}

  // Does the group lend its scratch (scratch_eviction.h) from now on? Where it does no longer, what
  // serves others comes back, if there is memory. False: it does not lend, and nothing has to come
  // back, so launches need no `begin_launch`.
  bool lend(GroupId group, bool lends) FERRO_EXCLUDES(climb_mutex_);
  // A graph of the group is about to be launched. None: it may be, and `end_launch` follows, also
  // where it fails. Else nothing has to follow: so many bytes are missing to take back what serves
  // others; 0 where it was not for want of memory. Before that free memory of others goes to the
  // driver, live bytes move if they may, and other groups lend. Throws DriverError; a later call
  // tries again.
  std::optional<std::size_t> begin_launch(GroupId group) FERRO_EXCLUDES(climb_mutex_);
  void end_launch() { parts_.eviction.gate().leave(); }

  SharingResult join(GroupId group, const PoolId& pool) FERRO_EXCLUDES(climb_mutex_);
  SharingResult may_join(GroupId group, const PoolId& pool) FERRO_EXCLUDES(climb_mutex_);
  SharingResult leave(const PoolId& pool) FERRO_EXCLUDES(climb_mutex_);
  bool is_in_group(GroupId group, const PoolId& pool) FERRO_EXCLUDES(climb_mutex_);
  GroupBytes bytes_of(GroupId group) FERRO_EXCLUDES(climb_mutex_);
  GroupBytes bytes_if_joined(std::span<const PoolId> pools) FERRO_EXCLUDES(climb_mutex_);
  SharingResult begin_capture(const PoolId& pool) FERRO_EXCLUDES(climb_mutex_);
  std::optional<Lifetime> next_lifetime(const PoolId& pool) FERRO_EXCLUDES(climb_mutex_);
  // `ptr` was allocated while a capture borrows. False: on a page that it borrowed; it is free again.
  bool is_on_own_pages(DevicePtr ptr) FERRO_EXCLUDES(climb_mutex_);
  // `ptr` was allocated in the pool. False: it is not live any more, and another one is to be asked
  // for.
  bool note(const PoolId& pool, DevicePtr ptr) FERRO_EXCLUDES(climb_mutex_);
  // Where memory lacks, free memory of others goes to the driver before it fails.
  SharingResult end_capture(const PoolId& pool, ScratchSharing::Outcome outcome)
      FERRO_EXCLUDES(climb_mutex_);
  // Checkpoints of the pool will be taken (graph/checkpoint.h). False: none can be, as a capture into
  // it borrows or what the last one left alive has no pages of its own.
  bool expect_checkpoints(const PoolId& pool) FERRO_EXCLUDES(climb_mutex_);
  // One was taken; where the host may wait for the device, what a member has got is shared.
  void on_checkpoint(const PoolId& pool) FERRO_EXCLUDES(climb_mutex_);
  // One was restored.
  void on_restore(const PoolId& pool) FERRO_EXCLUDES(climb_mutex_);
  // Are checkpoints of the pool taken?
  bool is_of_tree(const PoolId& pool) FERRO_EXCLUDES(climb_mutex_);
  // DoubledPages::follow.
  AddressRanges follow_moves(const PoolId& pool, AddressRanges ranges) FERRO_EXCLUDES(climb_mutex_);
  // Nobody holds the pool any more.
  void on_unheld(const PoolId& pool) FERRO_EXCLUDES(climb_mutex_);

  // Calls `function(const std::vector<Heap*>&)` with the heaps of one pool, in order of stream and
  // kind; none of them goes meanwhile.
  template <typename Function>
  void with_heaps_of(const PoolId& id, Function function) FERRO_EXCLUDES(climb_mutex_) {
    const RecursiveMutexLock lock(climb_mutex_);
    function(parts_.pools.heaps_of(id));
  }

 private:
  SharingResult refill(GroupId group) FERRO_REQUIRES(climb_mutex_);
  SharingResult refill_group_of(const PoolId& pool) FERRO_REQUIRES(climb_mutex_);

  const DeviceParts& parts_;
  Reclaimer& reclaimer_;
  Ladder& ladder_;
  const AddressIndex& addresses_;
  RecursiveMutex& climb_mutex_;
};

}  // namespace ferro
