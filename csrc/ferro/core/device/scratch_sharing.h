// Graphs that never run at the same time have the pages of their scratch in common.
//
// A capture executes nothing, so memory can be arranged after its lifetimes are known. A pool is a
// *member* of a group, which has one set of handles. While a graph is captured into it, its arenas
// grow by handles of the set that this capture has not got yet, at new addresses; where there are
// not enough, new ones join the set. When the capture has ended,
//  * a handle without a live byte is the graph's scratch: its addresses stay mapped and are never
//    handed out again, and the handle serves the next capture too;
//  * one with a live byte leaves the set; where other graphs have it as scratch it is exchanged for
//    a new one behind the same addresses. Contents do not matter: nothing was executed;
//  * what the capture was given, of the pool's own handles, is retired when it is free.
// So addresses are never shared between graphs, and pages are. A group costs what lives and, of
// each user's scratch, the most: a *user* is one capture, or all that was captured before a pool
// joined.
//
// Of what dies after its capture, whole handles serve later captures of the same pool, as they do
// without a group; they are behind the same addresses for good, as another graph of the pool may
// read there what this one has written. What dies within a capture serves that capture again, at
// other addresses and in the order of the stream on which it died; the capture goes on as one more
// user. A handle of which all users are of that capture may carry what it keeps: it is *kept*, an
// arena of the pool owns it, and nobody is lent it.
//
// A pool that is no member lends nothing, but free pages of it serve its captures at other addresses
// too (doubled_pages.h). When it joins, these are shared where they are free, and fold as one.
//
// With GraphOrder::kAny a pool that nobody declared is alone in a group from its second capture on.
//
// A pool of which checkpoints are taken is a *tree's*. Captures into it borrow nothing, because its
// graphs rely on which memory is free after each. Its whole handles without carried memory
// (policy/carried_memory.h) are shared when it joins a declared group, and after each checkpoint
// those that it has got since.
//
// Belongs to the climb lock of the device. No replay of a member may be in flight while it joins or
// leaves; both wait for the device themselves. Invariants (check_invariants recounts them):
//  * a handle of a set is behind aliased blocks and borrowed slots alone, and at most once for a user;
//  * a handle of a set has a user;
//  * a doubled handle of a pool that is no member's use is its pool's, or serves its captures alone;
//  * pages(id) of the first member of a group that has any == pages of its set - pages that are
//    kept, of others 0.
#pragma once

#include "ferro/core/device/config.h"
#include "ferro/core/device/pool_table.h"
#include "ferro/core/heap/arena_scratch.h"
#include "ferro/core/heap/doubled_pages.h"
#include "ferro/core/pages/scratch_lender.h"
#include "ferro/core/policy/capture_lifetimes.h"
#include "ferro/core/policy/carried_memory.h"
#include "ferro/core/policy/scratch_folds.h"
#include "ferro/core/types/address_ranges.h"
#include "ferro/driver/driver.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

namespace ferro {

// kOutOfMemory: no handles of its own could be had for what lives or stays. kCapturing: a capture
// forbids to wait for the device. kMember, kNoMember: of a group.
enum class [[nodiscard]] SharingResult{kOk, kOutOfMemory, kCapturing, kMember, kNoMember};

struct GroupBytes {
  std::size_t set = 0;      // of the handles of the set, each once
  std::size_t scratch = 0;  // of addresses of scratch, which they are behind

  void add(const GroupBytes& more) {
    set += more.set;
    scratch += more.scratch;
  }
};

class ScratchSharing final : public ScratchLender {
 public:
  using GroupId = std::uint64_t;

  ScratchSharing(DeviceTimeline& timeline, PageStore& store, PoolTable& pools,
                 GraphOrder order = GraphOrder::kCaptured)
      : timeline_(timeline), store_(store), pools_(pools), order_(order) {}

  // What is free in the pool, which its graphs may write, is shared from now on; where the driver
  // fails to map, some of it is not until the pool joins again. Throws DriverError where the host
  // cannot wait for the device; then nothing changed.
  SharingResult join(GroupId group, const PoolId& pool);
  // What `join` would say, but for a device that captures.
  SharingResult may_join(GroupId group, const PoolId& pool) const;
  // The pool gets handles of its own for its scratch; it is a group of its own then, which nobody
  // joins. On failure, also when it throws DriverError, nothing changed.
  SharingResult leave(const PoolId& pool);
  // The pool is a tree's from now on. False: a capture into it borrows now, or what the last one left
  // alive has no pages of its own.
  bool expect_checkpoints(const PoolId& pool);
  bool is_member(const PoolId& pool) const { return members_.contains(pool); }
  bool is_in_group(GroupId group, const PoolId& pool) const {
    const auto member = members_.find(pool);
    return member != members_.end() && member->second.group == group;
  }
  // Made where it is missing; to ask, see `is_of_tree`.
  CarriedMemory& carried_of(const PoolId& pool) { return carried_[pool]; }
  bool is_of_tree(const PoolId& pool) const {
    const auto found = carried_.find(pool);
    return found != carried_.end() && found->second.is_of_tree();
  }
  // Are there members, or graphs that were captured into pools? Without the lock.
  bool any() const { return count_.load(std::memory_order_relaxed) != 0; }
  GroupBytes bytes_of(GroupId group) const;
  // What they would have in common if these pools became a group: whole handles without a live byte.
  // Pools that may not join have none.
  GroupBytes bytes_if_joined(std::span<const PoolId> pools);

  // A capture into the pool begins. Nothing for a pool that is no member. kOutOfMemory: what an
  // earlier one left alive still has none of its own.
  SharingResult begin_capture(const PoolId& pool);
  // What is expected of its next allocation. None: no capture into it runs, or it is no member.
  std::optional<Lifetime> next_lifetime(const PoolId& pool) const;
  // It was given a block. False: a graph of the pool may write there, or, outside of a capture, it has
  // no pages of its own; it is retired.
  bool note(const PoolId& pool, Span& span, DevicePtr ptr);
  // It has ended. kOutOfMemory and DriverError: what it left alive has no pages of its own; the next
  // capture tries again.
  enum class Outcome { kSucceeded, kFailed };
  SharingResult end_capture(const PoolId& pool, Outcome outcome);
  // As long as it lives the end of the pool's capture may be tried again, so `collect` leaves what
  // has died since: the graph writes there.
  class Ending {
   public:
    Ending(ScratchSharing& sharing, const PoolId& pool) : sharing_(sharing) {
      sharing_.ending_ = pool;
    }
    ~Ending() { sharing_.ending_.reset(); }
    Ending(const Ending&) = delete;
    Ending& operator=(const Ending&) = delete;

   private:
    ScratchSharing& sharing_;
  };
  // What an earlier call of `end_capture` could not do.
  SharingResult settle_again(const PoolId& pool, Outcome outcome);
  // Nobody holds the pool: it has no graphs. `collect` takes their scratch away.
  void on_unheld(const PoolId& pool);
  void let_go_of_all();
  // Waits for the device, unless a capture forbids it or there is nothing to collect. Takes also
  // what a capture let go whose end could not be settled, and shares what pools of trees have got.
  void collect();
  // Before pages of the pool go elsewhere: what its graphs may write stays. False: all of it does,
  // for a capture, or until what one left alive is settled, or nothing but its blocks has its pages.
  bool keep_written(const PoolId& pool);
  // Has a graph of the pool pages of what it keeps at other addresses too? They are not exchanged.
  bool keeps_aliased(const PoolId& pool) const;

  const DoubledPages& doubled() const { return doubled_; }

  // Of pools that take their pages into account (class comment).
  std::size_t pages_of(const PoolId& pool) const;
  std::size_t pages() const;
  void check_invariants() const;

  bool lends_to(const PoolId& pool) const override;

 private:
  // ScratchLender.
  std::vector<HandleRange> lend(const PoolId& pool, StreamId stream, std::size_t pages,
                                bool exactly) override;
  void take_back(const PoolId& pool, std::span<const HandleRange> handles) override;
  void adopt(const PoolId& pool, std::span<const HandleRange> handles) override;
  std::vector<HandleRange> let_keep(const PoolId& pool, StreamId stream,
                                    std::size_t pages) override;
  void on_kept(const PoolId& pool, DevicePtr begin, std::size_t bytes) override;
  void take_back_kept(const PoolId& pool, std::span<const HandleRange> handles) override;
  bool moves_within(const PoolId& pool) const override;
  void on_moved(const PoolId& pool, Block* block, std::vector<HandleRange> handles,
                DevicePtr to) override;

  using User = std::uint64_t;
  struct Shared {
    std::size_t pages = 0;
    std::set<User> users;
    // Lent to captures of this pool alone.
    std::optional<PoolId> only;
    // An arena of this pool owns it, and takes it into account; it is lent to nobody. Its users are
    // of one graph, which writes there before it writes what it keeps.
    std::optional<PoolId> kept_by;

    // That the set takes into account.
    std::size_t held_pages() const { return kept_by ? 0 : pages; }
  };
  struct Set {
    std::map<PageHandle, Shared> handles;
    std::vector<PoolId> members;  // in the order in which they joined
    std::optional<PoolId> home;   // that takes the pages into account
    std::size_t home_pages = 0;
  };
  struct Use {
    User user = 0;
    Heap* heap = nullptr;
    ArenaScratch::Aliased range;
    bool may_fold = true;
    // All its handles are behind addresses of this user, too (doubled_pages.h).
    std::optional<User> doubles = std::nullopt;
  };
  struct Member {
    GroupId group = 0;
    std::vector<Use> uses;
    std::vector<Use> gone;          // of graphs that are no more
    std::optional<User> capturing;  // or with live bytes on borrowed handles
    bool is_running = false;
    // Of the capture that runs, with `capturing`: one more each time that what died is lent again.
    std::set<User> users;
    // What it had and does not hold any more serves it again, in the order of one stream.
    std::map<PageHandle, StreamId> died_on;
    AddressRanges given;    // by the capture that runs
    AddressRanges written;  // by graphs that there may be
  };
  struct Remap {
    Use* use;
    std::size_t first;  // of its handles
    std::vector<HandleRange> old;
    std::vector<HandleRange> fresh;
  };

  Set& set_of(const Member& member) { return sets_.at(member.group); }
  template <typename Function>
  void for_each_arena(const PoolId& pool, Function function);
  enum class Folding { kMayFold, kMayNot, kNorServeOtherPools };
  void add_uses(Member& member, std::vector<Use>& to, Heap& heap, User user,
                std::vector<ArenaScratch::Aliased> found, Folding folding);
  enum class Died { kAny, kOfThisGraph };
  void share_what_died_on(StreamId stream, const PoolId& pool, Member& member, std::size_t pages,
                          Died which);
  std::vector<HandleRange> choose(const Member& member, std::size_t pages, LastHandle last,
                                  const std::function<bool(PageHandle, const Shared&)>& accepts);
  void end_users(Member& member);
  void end_first_capture(const PoolId& pool);
  void learn_lifetimes(const PoolId& pool);
  void update_count() {
    count_.store(members_.size() + lifetimes_.size(), std::memory_order_relaxed);
  }
  void add_member(GroupId group, const PoolId& pool, const AddressRanges* written);
  void share_what_died(const PoolId& pool, Member& member);
  SharingResult settle(const PoolId& pool, Member& member);
  enum class News { kShared, kLeft };  // what pools of trees have got
  void collect(News news);
  void take_unsettled(const PoolId& pool, Member& member);
  bool remove_uses(Set& set, std::vector<Use>& uses);
  AddressRanges backed_ranges_of(const PoolId& pool);
  void check_doubled() const;
  bool has_news(const PoolId& pool, const Member& member) const;
  User share_what_is_not_carried(const PoolId& pool, Member& member);
  void fold(Set& set, std::optional<User> only = std::nullopt);
  void fold_use(Set& set, Use& use, std::set<PageHandle>& kept);
  void fold_doubled(Set& set, const Use& doubled, std::set<PageHandle>& kept);
  std::set<PageHandle> staying_handles(const PoolId& pool);
  DevicePtr address_of_handle(const Use& use, std::size_t index) const;
  Status remap_all(std::span<const Remap> remaps);
  void settle_accounts(Set& set);
  void trim(Set& set);

  DeviceTimeline& timeline_;
  PageStore& store_;
  PoolTable& pools_;
  const GraphOrder order_;
  std::map<PoolId, Member> members_;
  std::map<GroupId, Set> sets_;
  std::optional<PoolId> ending_;
  std::map<PoolId, CarriedMemory> carried_;
  DoubledPages doubled_;
  // With kAny: pools that are no members, with a graph that was given pages.
  std::set<PoolId> captured_;
  std::map<PoolId, AddressRanges> given_first_;  // to the first capture into such a pool
  std::map<PoolId, CaptureLifetimes> lifetimes_;
  std::atomic<std::size_t> count_{0};  // of members, and of pools with lifetimes
  User next_user_ = 1;
  static constexpr GroupId kFirstLone = GroupId{1} << 63;
  GroupId next_lone_ = kFirstLone;  // of pools that have left, or that nobody declared
};

AddressRanges live_ranges_of(std::span<Heap* const> heaps);

template <typename Function>
void ScratchSharing::for_each_arena(const PoolId& pool, Function function) {
  for (Heap* heap : pools_.heaps_of(pool)) {
    function(*heap);
  }
}

}  // namespace ferro
