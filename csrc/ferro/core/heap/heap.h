// The blocks of one (pool, stream, size class) of one device: an arena of addresses, whose pages come
// from the device's store and may leave again.
//
// There is one way for a page to leave. Whole free handles are set aside: their blocks are in
// transit, so no request gets them. Then they are released: the store has the handles, the mapping
// stays until the epoch in which they were freed has passed (StaleMappings), and then the addresses
// are a gap. Until the release, setting aside can be undone.
//
// Thread-safe: every public function takes the heap's lock itself, and waits for nothing while it
// holds it. Mappings are made and removed without it. There are three kinds:
//  - the hit path (`allocate_hit`, `free`) never talks to the driver, except to free a block that
//    other streams use, and takes host memory only in chunks, for many blocks at a time;
//  - steps of a climb. The device runs them one at a time;
//  - the rest looks.
//
// Invariants (check_invariants recounts them, between climbs):
//  * those of BlockTiling;
//  * a block is a gap, in transit or aliased exactly when no handle of the heap, or that it borrowed,
//    is behind any of its bytes, all others are backed wholly; of those that are not backed none is
//    handed out;
//  * backed bytes == live + pending + free + unmerged + retired bytes;
//  * the counters equal the recount of the blocks;
//  * a handle is behind addresses of one heap, or in the store, or one of a scratch set, and those may
//    be behind several; those of an exported unit are behind its addresses, and no other handle was
//    exported;
//  * reserved bytes <= address_budget(most bytes mapped at one time), but for spans that one request
//    needed or that live blocks keep (policy/span_sizes.h).
#pragma once

#include "ferro/base/biased_mutex.h"
#include "ferro/core/blocks/block_tiling.h"
#include "ferro/core/heap/exported_units.h"
#include "ferro/core/heap/heap_context.h"
#include "ferro/core/heap/views.h"
#include "ferro/core/policy/relocation.h"
#include "ferro/core/policy/span_sizes.h"
#include "ferro/core/stats/pool_bytes.h"
#include "ferro/core/streams/pending_frees.h"
#include "ferro/core/types/heap_kind.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace ferro {

using HeapLock = BiasedSpinLock;

// Own pages are whole free handles elsewhere in the same arena.
enum class GrowFrom {
  kOwnPages,
  kIdlePages,    // and those of the store that are ready
  kAnyPages,     // and new ones
  kWaitedPages,  // and, before new ones, those for whose epochs this heap's stream can wait
  kStore,        // of the store and new ones, exactly as many as it takes; none of its own
};
// kGapTooShort: where the request fits there is no room for the handles at hand, and elsewhere not
// enough of them. kNoAddresses: no range of addresses is to be had.
enum class [[nodiscard]] GrowResult{kGrown,       kTooFewPages, kOverLimit,  kRejected,
                                    kOutOfMemory, kGapTooShort, kNoAddresses};

// Which free pages are released, by the epoch in which they were freed.
enum class ReleaseAfter {
  kPassed,      // those whose epoch has passed
  kStreamWait,  // also those for whose epoch the requester's stream can wait
  kHostWait,    // all, after the host has waited for their epochs
};

class Heap final : public MappingOwner {
 public:
  // `pool_bytes` counts what the pool holds and outlives the heap; null: nothing is counted.
  Heap(const HeapContext& context, PoolId pool, StreamId stream, HeapKind kind = HeapKind::kPages,
       PoolBytes* pool_bytes = nullptr);
  // Only when `is_empty()`. Gives the addresses back.
  ~Heap();
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  StreamId stream() const { return stream_; }
  PoolId pool() const { return pool_; }
  HeapKind kind() const { return kind_; }
  DeviceId device() const { return context_.driver.device(); }
  // Until it is known that the stream lasts as long as the process, nobody but its own requests may
  // touch it: it may have been destroyed.
  bool stream_lasts() const { return stream_lasts_.load(std::memory_order_relaxed); }
  void set_stream_lasts(bool lasts) { stream_lasts_.store(lasts, std::memory_order_relaxed); }

  // `ptr` lies in `span`, a span of this heap. kNotLive: no live block starts there; nothing
  // changed.
  FreeResult free(Span& span, DevicePtr ptr, const CallContext& context = nullptr)
      FERRO_EXCLUDES(mutex_);
  // A use of a live block by another stream; its memory is not reused before that stream is done.
  // The heap's own stream needs no record. False: no live block starts at `ptr`.
  bool record_stream(Span& span, DevicePtr ptr, StreamId stream) FERRO_EXCLUDES(mutex_);
  // Frees what is complete (asks the driver, does not wait). True when something was freed.
  bool collect_pending() FERRO_EXCLUDES(mutex_);
  // The host waits until nothing is pending but what running captures defer.
  void wait_for_pending() FERRO_EXCLUDES(mutex_);
  bool has_pending() FERRO_EXCLUDES(mutex_);

  // For checkpoints. `live` is in order of address, as `live_blocks_of` gave it. Can it be restored:
  // is nothing pending, and every range of it still backed here?
  bool can_restore(const std::vector<BlockView>& live) FERRO_EXCLUDES(mutex_);
  // Frees every live block, which go to `freed`, and then makes exactly `live` live again, at the
  // same addresses. Only after can_restore(live), with no other call in between.
  void restore_live(const std::vector<BlockView>& live, std::vector<BlockView>* freed)
      FERRO_EXCLUDES(mutex_);
  // Some live block is used by another stream, outside of any capture.
  bool has_recorded_uses() FERRO_EXCLUDES(mutex_);
  // No block is live or pending.
  bool is_unused() FERRO_EXCLUDES(mutex_);
  // Of blocks of one class that are live or pending, as of a moment ago.
  std::int64_t active_bytes(StatClass cls) const {
    return stats_.current(&ClassStats::bytes, cls) +
           stats_.current(&ClassStats::pending_bytes, cls);
  }
  // By handles of its own. Under the climb lock, under which alone it changes.
  std::size_t backed_bytes() const FERRO_NO_THREAD_SAFETY_ANALYSIS {
    return (tiling_.backed_pages() - tiling_.scratch().borrowed_pages) * page_bytes_;
  }
  // Unused, and nothing is behind the addresses, nor an old mapping left.
  bool is_empty() FERRO_EXCLUDES(mutex_);

  // The live block that starts at `ptr`, or that contains it, if any.
  std::optional<BlockView> live_block_at(Span& span, DevicePtr ptr) FERRO_EXCLUDES(mutex_);
  std::optional<BlockView> live_block_around(Span& span, DevicePtr ptr) FERRO_EXCLUDES(mutex_);
  // O(blocks), as what they give.
  std::vector<SegmentView> segments() FERRO_EXCLUDES(mutex_);
  void visit_live(const VisitLive& visit) FERRO_EXCLUDES(mutex_);
  // Merges what is unmerged; else O(log blocks).
  HeapView view() FERRO_EXCLUDES(mutex_);
  // Throws InternalError on the first violation. O(blocks).
  void check_invariants() FERRO_EXCLUDES(mutex_);

  HeapList::Links& links() { return links_; }
  // Leaves a list if what it is for does not apply any more. True: it has left.
  bool leave_list_of_pending() FERRO_EXCLUDES(mutex_);
  bool leave_list_of_free_pages() FERRO_EXCLUDES(mutex_);

  // Hit path. kNull: no free block fits as things are.
  DevicePtr allocate_hit(std::size_t size, std::size_t requested, const CallContext& context)
      FERRO_EXCLUDES(mutex_) {
    const HeapLock lock(mutex_);
    if (Block* block = tiling_.pop_unmerged(size)) {
      return mark_live(block, requested, context);
    }
    return take_best_fit(size, requested, context);
  }
  DevicePtr allocate_hit(const Request& request) FERRO_EXCLUDES(mutex_) {
    return allocate_hit(request.size, request.requested, request.context);
  }

  // Steps of a climb. kNull: the step did not help. DriverError: nothing is lost.
  DevicePtr allocate_collected(const Request& request) FERRO_EXCLUDES(mutex_);
  DevicePtr allocate_merged(const Request& request) FERRO_EXCLUDES(mutex_);
  // Puts pages behind a gap. Without success the arena is as it was, but for whole free handles that
  // may have gone to the store. Own pages move only when their epoch has passed or the heap's stream is
  // ordered behind it. `*out` is written on kGrown only.
  GrowResult allocate_grown(const Request& request, GrowFrom from, DevicePtr* out)
      FERRO_EXCLUDES(mutex_);
  // The heap's stream waits for the uses of one pending block after the other, searching again after
  // each: of one that is large enough, else, from the one that was freed first, of at most
  // `at_most` bytes of blocks, give or take one. The host does not wait.
  DevicePtr allocate_after_stream_wait(const Request& request, std::size_t at_most)
      FERRO_EXCLUDES(mutex_);
  // The host waits for one pending event after the other, searching again after each.
  DevicePtr allocate_waited(const Request& request) FERRO_EXCLUDES(mutex_);
  // At exactly `ptr`. A null `ptr` in the result: some byte is in use or not of this heap, or there
  // is no memory to put there; nothing is allocated. Where pages have left the arena, others come
  // from the store. Where its addresses went, they are reserved again, if they are still free.
  BlockView allocate_at(DevicePtr ptr, const Request& request) FERRO_EXCLUDES(mutex_);

  // Reserves the addresses of a range of which no heap has any. False: some are taken.
  bool try_reserve_at(DevicePtr ptr, std::size_t bytes) FERRO_EXCLUDES(mutex_);

  // Of pending blocks that a stream wait would free; 0 in private pools.
  std::size_t reclaimable_by_stream_wait() FERRO_EXCLUDES(mutex_);
  // This heap's stream waits for the uses of all its pending blocks; the host does not. Not where
  // the stream may be gone.
  void stream_wait_for_pending() FERRO_EXCLUDES(mutex_);

  // May its free pages go to other heaps without a wait of the host? Those of a private pool stay,
  // because graphs replay on them.
  bool may_transfer_pages() const { return pool_ == kDefaultPool; }
  // Can its stream wait for others? Not while it captures.
  bool may_wait_for_streams() { return !is_capturing(); }
  // Its stream waits for the epoch; what was freed by then may come here. The host does not wait.
  // False: a capture forbids that. Only while the stream exists: it lasts, or the program asks for
  // memory on it.
  bool order_behind(Epoch epoch) {
    const bool ordered = context_.timeline.order_before(epoch, stream_);
    if (ordered && stream_lasts()) {
      ordered_behind_ = std::max(ordered_behind_, epoch);
    }
    return ordered;
  }
  // Where the stream captures into this pool: its next work comes behind all known streams of the
  // capture, so that memory that the capture has freed may move. False: it does not.
  bool join_streams_of_capture() FERRO_EXCLUDES(mutex_);
  // Asks the store for pages for a request of this arena. The stream waits only for pages that left
  // this arena, and only if the request allows it.
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
  // Releases whole free pages to the store, `wanted` or what the last handle brings beyond them; how
  // many. None while a capture forbids the point that has to be waited for; without a wait of the
  // host none unless `may_transfer_pages()`. After a wait of the host exported units that are free go
  // too, to the driver. DriverError: nothing was released.
  std::size_t release_pages(std::size_t wanted, ReleaseAfter after,
                            const CallContext& context = nullptr) FERRO_EXCLUDES(mutex_);
  // How many pages that would be, looking no further than `at_most`.
  std::size_t releasable_pages(std::size_t at_most, ReleaseAfter after) FERRO_EXCLUDES(mutex_);
  // Pages of whole free handles. O(free blocks of a page and more).
  std::size_t free_pages() FERRO_EXCLUDES(mutex_);
  // How many pages a request would take from the store or the driver, if it came now.
  std::size_t pages_missing_for(const Request& request) FERRO_EXCLUDES(mutex_);
  // On the arena, since construction.
  std::uint64_t pages_moved() const { return pages_moved_.load(std::memory_order_relaxed); }
  // Gives spans back that nothing is behind; how many bytes of addresses.
  std::size_t release_empty_spans() FERRO_EXCLUDES(mutex_);

  // The handles behind the live block that contains `ptr`, for another process. They stay as they are
  // until nothing lies on them. Waits for nothing. `*out` is written on kOk only. DriverError: nothing
  // changed.
  ExportResult export_block(Span& span, DevicePtr ptr, SharedRange* out) FERRO_EXCLUDES(mutex_);

  // Pins, by 1, or unpins, by -1, the handles behind a range of addresses. They stay, whatever
  // becomes of the blocks on it, until they have been unpinned as often. O(handles behind the range).
  // False: no page is behind some of it, and nothing was changed.
  bool change_pins(const Span& span, DevicePtr begin, std::size_t bytes, int by)
      FERRO_EXCLUDES(mutex_);

  // Gives a peer access to all pages that are behind the arena now.
  void grant(DeviceId to) FERRO_EXCLUDES(mutex_);

  void on_mapping_removed(Block* block) override FERRO_EXCLUDES(mutex_);

 private:
  friend class ArenaScratch;

  // Takes back what was just handed out: it counts as no allocation. Observers see both.
  void undo_allocation(Span& span, DevicePtr ptr) FERRO_EXCLUDES(mutex_);
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
  // For waits without the lock: frees what needs no wait; the event to wait for next, if any.
  // `*progress`: something was freed.
  std::optional<EventId> next_event(bool* progress) FERRO_REQUIRES(mutex_);
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
  // What mapped a range, for views.
  void remember_mapping(DevicePtr begin, const CallContext& context) FERRO_REQUIRES(mutex_);
  void forget_mapping(DevicePtr begin, std::size_t bytes) FERRO_REQUIRES(mutex_);
  static BlockView view_of(const Block& block);
  static Block* live_around(const Span& span, DevicePtr ptr);

  Epoch stamp_of_free(const Block& block) FERRO_REQUIRES(mutex_);
  void complete_free(Block* block, const CallContext& context) FERRO_REQUIRES(mutex_);
  void complete_pending(const std::vector<Block*>& ready) FERRO_REQUIRES(mutex_);
  FreeResult free_slow(Block* block, const CallContext& context) FERRO_REQUIRES(mutex_);
  void give(Block* block) FERRO_REQUIRES(mutex_);

  // More holes than this, beyond those that are enough, are not looked at for one request.
  static constexpr std::size_t kMaxCandidates = 64;
  static constexpr Epoch kAnyEpoch = ~Epoch{0};

  // Whole free handles in transit, still behind their addresses.
  struct SetAside {
    std::vector<Hole> holes;  // `block` is the run
    std::vector<HandleRange> handles;
    std::size_t pages = 0;  // of the handles
    Epoch freed = kUnused;  // the latest of the blocks
  };
  // A gap in transit that is to get pages.
  struct Growth {
    Block* gap = nullptr;
    GrowthPlan plan;
    SetAside own;
    std::size_t own_pages = 0;  // of `own`, which is empty at the end
    Epoch behind = kUnused;  // the stream must be behind it, to use `own` and the gap's neighbours
    bool hands_out = false;  // the request is served where the gap was
    DevicePtr taken = kNull;
  };
  struct FreeRange {
    DevicePtr begin = kNull;
    std::size_t bytes = 0;
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
  static FreeRange usable_around(const Block& block, Epoch until);
  std::optional<GrowthPlan> plan(const Request& request, std::size_t spare, Epoch until,
                                 std::vector<Block*>& gaps) FERRO_REQUIRES(mutex_);
  std::vector<Hole> movable(std::size_t wanted, const Block* gap, Epoch until)
      FERRO_REQUIRES(mutex_);
  GrowResult fill(Growth& growth, const Request& request, GrowFrom from) FERRO_EXCLUDES(mutex_);
  TakeResult take_missing(const Request& request, std::size_t missing, GrowFrom from,
                          std::vector<StoredHandle>& out) FERRO_EXCLUDES(mutex_);
  Status map(DevicePtr begin, std::span<const HandleRange> handles) FERRO_EXCLUDES(mutex_);
  // What is expected to be kept has pages of its own.
  bool borrows() const { return kind_ != HeapKind::kKeptPages && is_captured_into(); }
  bool is_captured_into() const {
    return context_.graphs != nullptr && context_.graphs->borrows(pool_);
  }
  // May own pages serve the capture that runs, at other addresses too?
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
  bool is_capturing();
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
  // What goes to the store, with the mappings that stay behind; `hand_to_store` follows, without the
  // lock.
  struct Left {
    std::vector<StoredHandle> handles;
    std::vector<StoredHandle> exported;
    std::vector<std::uint64_t> exported_ids;
    std::vector<StaleMappingRef> mappings;
  };
  Left leave(SetAside& aside, const char* reason, const CallContext& context)
      FERRO_REQUIRES(mutex_);
  // The pages are at other addresses too, from `to` on, and stay mapped here.
  std::vector<AliasedBlock> alias(SetAside& aside) FERRO_REQUIRES(mutex_);
  void notify_moved(std::vector<AliasedBlock> all, DevicePtr to) FERRO_EXCLUDES(mutex_);
  enum class MovedHandles { kFree, kMapped };  // elsewhere already
  void hand_to_store(Left left, MovedHandles moved) FERRO_EXCLUDES(mutex_);
  std::optional<Epoch> latest_release(ReleaseAfter after) const;
  bool wait_for_release(Epoch freed) FERRO_EXCLUDES(mutex_);
  bool order_behind_uses(std::size_t size, std::vector<Block*>& ready) FERRO_REQUIRES(mutex_);

  // Exports (arena_exports.cpp).
  struct Unit {
    DevicePtr begin;
    ExportedUnit unit;
  };
  Unit unit_around(const Span& span, DevicePtr ptr) const FERRO_REQUIRES(mutex_);
  // The handles behind a range, in order of address; empty if no handle is behind some page of it.
  // The first and the last may reach beyond it.
  std::vector<Unit> units_of(const Span& span, DevicePtr begin, std::size_t bytes)
      FERRO_REQUIRES(mutex_);
  // Does a capture lend some of them? Another handle may come there at its end.
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
  // Where ranges were mapped by a call with a context.
  std::map<DevicePtr, CallContext> mapped_by_ FERRO_GUARDED_BY(mutex_);
  ExportedUnits exported_ FERRO_GUARDED_BY(mutex_);
  std::atomic<std::uint64_t> pages_moved_{0};  // written by climbs
  Epoch ordered_behind_ = kUnused;             // of its stream; under the climb lock
};

// In order of address. O(blocks).
std::vector<BlockView> live_blocks_of(Heap& heap);

// Frees what `step` appends to its argument, also what it had appended when it threw.
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
