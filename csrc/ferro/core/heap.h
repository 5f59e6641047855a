// The blocks of one (pool, stream) of one device, in one of two layouts: pages on a line, or
// segments, each one piece of memory with addresses of its own.
//
// Thread-safe: every public function takes the heap's lock itself. There are three kinds:
//  - the hit path (`allocate_hit`, `free`) never talks to the driver, except to free a block that
//    other streams use, and takes host memory only in chunks, for many blocks at a time;
//  - the steps of the slow path make room in one way and allocate within the same hold of the lock,
//    so nobody takes the room in between. The device runs them one at a time;
//  - the rest looks.
//
// Invariants (check_invariants recounts them):
//  * the blocks of a span tile it; prev/next mirror the addresses; the span's index holds exactly
//    the starts of all blocks;
//  * a block is a gap or stale exactly when no page of its own is behind any of its bytes, all
//    others are backed wholly; a page is behind one address; stale addresses are never handed out;
//  * no two neighbours are both free or both gaps;
//  * the pages of one handle are side by side, and move together; those of an exported unit are
//    behind its addresses, and no other page was exported;
//  * backed bytes == live + pending + free + unmerged bytes;
//  * lent pages of this heap == pages behind its spans == backed bytes / page_bytes;
//  * the counters equal the recount of the blocks.
#pragma once

#include "ferro/base/mutex.h"
#include "ferro/core/address_index.h"
#include "ferro/core/block.h"
#include "ferro/core/block_slab.h"
#include "ferro/core/event_pool.h"
#include "ferro/core/exports.h"
#include "ferro/core/free_index.h"
#include "ferro/core/give_back.h"
#include "ferro/core/growth.h"
#include "ferro/core/ladder.h"
#include "ferro/core/observer.h"
#include "ferro/core/page_store.h"
#include "ferro/core/pending_frees.h"
#include "ferro/core/pool_bytes.h"
#include "ferro/core/pool_id.h"
#include "ferro/core/relocation.h"
#include "ferro/core/segment_policy.h"
#include "ferro/core/segment_stats.h"
#include "ferro/core/span.h"
#include "ferro/core/stats.h"
#include "ferro/core/unmerged_bins.h"
#include "ferro/driver/driver.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace ferro {

struct Request {
  std::size_t size = 0;       // bytes of the block: a positive multiple of kBlockAlignment
  std::size_t requested = 0;  // bytes the program asked for
  CallContext context = nullptr;
  bool no_split = false;                // the block is not cut out of a larger one (segments only)
  LadderStep step = LadderStep::kGrow;  // that makes room for it
};

// What a heap shares with the others of its device.
struct HeapContext {
  Driver& driver;
  PageStore& store;
  EventPool& events;
  ExportTable& exports;
  AddressIndex& addresses;
  DeviceStats& stats;
  const std::atomic<int>& captures;              // that run on the device, as far as anybody said
  const std::atomic<MemoryObserver*>& observer;  // null: nobody wants to know
  SegmentStats& segments;
  const std::atomic<std::uint32_t>& searches;  // of segments for large blocks, as their clock
  std::size_t span_bytes;                      // length of a span unless a request needs more
};

// Own pages are whole free pages elsewhere on the same line; the store has idle ones and makes new
// ones.
enum class GrowFrom {
  kOwnPages,
  kIdlePages,  // and own ones
  kAnyPages,   // own and idle ones, then new ones
  kStore,      // idle ones, then new ones, exactly as many as it takes: no handle on loan may be
               // idle; the rest of the line stays as it is
};
// kGapTooShort: where the request fits there is no room for the handles at hand, and elsewhere not
// enough of them.
enum class [[nodiscard]] GrowResult{kGrown,    kTooFewPages, kOverLimit,
                                    kRejected, kOutOfMemory, kGapTooShort};

enum class FreeError { kNone, kNotLive };
struct [[nodiscard]] FreeResult {
  FreeError error = FreeError::kNone;
  std::size_t size = 0;  // bytes of the block
};

// Read-only views for snapshots, checkpoints and reports.
struct BlockView {
  DevicePtr ptr{};
  std::size_t size = 0;
  std::size_t requested = 0;
  BlockState state = BlockState::kFree;
  CallContext context = nullptr;  // of the allocation, of a live or pending block
};
// A contiguous backed range; its blocks tile it in order of address.
struct SegmentView {
  DevicePtr ptr{};
  std::size_t size = 0;
  StreamId stream{};
  PoolId pool{};
  HeapKind kind = HeapKind::kPages;
  std::uint64_t span_number = 0;  // ascending in the order in which spans came to be
  CallContext context = nullptr;  // of the first mapping in it, by address
  std::vector<BlockView> blocks;
};
struct FreeSegment {
  DevicePtr base{};
  std::size_t bytes = 0;
  std::uint32_t free_since = 0;  // searches of the pool at that time
};
struct HeapView {
  std::size_t backed_bytes = 0;
  std::size_t free_bytes = 0;  // free and unmerged
  std::size_t free_blocks = 0;
  std::size_t live_blocks = 0;
  std::size_t pending_bytes = 0;  // waiting for other streams
  std::size_t largest_free = 0;
  std::size_t whole_free_page_bytes = 0;  // what give_back_pages could return
};

class Heap {
 public:
  // `pool_bytes` counts what the pool holds and outlives the heap; null: nobody wants to know.
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

  // Hit path. kNull: no free block fits as things are.
  DevicePtr allocate_hit(const Request& request) FERRO_EXCLUDES(mutex_);
  // `ptr` lies in `span`, a span of this heap. kNotLive: no live block starts there; nothing
  // changed.
  FreeResult free(Span& span, DevicePtr ptr, const CallContext& context = nullptr)
      FERRO_EXCLUDES(mutex_);

  // A use of a live block by another stream; its memory is not reused before that stream is done.
  // The heap's own stream needs no record. False: no live block starts at `ptr`.
  bool record_stream(Span& span, DevicePtr ptr, StreamId stream) FERRO_EXCLUDES(mutex_);

  // Steps of the slow path. kNull: the step did not help. DriverError: nothing is lost.
  DevicePtr allocate_collected(const Request& request) FERRO_EXCLUDES(mutex_);
  DevicePtr allocate_merged(const Request& request) FERRO_EXCLUDES(mutex_);
  // All or nothing: on any failure the line is as it was. `*out` is written on kGrown only.
  GrowResult allocate_grown(const Request& request, GrowFrom from, DevicePtr* out)
      FERRO_EXCLUDES(mutex_);
  // The heap's stream waits for the uses of one pending block after the other, searching again after
  // each: of one that is large enough, else, from the one that was freed first, of at most
  // `at_most` bytes of blocks, give or take one. The host does not wait.
  DevicePtr allocate_ordered(const Request& request, std::size_t at_most) FERRO_EXCLUDES(mutex_);
  // Of pending blocks that this could free; 0 in private pools.
  std::size_t orderable_bytes() FERRO_EXCLUDES(mutex_);
  // The host waits for one pending event after the other, searching again after each.
  DevicePtr allocate_waited(const Request& request) FERRO_EXCLUDES(mutex_);

  // At exactly `ptr`, on the line or in a segment of this heap. Where pages have left the line,
  // others come from the store. kNull: some byte is in use or not of this heap, or there are no
  // pages; nothing is allocated.
  DevicePtr allocate_at(DevicePtr ptr, const Request& request) FERRO_EXCLUDES(mutex_);

  // The classic layout (heap_segments.cpp), on heaps of segments. A null `ptr`: no free block fits.
  BlockView allocate_in_segments(const Request& request, const SegmentRules& rules)
      FERRO_EXCLUDES(mutex_);
  // Would it find one?
  bool has_segment_for(const Request& request, const SegmentRules& rules) FERRO_EXCLUDES(mutex_);
  // From memory that the caller got for this request; the heap keeps it as a segment.
  BlockView allocate_in_new_segment(DevicePtr base, std::size_t bytes, const Request& request,
                                    const SegmentRules& rules) FERRO_EXCLUDES(mutex_);
  // Segments of one free block, in order of size, then address.
  std::vector<FreeSegment> free_segments() FERRO_EXCLUDES(mutex_);
  // Takes a free segment out, to be released by the caller; null when it is not free any more. The
  // observer is told that it goes.
  std::unique_ptr<Span> detach_segment(DevicePtr base, const CallContext& context)
      FERRO_EXCLUDES(mutex_);
  // Puts one back that could not be released.
  void attach_segment(std::unique_ptr<Span> segment) FERRO_EXCLUDES(mutex_);

  // Lends whole free pages, `pages` or what the last handle brings beyond them, to a heap whose
  // stream is `to`: that stream waits for this one's work, the host does not, and the old mappings
  // stay until the work is done. None from private pools, whose graphs replay on any stream, while
  // either stream captures, and where this one may be gone. On DriverError nothing is lent.
  std::vector<PageHandle> lend_pages(std::size_t pages, StreamId to, const CallContext& context)
      FERRO_EXCLUDES(mutex_);
  // Undoes the last lend_pages as far as these, its last pages, go.
  void take_back(std::span<const PageHandle> lent) FERRO_EXCLUDES(mutex_);
  // Removes the old mappings of pages that moved or were lent, as far as the work before is done.
  // False: some are left.
  bool retire_mappings() FERRO_EXCLUDES(mutex_);
  // Pages that could be lent now.
  std::size_t lendable_pages() FERRO_EXCLUDES(mutex_);
  // This heap's stream waits for the uses of all its pending blocks; the host does not. Not where
  // the stream may be gone.
  void order_pending() FERRO_EXCLUDES(mutex_);
  // Gives whole free pages to the store, and exported units, which go to the driver, until they are
  // `wanted` pages or what the last handle brings beyond them; the number given is the result. The
  // host waits first: in the default pool for this heap's stream, for the whole device where that
  // may be gone and in a private pool, because graphs replay on its pages on any stream. 0 while a
  // capture forbids that, and of segments.
  std::size_t give_back_pages(std::size_t wanted, const CallContext& context = nullptr)
      FERRO_EXCLUDES(mutex_);
  // Only whole free pages, and without waiting: while all work of the heap's stream is done and
  // nothing on the device captures. None from private pools, whose graphs replay on any stream.
  std::size_t give_back_at_rest(std::size_t wanted, const CallContext& context)
      FERRO_EXCLUDES(mutex_);
  // So many pages would that give now.
  std::size_t pages_at_rest() FERRO_EXCLUDES(mutex_);
  // Frees what is complete (asks the driver, does not wait). True when something was freed.
  bool collect_pending() FERRO_EXCLUDES(mutex_);
  // The host waits until nothing is pending but what running captures defer.
  void wait_for_pending() FERRO_EXCLUDES(mutex_);

  // The handles behind the live block that contains `ptr`, for another process. A block of many
  // pages is moved behind one handle first, for which the host waits for the whole device and
  // during which no other thread may give it work on the block. On any failure the block is as it
  // was.
  ExportResult export_block(Span& span, DevicePtr ptr, SharedRange* out) FERRO_EXCLUDES(mutex_);
  // Gives a peer access to all pages that are behind the line now; segments have it from the driver.
  void grant(DeviceId to) FERRO_EXCLUDES(mutex_);

  // For checkpoints. `live` is in order of address. Can it be restored: is nothing pending, and
  // every range of it still backed here?
  bool can_restore(const std::vector<BlockView>& live) FERRO_EXCLUDES(mutex_);
  // Frees every live block, which go to `freed`, and then makes exactly `live` live again, at the
  // same addresses. Only after can_restore(live), with no other call in between.
  void restore_live(const std::vector<BlockView>& live, std::vector<BlockView>* freed)
      FERRO_EXCLUDES(mutex_);
  bool has_pending() FERRO_EXCLUDES(mutex_);
  // Some live block is used by another stream, outside of any capture.
  bool has_recorded_uses() FERRO_EXCLUDES(mutex_);
  // No block is live or pending.
  bool is_unused() FERRO_EXCLUDES(mutex_);
  // Unused, and no page is left.
  bool is_empty() FERRO_EXCLUDES(mutex_);

  // The live block that starts at `ptr`, if any.
  std::optional<BlockView> live_block_at(Span& span, DevicePtr ptr) FERRO_EXCLUDES(mutex_);
  // The live block that contains `ptr`, if any. Walks the tiling.
  std::optional<BlockView> live_block_around(Span& span, DevicePtr ptr) FERRO_EXCLUDES(mutex_);
  std::vector<SegmentView> segments() FERRO_EXCLUDES(mutex_);
  std::vector<BlockView> live_blocks() FERRO_EXCLUDES(mutex_);
  HeapView view() FERRO_EXCLUDES(mutex_);
  // On the line, since construction.
  std::uint64_t pages_moved() const { return pages_moved_.load(std::memory_order_relaxed); }
  // How many pages a request would take from the store or the driver, if it came now.
  std::size_t pages_missing_for(const Request& request) FERRO_EXCLUDES(mutex_);
  // Throws InternalError on the first violation.
  void check_invariants() FERRO_EXCLUDES(mutex_);

 private:
  // Placement (heap.cpp).
  DevicePtr take_best_fit(const Request& request) FERRO_REQUIRES(mutex_);
  DevicePtr hand_out(Block* block, const Request& request) FERRO_REQUIRES(mutex_);
  void split_tail(Block* block, std::size_t size, BlockState tail_state) FERRO_REQUIRES(mutex_);
  Block* merge_neighbours(Block* block) FERRO_REQUIRES(mutex_);
  void absorb_next(Block* block) FERRO_REQUIRES(mutex_);
  void make_free(Block* block) FERRO_REQUIRES(mutex_);
  void finish_free(Block* block, const CallContext& context) FERRO_REQUIRES(mutex_);
  void merge_all() FERRO_REQUIRES(mutex_);
  void finish_pending(const std::vector<Block*>& ready) FERRO_REQUIRES(mutex_);
  template <typename Step>
  bool finish_what(Step step) FERRO_REQUIRES(mutex_);
  bool collect_locked() FERRO_REQUIRES(mutex_);
  bool order_one(std::size_t size) FERRO_REQUIRES(mutex_);
  bool wait_for_one() FERRO_REQUIRES(mutex_);
  void tell_of(const Block& block, MemoryEvent what, const CallContext& context)
      FERRO_REQUIRES(mutex_);
  void tell_of_range(DevicePtr begin, std::size_t bytes, MemoryEvent what,
                     const CallContext& context, const RangeFacts& facts = {})
      FERRO_REQUIRES(mutex_);

  // At an address (heap_exact.cpp).
  Span* span_around(DevicePtr ptr) FERRO_REQUIRES(mutex_);
  static Block* block_around(const Span& span, DevicePtr ptr);
  Block* back_range(Span& span, DevicePtr ptr, const Request& request) FERRO_REQUIRES(mutex_);
  void count_pool_bytes(StatClass cls, std::int64_t change) FERRO_REQUIRES(mutex_) {
    if (pool_bytes_ != nullptr) {
      pool_bytes_->change(cls, change);
    }
  }

  // Segments (heap_segments.cpp).
  BlockView hand_out_split(Block* block, const Request& request, const SegmentRules& rules)
      FERRO_REQUIRES(mutex_);
  void free_in_segment(Block* block) FERRO_REQUIRES(mutex_);
  void end_oversize(Block* block) FERRO_REQUIRES(mutex_);
  void insert_free(Block* block) FERRO_REQUIRES(mutex_);
  SplitCounts count_splits() FERRO_REQUIRES(mutex_);
  void note_splits_since(const SplitCounts& before) FERRO_REQUIRES(mutex_);
  void add_segment(std::unique_ptr<Span> segment) FERRO_REQUIRES(mutex_);
  StatClass segment_class() const { return kind_ == HeapKind::kSmallSegments ? kSmall : kLarge; }

  // Pages (heap_pages.cpp, heap_moves.cpp).
  Span* add_span(std::size_t at_least) FERRO_REQUIRES(mutex_);
  void drop_span(const Span* unused) FERRO_REQUIRES(mutex_);
  Block* make_first_block(Span& span) FERRO_REQUIRES(mutex_);
  Span* keep_span(std::unique_ptr<Span> span) FERRO_REQUIRES(mutex_);
  GrowResult grow_line(const Request& request, std::size_t spare, GrowFrom from)
      FERRO_REQUIRES(mutex_);
  GrowResult fill_gap(Block* gap, const GrowthPlan& plan, GrowFrom from, const Request& request)
      FERRO_REQUIRES(mutex_);
  std::optional<GrowthPlan> plan(const Request& request, std::size_t spare,
                                 std::vector<Block*>& gaps) FERRO_REQUIRES(mutex_);
  Status back(Span& span, DevicePtr begin, const std::vector<PageHandle>& pages)
      FERRO_REQUIRES(mutex_);
  void turn_gap_into_free(Block* gap, const GrowthPlan& plan) FERRO_REQUIRES(mutex_);
  Block* cut_out(Block* block, DevicePtr begin, std::size_t bytes) FERRO_REQUIRES(mutex_);
  void turn_into_gap(Block* block) FERRO_REQUIRES(mutex_);
  std::vector<PageHandle> take_pages_behind(Span& span, const PageRun& run) FERRO_REQUIRES(mutex_);
  // Moving pages on the line. The old mapping stays behind a fence until the work before it is
  // done.
  struct Hole {
    Block* block;
    PageRun run;
  };
  PageRun whole_handles_inside(const Span& span, PageRun run) const;
  HoleView handles_of(const Hole& hole) const FERRO_REQUIRES(mutex_);
  Hole end_of(const Hole& hole, std::size_t pages) const;
  std::vector<Hole> holes() FERRO_REQUIRES(mutex_);
  std::vector<PageHandle> take_out(const Hole& hole, const CallContext& context)
      FERRO_REQUIRES(mutex_);
  std::vector<Hole> pages_to_move(const Block* gap, std::size_t wanted) FERRO_REQUIRES(mutex_);
  std::vector<Hole> choose(const std::vector<Hole>& candidates, std::size_t wanted) const
      FERRO_REQUIRES(mutex_);
  std::size_t pages_in(const std::vector<Hole>& holes) const;
  std::vector<PageHandle> pages_behind(const std::vector<Hole>& chosen) const
      FERRO_REQUIRES(mutex_);
  void leave_behind(const std::vector<Hole>& moved, EventId fence, const char* reason,
                    const CallContext& context) FERRO_REQUIRES(mutex_);
  void forget_mapping(DevicePtr begin, std::size_t bytes) FERRO_REQUIRES(mutex_);
  void retire_stale() FERRO_REQUIRES(mutex_);
  // May its free pages go to other heaps without a wait for the device? Those of a private pool stay,
  // because graphs replay on them.
  bool passes_pages() const { return pool_ == kDefaultPool && is_paged(kind_) && stream_lasts(); }
  bool is_capturing() FERRO_REQUIRES(mutex_);
  bool wait_for_last_uses() FERRO_REQUIRES(mutex_);
  bool is_at_rest() FERRO_REQUIRES(mutex_);
  std::size_t give_back(const std::vector<Hole>& candidates, std::size_t wanted,
                        const CallContext& context) FERRO_REQUIRES(mutex_);
  EventId record_fence() FERRO_REQUIRES(mutex_);

  // Exports (heap_exports.cpp).
  struct Unit {
    DevicePtr begin;
    ExportedUnit unit;
  };
  std::map<DevicePtr, ExportedUnit>::iterator exported_around(DevicePtr ptr) FERRO_REQUIRES(mutex_);
  Unit unit_around(const Span& span, DevicePtr ptr) const FERRO_REQUIRES(mutex_);
  std::vector<Unit> units_behind(const Block& block) FERRO_REQUIRES(mutex_);
  bool is_alone_on(const Block& block, const Unit& unit) const FERRO_REQUIRES(mutex_);
  std::span<const Unit> units_of_its_own(const Block& block, std::span<const Unit> units) const
      FERRO_REQUIRES(mutex_);
  static std::size_t pages_of(std::span<const Unit> units);
  ExportResult join(Span& span, std::span<const Unit> units) FERRO_REQUIRES(mutex_);
  Status copy_into(PageHandle fresh, DevicePtr from, std::size_t bytes) FERRO_REQUIRES(mutex_);
  void drop_leftovers() FERRO_REQUIRES(mutex_);
  Status exchange(DevicePtr begin, std::size_t bytes, std::span<const Unit> units, PageHandle fresh)
      FERRO_REQUIRES(mutex_);
  void append_unpinned(const Hole& hole, std::vector<Hole>& parts) FERRO_REQUIRES(mutex_);
  std::vector<Hole> free_exports() FERRO_REQUIRES(mutex_);
  bool give_back_export(const Hole& hole, const CallContext& context) FERRO_REQUIRES(mutex_);
  void check_exports() FERRO_REQUIRES(mutex_);

  Block* live_around(Span& span, DevicePtr ptr) FERRO_REQUIRES(mutex_);
  // Blocks in order of address; `function(Block&)` must not change the tiling.
  template <typename Function>
  void for_each_block(Function function) FERRO_REQUIRES(mutex_);

  SpinMutex mutex_;
  const HeapContext context_;
  const PoolId pool_;
  const StreamId stream_;
  const HeapKind kind_;
  const std::size_t page_bytes_;
  std::atomic<bool> stream_lasts_{true};
  PoolBytes* const pool_bytes_;  // changes under the device's slow lock

  FreeIndex free_ FERRO_GUARDED_BY(mutex_);
  HeapStats stats_;  // written under mutex_, read by DeviceStats without
  int claim_countdown_ FERRO_GUARDED_BY(mutex_) = 0;
  UnmergedBins unmerged_ FERRO_GUARDED_BY(mutex_);
  PendingFrees pending_ FERRO_GUARDED_BY(mutex_);
  BlockSlab blocks_ FERRO_GUARDED_BY(mutex_);
  struct StaleBatch {
    EventId fence;
    std::vector<Block*> blocks;
  };
  std::deque<StaleBatch> stale_ FERRO_GUARDED_BY(mutex_);  // in the order of their fences
  std::atomic<std::uint64_t> pages_moved_{0};              // written under mutex_
  // Where ranges were mapped by a call with a context.
  std::map<DevicePtr, CallContext> mapped_by_ FERRO_GUARDED_BY(mutex_);
  std::vector<PageRun> leftovers_ FERRO_GUARDED_BY(mutex_);              // see drop_leftovers
  std::map<DevicePtr, ExportedUnit> exported_ FERRO_GUARDED_BY(mutex_);  // by their first address
  std::vector<std::unique_ptr<Span>> spans_ FERRO_GUARDED_BY(mutex_);    // ascending by base
};

}  // namespace ferro
