// The blocks of one (pool, stream, size class) of one device: an arena of addresses, whose pages
// come from the device's store and may leave again.
//
// A page leaves in two steps. Whole free handles are set aside: their blocks are in transit, so no
// request gets them; this can be undone. Then they are released: the store has the handles, the
// mapping stays until the epoch in which they were freed has passed (StaleMappings), and afterwards
// the addresses are a gap.
//
// Thread-safe: every public function takes the heap's lock, and waits for nothing while it holds
// it. Mappings are made and removed without it. There are three kinds of functions:
//  - the hit path (`allocate_hit`, `free`) calls the driver only to free a block that other streams
//    use, and takes host memory only in chunks, for many blocks at a time;
//  - steps of a climb. The device runs them one at a time;
//  - queries.
//
// Invariants (check_invariants recounts them, between climbs):
//  * those of BlockTiling;
//  * a block that is a gap, in transit or aliased is backed by no own or borrowed handle of the
//    heap; every other block is backed wholly. Only backed blocks are handed out;
//  * backed bytes == live + pending + free + retired + asleep bytes; a live block on a
//    handle that is asleep has `extra`;
//  * the counters equal the recount of the blocks;
//  * a handle backs addresses of one heap, or is in the store, or is of a scratch set and may back
//    several addresses. The handles of an exported unit back its addresses; no other handle was
//    exported;
//  * reserved bytes <= address_budget(most bytes mapped at one time), except for spans that one
//    request needed or that live blocks keep, and the first span of a pool that no graph uses
//    (policy/span_sizes.h).
#pragma once

#include "ferro/base/biased_mutex.h"
#include "ferro/core/blocks/block_tiling.h"
#include "ferro/core/heap/exported_units.h"
#include "ferro/core/heap/heap_context.h"
#include "ferro/core/heap/views.h"
#include "ferro/core/policy/relocation.h"
#include "ferro/core/policy/report.h"
#include "ferro/core/policy/scratch_folds.h"
#include "ferro/core/policy/span_sizes.h"
#include "ferro/core/stats/pool_bytes.h"
#include "ferro/core/streams/pending_frees.h"
#include "ferro/core/types/address_ranges.h"
#include "ferro/core/types/heap_kind.h"
#include "ferro/core/types/sleep.h"

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

using HeapLock = BiasedSpinLock;

// The pages with which an arena grows. Own pages are whole free handles elsewhere in the same
// arena.
enum class GrowFrom {
  kOwnPages,
  kIdlePages,    // and those of the store that are ready
  kAnyPages,     // and new ones
  kWaitedPages,  // and, before new ones, those for whose epochs this heap's stream can wait
  kStore,        // of the store and new ones, exactly as many as needed; no own pages
};
// kGapTooShort: the gaps that fit the request have no room for the handles at hand, and other gaps
// would need more handles. kNoAddresses: no range of addresses is available.
enum class [[nodiscard]] GrowResult{kGrown,       kTooFewPages, kOverLimit,  kRejected,
                                    kOutOfMemory, kGapTooShort, kNoAddresses};

// Which free pages are released, by the epoch in which they were freed.
enum class ReleaseAfter {
  kPassed,      // those whose epoch has passed
  kStreamWait,  // also those for whose epoch the requester's stream can wait
  kHostWait,    // all, after the host has waited for their epochs
  kIdle,        // all, if the device has finished its work and no capture runs, else none
};

class Heap final : public MappingOwner {
 public:
  // `pool_bytes` counts what the pool holds and outlives the heap; null: nothing is counted.
  Heap(const HeapContext& context, PoolId pool, StreamId stream, HeapKind kind = HeapKind::kPages,
       PoolBytes* pool_bytes = nullptr);
  // Requires `is_empty()`. Releases the addresses.
  ~Heap();
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  StreamId stream() const { return stream_; }
  PoolId pool() const { return pool_; }
  HeapKind kind() const { return kind_; }
  DeviceId device() const { return context_.driver.device(); }
  // Whether the stream is known to last as long as the process. Otherwise only its own requests may
  // touch it, because it may have been destroyed.
  bool stream_lasts() const { return stream_lasts_.load(std::memory_order_relaxed); }
  void set_stream_lasts(bool lasts) { stream_lasts_.store(lasts, std::memory_order_relaxed); }

  // `ptr` lies in `span`, a span of this heap. kNotLive: no live block starts there; nothing
  // changed.
  FreeResult free(Span& span, DevicePtr ptr, const CallContext& context = nullptr)
      FERRO_EXCLUDES(mutex_);
  // Records that another stream uses a live block; its memory is not reused before that stream is
  // done. No-op for the heap's own stream. False: no live block starts at `ptr`.
  bool record_stream(Span& span, DevicePtr ptr, StreamId stream) FERRO_EXCLUDES(mutex_);
  // Frees pending blocks whose uses are complete. Queries the driver, does not wait. True if some
  // block was freed.
  bool collect_pending() FERRO_EXCLUDES(mutex_);
  // The host waits until only blocks that running captures defer are pending.
  void wait_for_pending() FERRO_EXCLUDES(mutex_);
  bool has_pending() FERRO_EXCLUDES(mutex_);

  // For checkpoints. `live` is in order of address, as from `live_blocks_of`. Whether it can be
  // restored: nothing is pending, and every range of it is still backed here.
  bool can_restore(const std::vector<BlockView>& live) FERRO_EXCLUDES(mutex_);
  // Frees every live block and appends it to `freed`; then makes exactly `live` live again, at the
  // same addresses. Called right after can_restore(live) returned true.
  void restore_live(const std::vector<BlockView>& live, std::vector<BlockView>* freed)
      FERRO_EXCLUDES(mutex_);
  // Whether another stream uses some live block outside of captures.
  bool has_recorded_uses() FERRO_EXCLUDES(mutex_);
  // The bytes of live and pending blocks of one class; a recent value.
  std::int64_t active_bytes(StatClass cls) const {
    return stats_.current(&ClassStats::bytes, cls) +
           stats_.current(&ClassStats::pending_bytes, cls);
  }
  // The bytes that own handles back, without those asleep. Changes only under the climb lock, which
  // the caller holds.
  std::size_t backed_bytes() const FERRO_NO_THREAD_SAFETY_ANALYSIS {
    return (tiling_.backed_pages() - tiling_.scratch().borrowed_pages - tiling_.sleep().pages) *
           page_bytes_;
  }
  // The bytes of handles that are asleep; likewise.
  std::size_t asleep_bytes() const FERRO_NO_THREAD_SAFETY_ANALYSIS {
    return tiling_.sleep().pages * page_bytes_;
  }
  // Whether no block is live or pending, and it has no pages and no old mapping.
  bool is_empty() FERRO_EXCLUDES(mutex_);

  // The live block that starts at `ptr`, or that contains it, if any.
  std::optional<BlockView> live_block_at(Span& span, DevicePtr ptr) FERRO_EXCLUDES(mutex_);
  std::optional<BlockView> live_block_around(Span& span, DevicePtr ptr) FERRO_EXCLUDES(mutex_);
  // O(blocks).
  std::vector<SegmentView> segments() FERRO_EXCLUDES(mutex_);
  void visit_live(const VisitLive& visit) FERRO_EXCLUDES(mutex_);
  // O(log blocks).
  HeapView view() FERRO_EXCLUDES(mutex_);
  // Adds the free bytes on handles that also hold other bytes. O(free blocks).
  void add_stranded(StrandedBytes& sum) FERRO_EXCLUDES(mutex_);
  // Adds the bytes of the handles on which each tag has live bytes. O(blocks).
  void add_reserved_by_tag(TagBytes& sum) FERRO_EXCLUDES(mutex_);
  // Throws InternalError on the first violation. O(blocks).
  void check_invariants() FERRO_EXCLUDES(mutex_);

  HeapList::Links& links() { return links_; }
  // Leaves a list of the context if its condition does not hold any more. True: it has left.
  bool leave(const HeapList& list) FERRO_EXCLUDES(mutex_);

  // Hit path. kNull: no free block fits without a step of the ladder.
  DevicePtr allocate_hit(std::size_t size, std::size_t requested, const CallContext& context)
      FERRO_EXCLUDES(mutex_) {
    const HeapLock lock(mutex_);
    return take_best_fit(size, requested, context);
  }
  DevicePtr allocate_hit(const Request& request) FERRO_EXCLUDES(mutex_) {
    return allocate_hit(request.size, request.requested, request.context);
  }

  // Steps of a climb. kNull: the step did not help. DriverError: nothing is lost.
  DevicePtr allocate_collected(const Request& request) FERRO_EXCLUDES(mutex_);
  // Backs a gap with pages. On failure the arena is unchanged, except that whole free handles may
  // have gone to the store. Own pages move only if their epoch has passed or the heap's stream is
  // ordered behind it. `*out` is written on kGrown only.
  GrowResult allocate_grown(const Request& request, GrowFrom from, DevicePtr* out)
      FERRO_EXCLUDES(mutex_);
  // The heap's stream waits for the uses of pending blocks one by one, and the search is repeated
  // after each: first those that are large enough, then all in the order of their frees. Stops
  // after `at_most` bytes; the last block may exceed them. The host does not wait.
  DevicePtr allocate_after_stream_wait(const Request& request, std::size_t at_most)
      FERRO_EXCLUDES(mutex_);
  // The host waits for pending events one by one, and the search is repeated after each.
  DevicePtr allocate_waited(const Request& request) FERRO_EXCLUDES(mutex_);
  // Allocates at exactly `ptr`. Gaps get pages from the store. A null `ptr` in the result: some
  // byte is in use or not of this heap, or memory is short; nothing is allocated.
  BlockView allocate_at(DevicePtr ptr, const Request& request) FERRO_EXCLUDES(mutex_);

  // Reserves the addresses of a range that overlaps no heap. False: some are taken.
  bool try_reserve_at(DevicePtr ptr, std::size_t bytes) FERRO_EXCLUDES(mutex_);

  // The bytes of pending blocks that a stream wait would free; 0 in private pools.
  std::size_t reclaimable_by_stream_wait() FERRO_EXCLUDES(mutex_);
  // This heap's stream waits for the uses of all its pending blocks; the host does not. Does not
  // wait if the stream may be gone. True: some are free now.
  bool stream_wait_for_pending() FERRO_EXCLUDES(mutex_);

  // Whether free pages stay behind their addresses, because graphs replay on them. Those of a
  // private pool without graphs move within the pool. Requires the climb lock.
  bool keeps_pages() const {
    return pool_ != kDefaultPool &&
           (context_.graphs == nullptr || context_.graphs->keeps_pages(pool_));
  }
  // Whether its stream captures, and so cannot wait for others.
  bool is_capturing();
  // Makes its stream wait for the epoch, so that memory freed by then may move here. The host does
  // not wait. False: a capture forbids it. The stream must exist: it lasts, or the program requests
  // memory on it.
  bool order_behind(Epoch epoch) {
    const bool ordered = context_.timeline.order_before(epoch, stream_);
    if (ordered && stream_lasts()) {
      ordered_behind_ = std::max(ordered_behind_, epoch);
    }
    return ordered;
  }
  // What this arena requests from the store. The stream waits only for pages that left this arena,
  // and only if the request allows it.
  PageRequest page_request(const Request& request, std::size_t pages) const {
    PageRequest wanted;
    wanted.pages = pages;
    if (pool_ == kDefaultPool) {
      wanted.taker = this;
      wanted.behind = behind();
      wanted.waits_for_own = request.stream_may_wait ? std::optional(stream_) : std::nullopt;
    }
    return wanted;
  }
  // Releases at least `wanted` whole free pages to the store, as far as there are; the last handle
  // may exceed them. Returns their number. 0 while a capture forbids the wait; without a wait of
  // the host also if the heap `keeps_pages()`, or for a stream wait in a private pool. After a wait
  // of the host, free exported units go too, to the driver. DriverError: nothing was released.
  std::size_t release_pages(std::size_t wanted, ReleaseAfter after,
                            const CallContext& context = nullptr) FERRO_EXCLUDES(mutex_);
  // The number of pages that `release_pages` would release. The search ends at `at_most`.
  std::size_t releasable_pages(std::size_t at_most, ReleaseAfter after) FERRO_EXCLUDES(mutex_);
  // Pages of whole free handles. O(free blocks of a page and more).
  std::size_t free_pages() FERRO_EXCLUDES(mutex_);
  // The number of pages that a request would take from the store or the driver now. `from`: kStore,
  // if no page of the arena moves; else kAnyPages.
  std::size_t pages_missing_for(const Request& request, GrowFrom from) FERRO_EXCLUDES(mutex_);
  // Pages moved within the arena since construction.
  std::uint64_t pages_moved() const { return pages_moved_.load(std::memory_order_relaxed); }
  // Releases spans without pages. Returns their bytes of addresses.
  std::size_t release_empty_spans() FERRO_EXCLUDES(mutex_);

  // Exports the handles behind the live block that contains `ptr` to other processes. They stay in
  // place while any block lies on them. Does not wait. `*out` is written on kOk only. DriverError:
  // nothing changed.
  ExportResult export_block(Span& span, DevicePtr ptr, SharedRange* out) FERRO_EXCLUDES(mutex_);

  // Pins (`by` 1) or unpins (-1) the handles behind a range of addresses. Pinned handles stay, even
  // without blocks, until they are unpinned as often. O(handles behind the range). False: some of
  // the range has no page; nothing changed.
  bool change_pins(const Span& span, DevicePtr begin, std::size_t bytes, int by)
      FERRO_EXCLUDES(mutex_);

  // Grants a peer access to all pages that the arena has now.
  void grant(DeviceId to) FERRO_EXCLUDES(mutex_);

  void on_mapping_removed(Block* block) override FERRO_EXCLUDES(mutex_);

  // Scratch of graphs: borrowed handles without live bytes, and memory that graphs have freed
  // (graph/graph_memory.h). The caller holds the climb lock.

  // A handle and the first address that it backs.
  struct PlacedHandle {
    DevicePtr begin{};
    HandleRange range;
  };
  // The borrowed handles.
  std::vector<PlacedHandle> borrowed() FERRO_EXCLUDES(mutex_);
  bool is_borrowed(const Span& span, DevicePtr ptr, std::size_t bytes) FERRO_EXCLUDES(mutex_);
  // Turns borrowed handles that are wholly free into aliased blocks.
  std::vector<AliasedBlock> alias_borrowed() FERRO_EXCLUDES(mutex_);
  // The same for accepted handles, from the shortest runs on, until they have `wanted` pages; the
  // last handle may exceed them. Skips runs beside a gap that is growing.
  std::vector<AliasedBlock> alias_some_borrowed(std::size_t wanted,
                                                const std::function<bool(PageHandle)>& accepts)
      FERRO_EXCLUDES(mutex_);
  // Makes the heap the owner of the borrowed handle at `begin`.
  void keep_borrowed(DevicePtr begin) FERRO_EXCLUDES(mutex_);
  // Replaces the mapped handles by `fresh` at the same addresses. The contents are lost, so no work
  // may use them. On failure, also when it throws, the old handles are mapped again. InternalError:
  // the driver refused that.
  Status remap(DevicePtr begin, std::span<const HandleRange> old,
               std::span<const HandleRange> fresh) FERRO_EXCLUDES(mutex_);
  // Records such a replacement of the borrowed handle at `begin`; the heap owns `fresh`.
  void exchange_borrowed(DevicePtr begin, std::span<const HandleRange> fresh)
      FERRO_EXCLUDES(mutex_);
  // Undoes an allocation that was just made, which does not count then. Observers see both.
  void undo_allocation(Span& span, DevicePtr ptr) FERRO_EXCLUDES(mutex_);
  AddressRanges backed_ranges() FERRO_EXCLUDES(mutex_);
  // Retires the free memory of these addresses, or makes all retired memory free again.
  void retire_free(const AddressRanges& written) FERRO_EXCLUDES(mutex_);
  void unretire_all() FERRO_EXCLUDES(mutex_);
  // Turns own handles that are wholly free, and some of whose bytes are retired, into aliased
  // blocks. The caller owns the handles. Here and below, handles in `but` are skipped.
  std::vector<AliasedBlock> alias_retired(const std::set<PageHandle>& but = {})
      FERRO_EXCLUDES(mutex_);
  // The same for own handles that are wholly free and outside of these ranges.
  std::vector<AliasedBlock> alias_free_outside(const AddressRanges& ranges,
                                               const std::set<PageHandle>& but)
      FERRO_EXCLUDES(mutex_);
  // The pages of the handles that `alias_free_outside` would find, as runs of adjacent handles.
  HandleRuns runs_of_free_handles(const AddressRanges& outside, const std::set<PageHandle>& but)
      FERRO_EXCLUDES(mutex_);
  std::set<PageHandle> own_handles() FERRO_EXCLUDES(mutex_);
  // Own handles with only free or retired memory.
  std::set<PageHandle> free_handles() FERRO_EXCLUDES(mutex_);
  // Unmaps an aliased block that no graph uses any more. False: the driver refused, and some of it
  // is still mapped.
  bool remove_alias(Block* block) FERRO_EXCLUDES(mutex_);
  // The same, but its addresses stay, for `map_alias`.
  bool unmap_alias(const Block& block) FERRO_EXCLUDES(mutex_);
  // On failure nothing is mapped there.
  Status map_alias(const Block& block, std::span<const HandleRange> handles) FERRO_EXCLUDES(mutex_);

  // Sleep (arena_sleep.cpp; device/sleeper.h). The caller holds the climb lock.

  // The addresses of a handle that sleeps, with the handle behind them, or kNoPage, and the parts
  // that are in use, whose contents are kept.
  struct Asleep {
    DevicePtr begin{};
    HandleRange range;
    std::vector<PageRun> used = {};
  };
  // Puts to sleep each own handle that has memory of `which` in use and no other, or none in use
  // while graphs replay on it and `which` has its pool. Handles in `shared` are behind other
  // addresses too, and stay. Adds what stays to `staying`. No request gets memory of these handles
  // any more, and no free returns it, until they wake. They are still mapped.
  std::vector<Asleep> fall_asleep(const SleepFilter& which, const std::set<PageHandle>& shared,
                                  StayingBytes& staying) FERRO_EXCLUDES(mutex_);
  // The handles that are asleep and have memory of `which` in use, or none in use while graphs
  // replay on them and `which` has the pool; in order of address.
  std::vector<Asleep> sleeping(const SleepFilter& which) FERRO_EXCLUDES(mutex_);
  // Handles that are asleep and have no memory in use need none any more if no graph of the pool
  // exists: their addresses become gaps. Returns the first address of each.
  std::vector<DevicePtr> forget_asleep() FERRO_EXCLUDES(mutex_);
  // Whether some of the block that contains `ptr` is asleep.
  bool is_asleep(Span& span, DevicePtr ptr) FERRO_EXCLUDES(mutex_);
  // Maps handles one after the other to addresses of the arena that are in transit, aliased or
  // asleep. On failure nothing is mapped there.
  Status map(DevicePtr begin, std::span<const HandleRange> handles) FERRO_EXCLUDES(mutex_);
  // The handle that began at `begin` wakes: these, which are mapped there, replace it. `reason`: for
  // observers.
  void wake(DevicePtr begin, std::span<const HandleRange> handles, const char* reason)
      FERRO_EXCLUDES(mutex_);

 private:
  DevicePtr take_best_fit(std::size_t size, std::size_t requested, const CallContext& context)
      FERRO_REQUIRES(mutex_);
  DevicePtr take_best_fit(const Request& request) FERRO_REQUIRES(mutex_) {
    return take_best_fit(request.size, request.requested, request.context);
  }
  // `block` is in no index.
  DevicePtr mark_live(Block* block, std::size_t requested, const CallContext& context)
      FERRO_REQUIRES(mutex_) {
    context_.stats.note_activity(&stats_, claim_countdown_);
    block->state = BlockState::kLive;
    block->requested = requested;
    if (pool_ != kDefaultPool) [[unlikely]] {
      block->freed = context_.timeline.now();  // until it is freed: when it was handed out
    }
    stats_.on_allocate(static_cast<std::int64_t>(block->size),
                       static_cast<std::int64_t>(requested));
    if (is_observed()) [[unlikely]] {
      notify_allocation(block, context);
    }
    return block->ptr;
  }
  DevicePtr mark_live(Block* block, const Request& request) FERRO_REQUIRES(mutex_) {
    return mark_live(block, request.requested, request.context);
  }
  bool collect_locked() FERRO_REQUIRES(mutex_);
  // Frees blocks that need no wait. If there are none, the host waits for the next event, if any.
  // False: neither.
  bool wait_for_next() FERRO_EXCLUDES(mutex_);
  template <typename Step>
  bool complete_ready(Step step) FERRO_REQUIRES(mutex_);
  void list_free_pages() FERRO_REQUIRES(mutex_);

  bool is_observed() const { return context_.observer.get() != nullptr; }
  void notify_allocation(Block* block, const CallContext& context) FERRO_REQUIRES(mutex_);
  void notify(Block& block, MemoryEvent what, const CallContext& context) FERRO_REQUIRES(mutex_);
  void notify_of_range(DevicePtr begin, std::size_t bytes, MemoryEvent what,
                       const CallContext& context, const RangeFacts& facts = {})
      FERRO_REQUIRES(mutex_);
  void count_pool_bytes(StatClass cls, std::int64_t change) {
    if (pool_bytes_ != nullptr) {
      pool_bytes_->change(cls, change);
    }
  }
  void forget_mapping(DevicePtr begin, std::size_t bytes) FERRO_REQUIRES(mutex_);
  static BlockView view_of(const Block& block);
  static Block* live_around(const Span& span, DevicePtr ptr);

  Epoch stamp_of_free(const Block& block) FERRO_REQUIRES(mutex_);
  void complete_free(Block* block, const CallContext& context) FERRO_REQUIRES(mutex_);
  void complete_pending(const std::vector<Block*>& ready) FERRO_REQUIRES(mutex_);
  FreeResult free_slow(Block* block, const CallContext& context) FERRO_REQUIRES(mutex_);
  void insert_free(Block* block) FERRO_REQUIRES(mutex_);

  // The most holes considered for one request beyond those that suffice.
  static constexpr std::size_t kMaxCandidates = 64;
  static constexpr Epoch kAnyEpoch = ~Epoch{0};

  // Whole free handles in transit, still behind their addresses.
  struct SetAside {
    std::vector<Hole> holes;  // `block` is the run
    std::vector<HandleRange> handles;
    Epoch freed = kUnused;  // the latest of the blocks
  };
  // A gap in transit that will get pages.
  struct Growth {
    Block* gap = nullptr;
    GrowthPlan plan;
    SetAside own;
    Epoch behind = kUnused;  // the stream must be behind it, to use `own` and the gap's neighbours
  };

  // Growing (arena_growth.cpp).
  GrowResult grow(const Request& request, std::size_t spare, GrowFrom from, DevicePtr* out)
      FERRO_EXCLUDES(mutex_);
  GrowResult grow_with(const Request& request, std::size_t spare, GrowFrom from, Span** added,
                       DevicePtr* out) FERRO_EXCLUDES(mutex_);
  GrowResult begin_growth(const Request& request, std::size_t spare, GrowFrom from, Growth& growth)
      FERRO_REQUIRES(mutex_);
  Epoch usable_until(const Request& request) FERRO_REQUIRES(mutex_);
  static Epoch neighbours_freed(const Block& gap);
  static PageRun usable_around(const Block& block, Epoch until);
  std::optional<GrowthPlan> plan(const Request& request, std::size_t spare, Epoch until,
                                 std::vector<Block*>& gaps) FERRO_REQUIRES(mutex_);
  std::vector<Hole> movable(std::size_t wanted, const Block* gap, Epoch until)
      FERRO_REQUIRES(mutex_);
  // `*served`: the block that serves the request, if it still fits. Null: none is handed out.
  GrowResult fill(Growth& growth, const Request& request, GrowFrom from, DevicePtr* served)
      FERRO_EXCLUDES(mutex_);
  TakeResult take_missing(const Request& request, std::size_t missing, GrowFrom from,
                          std::vector<StoredHandle>& out) FERRO_EXCLUDES(mutex_);
  // Memory that is expected to survive its capture gets own pages.
  bool borrows() const { return kind_ != HeapKind::kKeptPages && is_captured_into(); }
  bool is_captured_into() const {
    return context_.graphs != nullptr && context_.graphs->borrows(pool_);
  }
  // Whether own pages may serve the running capture at further addresses.
  bool moves_within_capture() const {
    return context_.graphs != nullptr && context_.graphs->moves_within(pool_);
  }
  void undo_growth(Growth& growth) FERRO_EXCLUDES(mutex_);
  std::size_t least_span() const { return std::max(kSpanAlignment, page_bytes_); }
  bool is_short_of_addresses(std::size_t needed) FERRO_EXCLUDES(mutex_);
  Span* add_span(std::size_t at_least) FERRO_EXCLUDES(mutex_);
  Span* add_span(DevicePtr base, std::size_t bytes) FERRO_EXCLUDES(mutex_);
  void release_if_empty(Span* span) FERRO_EXCLUDES(mutex_);
  std::unique_ptr<Span> detach_if_empty(Span& span) FERRO_REQUIRES(mutex_);
  void unreserve(std::unique_ptr<Span> span) FERRO_EXCLUDES(mutex_);
  // The stream's later work runs behind this epoch.
  Epoch behind() const {
    return std::max(context_.timeline.passed(), stream_lasts() ? ordered_behind_ : kUnused);
  }
  ArenaAddresses addresses() const FERRO_REQUIRES(mutex_) {
    return {tiling_.reserved_bytes(), tiling_.backed_pages() * page_bytes_};
  }

  // Pages that leave (arena_release.cpp).
  std::vector<Hole> candidates(std::size_t wanted, const Block* gap, Epoch freed_by = kAnyEpoch)
      FERRO_REQUIRES(mutex_);
  std::size_t pages_of(const std::vector<Hole>& holes) const;
  std::vector<Hole> choose(const std::vector<Hole>& candidates, std::size_t wanted) const
      FERRO_REQUIRES(mutex_);
  std::vector<Hole> free_exports(Epoch freed_by = kAnyEpoch) FERRO_REQUIRES(mutex_);
  SetAside set_aside(const std::vector<Hole>& chosen) FERRO_REQUIRES(mutex_);
  void restore(SetAside& aside) FERRO_REQUIRES(mutex_);
  // Handles for the store, and the mappings that stay for now. `hand_to_store` follows, without the
  // lock.
  struct Left {
    std::vector<StoredHandle> handles;
    std::vector<StoredHandle> exported;
    std::vector<std::uint64_t> exported_ids;
    std::vector<StaleMappingRef> mappings;
  };
  Left leave(SetAside& aside, const char* reason, const CallContext& context)
      FERRO_REQUIRES(mutex_);
  // The pages serve at other addresses too, and stay mapped here.
  std::vector<AliasedBlock> alias(SetAside& aside) FERRO_REQUIRES(mutex_);
  void notify_moved(std::vector<AliasedBlock> all, DevicePtr to) FERRO_EXCLUDES(mutex_);
  enum class MovedHandles { kFree, kMapped };  // elsewhere already
  void hand_to_store(Left left, MovedHandles moved) FERRO_EXCLUDES(mutex_);
  std::optional<Epoch> latest_release(ReleaseAfter after) const;
  bool wait_for_release(Epoch freed, ReleaseAfter after) FERRO_EXCLUDES(mutex_);

  // Scratch of graphs (arena_scratch.cpp, arena_scratch_mappings.cpp).
  void collect_quietly() FERRO_REQUIRES(mutex_);
  static bool is_all_free(const Span& span, DevicePtr begin, DevicePtr end);
  struct BorrowedRun {
    DevicePtr begin{};
    std::vector<HandleRange> handles;
  };
  std::vector<BorrowedRun> free_borrowed_runs(std::span<const PlacedHandle> borrowed)
      FERRO_REQUIRES(mutex_);
  AliasedBlock alias_run(BorrowedRun run) FERRO_REQUIRES(mutex_);
  template <typename Accepts>
  std::vector<PlacedHandle> handles_under(Accepts accepts) FERRO_REQUIRES(mutex_);
  std::vector<PlacedHandle> free_handles_outside(const AddressRanges& ranges,
                                                 const std::set<PageHandle>& but)
      FERRO_REQUIRES(mutex_);
  std::vector<AliasedBlock> alias_own(std::span<const PlacedHandle> handles) FERRO_REQUIRES(mutex_);

  // Sleep (arena_sleep.cpp).
  struct Use;
  Use use_of_handle(const Block* first, DevicePtr begin, DevicePtr end,
                    const SleepFilter& which) const;
  std::optional<StayReason> reason_to_stay(const Span& span, DevicePtr begin,
                                           const std::set<PageHandle>& shared)
      FERRO_REQUIRES(mutex_);

  // Exports (arena_exports.cpp).
  struct Unit {
    DevicePtr begin;
    ExportedUnit unit;
  };
  // The handles behind a range, in order of address; empty if no handle is behind some page of it.
  // The first and the last may reach beyond it.
  std::vector<Unit> units_of(const Span& span, DevicePtr begin, std::size_t bytes)
      FERRO_REQUIRES(mutex_);
  // Whether some are borrowed. A borrowed handle may be replaced when the capture ends.
  static bool is_any_borrowed(const Span& span, std::span<const Unit> units);
  void check_exports() FERRO_REQUIRES(mutex_);

  BiasedSpinMutex mutex_;
  const HeapContext context_;
  const PoolId pool_;
  const StreamId stream_;
  const HeapKind kind_;
  const std::size_t page_bytes_;
  BlockTiling tiling_ FERRO_GUARDED_BY(mutex_);
  HeapStats stats_;  // written under mutex_, read by DeviceStats without
  int claim_countdown_ FERRO_GUARDED_BY(mutex_) = 0;
  std::atomic<bool> stream_lasts_{true};
  PendingFrees pending_ FERRO_GUARDED_BY(mutex_);
  PoolBytes* const pool_bytes_;  // changes while the device's climb lock is held
  HeapList::Links links_;
  std::size_t used_outside_captures_ FERRO_GUARDED_BY(mutex_) = 0;  // live blocks
  // The calls that mapped ranges which they filled, by the first address, for views.
  std::map<DevicePtr, CallContext> mapped_by_ FERRO_GUARDED_BY(mutex_);
  ExportedUnits exported_ FERRO_GUARDED_BY(mutex_);
  // The handles that are asleep, by their first address: the parts that were retired.
  std::map<DevicePtr, std::vector<PageRun>> asleep_ FERRO_GUARDED_BY(mutex_);
  std::set<DevicePtr> unmapped_aliases_ FERRO_GUARDED_BY(mutex_);  // see `unmap_alias`
  std::atomic<std::uint64_t> pages_moved_{0};                      // written by climbs
  Epoch ordered_behind_ = kUnused;  // of its stream; under the climb lock
};

// The live blocks in order of address. O(blocks).
std::vector<BlockView> live_blocks_of(Heap& heap);

// Frees the blocks that `step` appends to its argument, even if it throws.
template <typename Step>
bool Heap::complete_ready(Step step) {
  std::vector<Block*> ready;
  bool result = false;
  try {
    result = step(ready);
  } catch (...) {
    complete_pending(ready);
    throw;
  }
  complete_pending(ready);
  return result;
}

}  // namespace ferro
