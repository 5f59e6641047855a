// What graphs ask of the memory of one device: the scratch that they have in common, which is
// ScratchSharing under the climb lock, and the heaps of their pools. Each function takes the lock. Nothing but one load where no pool is a
// member of a group.
#pragma once

#include "ferro/base/mutex.h"
#include "ferro/core/blocks/address_index.h"
#include "ferro/core/device/device_parts.h"
#include "ferro/core/device/reclaimer.h"
#include "ferro/core/device/scratch_sharing.h"

#include <optional>
#include <span>
#include <vector>

namespace ferro {

class GraphScratch {
 public:
  using GroupId = ScratchSharing::GroupId;

  GraphScratch(const DeviceParts& parts, Reclaimer& reclaimer, const AddressIndex& addresses,
               RecursiveMutex& climb_mutex)
      : parts_(parts), reclaimer_(reclaimer), addresses_(addresses), climb_mutex_(climb_mutex) {}

  SharingResult join(GroupId group, const PoolId& pool) FERRO_EXCLUDES(climb_mutex_);
  SharingResult may_join(GroupId group, const PoolId& pool) FERRO_EXCLUDES(climb_mutex_);
  SharingResult leave(const PoolId& pool) FERRO_EXCLUDES(climb_mutex_);
  bool is_member(const PoolId& pool) FERRO_EXCLUDES(climb_mutex_);
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
    const ObserverSlot::DeliveryAtEnd delivery(parts_.observer);
    function(parts_.pools.heaps_of(id));
  }

 private:
  const DeviceParts& parts_;
  Reclaimer& reclaimer_;
  const AddressIndex& addresses_;
  RecursiveMutex& climb_mutex_;
};

}  // namespace ferro
