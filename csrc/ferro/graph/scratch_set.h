// The handles that the graphs of one group share as scratch (graph_memory.h).
//
// A *user* of a handle is a part of one capture, or everything that was in a pool when it joined.
// The scratch of each user is behind addresses of its own, which are aliased blocks or, while a
// capture runs, borrowed slots of an arena. Users of one handle never run at the same time.
//
// Under the climb lock of the device. Invariants (GraphMemory::check_invariants recounts them):
//  * a handle is behind aliased blocks and borrowed slots alone, at most once for a user;
//  * each handle has a user;
//  * home_pages() == pages of the handles that no arena keeps; home() is the first member that has
//    scratch, null if none has any.
#pragma once

#include "ferro/core/device/pool_table.h"
#include "ferro/core/heap/heap.h"
#include "ferro/core/pages/page_store.h"
#include "ferro/core/policy/scratch_folds.h"
#include "ferro/core/types/pool_id.h"
#include "ferro/driver/types.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <vector>

namespace ferro {

struct GraphPool;

// kOutOfMemory: no handles of its own could be had for what lives or stays. kCapturing: a capture of
// the program forbids to wait for the device. kMember, kNoMember: of a group. kAsleep: the scratch
// of the group is asleep. kBusy: the device did not come to rest, because a library captures or
// because other devices work for too long.
enum class [[nodiscard]] SharingResult{kOk,       kOutOfMemory, kCapturing, kMember,
                                       kNoMember, kAsleep,      kBusy};

using GroupId = std::uint64_t;
using ScratchUser = std::uint64_t;

// Scratch of one user in one arena.
struct ScratchUse {
  ScratchUser user = 0;
  Heap* heap = nullptr;
  AliasedBlock range;
  bool may_fold = true;
  // All its handles are behind addresses of this user too (moved_pages.h).
  std::optional<ScratchUser> doubles = std::nullopt;
  bool is_asleep = false;  // not mapped
};

class ScratchSet {
 public:
  struct Shared {
    std::size_t pages = 0;
    std::set<ScratchUser> users;
    // Only captures into this pool borrow it.
    std::optional<PoolId> only;
    // An arena of this pool owns it and takes it into account; no capture borrows it. Its users are
    // of one graph, which writes there before it writes what it keeps.
    std::optional<PoolId> kept_by;
    // The set has no memory for it: the handle is a number of ours, until it wakes.
    bool is_asleep = false;

    // That the set takes into account.
    std::size_t held_pages() const { return kept_by || is_asleep ? 0 : pages; }
    bool is_used_by(const std::set<ScratchUser>& all) const {
      return std::ranges::includes(all, users);
    }
  };
  using Handles = std::map<PageHandle, Shared>;

  ScratchSet(GroupId group, PageStore& store, PoolTable& pools)
      : group_(group), store_(store), pools_(pools) {}
  ScratchSet(const ScratchSet&) = delete;
  ScratchSet& operator=(const ScratchSet&) = delete;

  GroupId group() const { return group_; }
  void set_group(GroupId group) { group_ = group; }
  const Handles& handles() const { return handles_; }
  Shared& at(PageHandle handle) { return handles_.at(handle); }
  // In the order in which they joined.
  const std::vector<GraphPool*>& members() const { return members_; }
  const GraphPool* home() const { return home_; }
  std::size_t home_pages() const { return home_pages_; }
  std::size_t held_pages() const;

  // Membership alone; mappings stay as they are.
  void add_member(GraphPool& pool, Handles handles);
  // The pool of `lone`, its only member, joins with its handles. `lone` is empty afterwards.
  void take_over(ScratchSet& lone);
  // Maps a new handle behind the scratch of the pool for each handle that other members use, and
  // removes the pool. `*left`: its handles. On failure, also when it throws DriverError, nothing
  // changed. The device is at rest.
  SharingResult separate(GraphPool& pool, Handles* left);

  void add_user(std::span<const HandleRange> handles, ScratchUser user,
                const std::optional<PoolId>& only = std::nullopt);
  void remove_user(std::span<const HandleRange> handles, ScratchUser user);
  // Handles that `user` does not have, that no arena keeps and that `accepts`: see plan_lending.
  std::vector<HandleRange> choose(
      ScratchUser user, std::size_t pages, LastHandle last,
      const std::function<bool(PageHandle, const Shared&)>& accepts) const;
  // Unmaps scratch of graphs that are gone. What the driver refuses stays in `uses`.
  void remove_uses(std::vector<ScratchUse>& uses);
  // Puts handles without a user into the store, and counts the others for the first member that has
  // scratch. Belongs behind every change of users and members.
  void settle_accounts();
  // Unmaps the scratch that lies wholly on handles that the set holds, and releases handles that are
  // behind no address any more. Returns their pages. What the driver refuses to unmap
  // stays. No capture borrows, and the device is at rest.
  std::size_t sleep();
  // Maps new handles in their place. False, also when it throws DriverError: nothing woke.
  bool wake();
  bool is_asleep() const { return is_asleep_; }
  std::size_t asleep_pages() const;
  // Maps the handles of the user with the most scratch behind the scratch of the others, where they
  // fit. With `only` the mappings of this user change, and no others. Where the driver refuses,
  // less is shared. The device is at rest.
  void fold(std::optional<ScratchUser> only = std::nullopt);

 private:
  using Renamed = std::map<PageHandle, PageHandle>;
  template <typename Visit>
  void for_each_use(Visit visit);
  void rename(const Renamed& names);
  void fold_use(ScratchUse& use, std::set<PageHandle>& kept);
  void fold_doubled(GraphPool& pool, const ScratchUse& doubled, std::set<PageHandle>& kept);

  GroupId group_;
  PageStore& store_;
  PoolTable& pools_;
  Handles handles_;
  std::vector<GraphPool*> members_;
  GraphPool* home_ = nullptr;
  std::size_t home_pages_ = 0;
  bool is_asleep_ = false;  // some scratch is not mapped
};

}  // namespace ferro
