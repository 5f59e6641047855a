// The blocks of one (pool, stream) of one device. What both layouts share: the lock, the life of a
// block, frees that wait for other streams, and views. Where memory comes from is the arena's
// (arena_heap.h) or the segments' (segment_heap.h) part.
//
// Thread-safe: every public function takes the heap's lock itself, and waits for nothing while it
// holds it. There are three kinds:
//  - the hit path (`ArenaHeap::allocate_hit`, `free`) never talks to the driver, except to free a
//    block that other streams use, and takes host memory only in chunks, for many blocks at a time;
//  - steps of a climb. The device runs them one at a time;
//  - the rest looks.
//
// Invariants (check_invariants recounts them, between climbs):
//  * those of BlockTiling;
//  * a block is a gap, in transit or aliased exactly when no handle of the heap, or that it borrowed,
//    is behind any of its bytes, all others are backed wholly; of those that are not backed none is
//    handed out;
//  * backed bytes == live + pending + free + unmerged + retired bytes;
//  * the counters equal the recount of the blocks.
#pragma once

#include "ferro/base/biased_mutex.h"
#include "ferro/core/blocks/block_tiling.h"
#include "ferro/core/heap/heap_context.h"
#include "ferro/core/heap/views.h"
#include "ferro/core/stats/pool_bytes.h"
#include "ferro/core/streams/pending_frees.h"
#include "ferro/core/types/heap_kind.h"

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace ferro {

using HeapLock = BiasedSpinLock;

class Heap : public MappingOwner {
 public:
  // Only when `is_empty()`. Gives the addresses back.
  virtual ~Heap();
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
  // At exactly `ptr`. A null `ptr` in the result: some byte is in use or not of this heap, or there
  // is no memory to put there; nothing is allocated.
  virtual BlockView allocate_at(DevicePtr ptr, const Request& request) = 0;

  // Frees what is complete (asks the driver, does not wait). True when something was freed.
  bool collect_pending() FERRO_EXCLUDES(mutex_);
  // The host waits until nothing is pending but what running captures defer.
  void wait_for_pending() FERRO_EXCLUDES(mutex_);
  bool has_pending() FERRO_EXCLUDES(mutex_);

  // For checkpoints. `live` is in order of address, as `live_blocks_of` gave it. Can it be restored:
  // is nothing pending, and every range of it still backed here? A segment has to be the same one:
  // another may have its address, and its blocks may not be cut differently.
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
  virtual void check_invariants() FERRO_EXCLUDES(mutex_);

  HeapList::Links& links() { return links_; }
  // Leaves a list if what it is for does not apply any more. True: it has left.
  bool leave_list_of_pending() FERRO_EXCLUDES(mutex_);
  bool leave_list_of_free_pages() FERRO_EXCLUDES(mutex_);

 protected:
  // Takes back what was just handed out: it counts as no allocation. Observers see both.
  void undo_allocation(Span& span, DevicePtr ptr) FERRO_EXCLUDES(mutex_);
  // `pool_bytes` counts what the pool holds and outlives the heap; null: nobody wants to know.
  Heap(const HeapContext& context, PoolId pool, StreamId stream, HeapKind kind,
       PoolBytes* pool_bytes);

  // What becomes of a block that nothing uses: in segments, PyTorch's own rules.
  virtual void free_in_segment(Block*) FERRO_REQUIRES(mutex_) {}
  // Counted until the program frees it, also when it then waits for other streams.
  virtual void end_oversize(Block*) FERRO_REQUIRES(mutex_) {}
  // Free blocks that share their segment with others; none in arenas.
  virtual SplitCounts count_splits() const FERRO_REQUIRES(mutex_) { return {}; }
  void note_splits_since(const SplitCounts& before) FERRO_REQUIRES(mutex_);
  // Cuts a range out of a free block (BlockTiling::cut).
  virtual Block* cut_out(Block* block, DevicePtr begin, std::size_t bytes) FERRO_REQUIRES(mutex_) {
    return tiling_.cut(block, begin, bytes);
  }

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

 private:
  Epoch stamp_of_free(const Block& block) FERRO_REQUIRES(mutex_);
  void complete_free(Block* block, const CallContext& context) FERRO_REQUIRES(mutex_);
  void complete_pending(const std::vector<Block*>& ready) FERRO_REQUIRES(mutex_);
  FreeResult free_unusually(Block* block, const CallContext& context) FERRO_REQUIRES(mutex_);
  void give(Block* block) FERRO_REQUIRES(mutex_);

  PoolBytes* const pool_bytes_;  // changes while the device's climb lock is held
  HeapList::Links links_;
  std::size_t used_outside_captures_ FERRO_GUARDED_BY(mutex_) = 0;  // live blocks
  // Where ranges were mapped by a call with a context.
  std::map<DevicePtr, CallContext> mapped_by_ FERRO_GUARDED_BY(mutex_);
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
