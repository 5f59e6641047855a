// Scratch of idle graphs serves requests that would fail, where a group lends it (ADR 34).
//
// What a graph had in its scratch need not outlast its replay. So the handles of a set can be
// *evicted*: unmapped from behind all addresses of scratch, which stay reserved and known, and given
// to the store. Before the next launch the set is *refilled*: other handles of as many pages come
// behind the same addresses. What carries anything that lives, is kept, or died after its capture is
// not evicted: another graph of the pool may read the last.
//
// A launch through us is `begin_launch`, the launch, `end_launch`. Either it comes before an
// eviction, which waits for it and then for the device, or it finds the set incomplete and refills
// it. One that goes another way meets addresses without memory, and never what is others'.
//
// Locks: all of it is under the climb lock of the device, but the gate and `is_any_incomplete`. An
// eviction has the climb lock and closes the gate; no launch takes the climb lock while it is under
// way on behalf of this class. One that takes it all the same, or Python's, delays an eviction by
// AllocatorConfig::longest_launch at most, which then does not happen.
//
// Whoever changes a group refills it first: who joins, leaves or captures. Deleting graphs does not.
//
// Invariants: where a handle is evicted, or addresses of a use of a graph that exists are absent
// (ArenaScratch), the group is incomplete; an evicted handle is in no other state, has users and is
// not counted as the set's.
#pragma once

#include "ferro/core/device/scratch_sharing.h"
#include "ferro/core/streams/launch_gate.h"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <vector>

namespace ferro {

class ScratchEviction {
 public:
  using GroupId = ScratchSharing::GroupId;
  static constexpr GroupId kNoGroup = ~GroupId{0};

  ScratchEviction(ScratchSharing& sharing, std::chrono::milliseconds longest_launch)
      : sharing_(sharing), longest_launch_(longest_launch) {}

  void set_lends(GroupId group, bool lends);
  // The host waits for the device. Pages that are in the store then: those of whole groups
  // (plan_evictions) that together have `wanted`, or none; of no member of `but`. None where
  // somebody launches, or a capture is seen on one of `known`. Throws DriverError where the host
  // cannot wait; then nothing changed. What the driver refuses to unmap stays.
  std::size_t evict(std::size_t wanted, const std::vector<StreamId>& known, GroupId but);
  // Of the store's handles and new ones. kOutOfMemory: nothing changed, or, where the driver refused
  // to map, the set has its handles and not yet all of their addresses, also after a DriverError.
  // The host does not wait.
  SharingResult refill(GroupId group);
  std::optional<GroupId> group_of(const PoolId& pool) const;
  bool is_incomplete(GroupId group) const { return incomplete_.contains(group); }
  // Without the lock.
  bool is_any_incomplete() const { return any_incomplete_.load(std::memory_order_relaxed); }
  std::size_t evicted_pages(GroupId group) const;
  // Of declared groups that do not lend.
  std::size_t pages_not_lent() const;
  LaunchGate& gate() { return gate_; }
  void check_invariants() const;

 private:
  using Set = ScratchSharing::Set;
  using Use = ScratchSharing::Use;

  Set* find(GroupId group) const;
  static bool may_leave(const ScratchSharing::Shared& shared) {
    return shared.held_pages() != 0 && !shared.only;
  }
  // Those of a set that may be evicted; none while what a capture left alive has no pages yet.
  std::size_t idle_pages(const Set& set) const;
  std::size_t evict_all(Set& set);
  void drop_absent(Set& set);
  SharingResult take_fresh(Set& set);
  SharingResult map_absent(Set& set);
  void set_incomplete(GroupId group, bool incomplete);
  // Calls `function(begin, handles)` for each longest run of handles of the use with
  // `accepts(begin, handle)`.
  template <typename Accepts, typename Function>
  void for_each_run(const Use& use, Accepts accepts, Function function) const;

  ScratchSharing& sharing_;
  const std::chrono::milliseconds longest_launch_;
  LaunchGate gate_;
  std::set<GroupId> lending_;
  std::set<GroupId> incomplete_;
  std::atomic<bool> any_incomplete_{false};
};

}  // namespace ferro
