// The life of a block: handed out, used by other streams, freed.
#include "ferro/core/heap/heap.h"

#include "ferro/base/check.h"
#include "ferro/driver/error.h"

#include <algorithm>
#include <utility>

namespace ferro {

Heap::Heap(const HeapContext& context, PoolId pool, StreamId stream, HeapKind kind,
           PoolBytes* pool_bytes)
    : context_(context),
      pool_(pool),
      stream_(stream),
      kind_(kind),
      page_bytes_(context.store.page_bytes()),
      tiling_(page_bytes_),
      pending_(context.driver, context.events, stream, &stream_lasts_),
      pool_bytes_(pool_bytes),
      exported_(page_bytes_) {
  stats_.lock = &mutex_;
}

Heap::~Heap() FERRO_NO_THREAD_SAFETY_ANALYSIS {
  context_.stats.remove_heap(&stats_);
  for (const auto& [base, span] : tiling_.spans()) {
    context_.addresses.remove(span.get());
    context_.driver.unreserve(base, span->bytes());
  }
}

DevicePtr Heap::take_best_fit(std::size_t size, std::size_t requested, const CallContext& context) {
  Block* block = tiling_.free_blocks().best_fit(size);
  if (block == nullptr) {
    return kNull;
  }
  tiling_.take(block);
  if (block->size > size) {
    tiling_.split_tail(block, size, BlockState::kFree);
    tiling_.put_unchanged(block->next);
  }
  return mark_live(block, requested, context);
}

void Heap::notify_allocation(Block* block, const CallContext& context) {
  if (context != nullptr) {
    block->extra = new BlockExtra{.uses = {}, .events = 0, .context = context};
  }
  notify(*block, MemoryEvent::kAllocate, context);
}

FreeResult Heap::free(Span& span, DevicePtr ptr, const CallContext& context) {
  const HeapLock lock(mutex_);
  Block* block = span.block_at(ptr);
  if (block == nullptr || block->state != BlockState::kLive) {
    return {FreeError::kNotLive, 0};
  }
  context_.stats.note_activity(&stats_, claim_countdown_);
  block->freed = pool_ == kDefaultPool ? context_.timeline.now() : stamp_of_free(*block);
  if (block->extra != nullptr || is_observed()) [[unlikely]] {
    return free_slow(block, context);
  }
  const std::size_t size = block->size;
  stats_.on_free(static_cast<std::int64_t>(size), static_cast<std::int64_t>(block->requested));
  insert_free(block);
  return {FreeError::kNone, size};
}

// For blocks of a private pool. Memory that was handed out and freed within one capture is used
// only by that graph, in the graph's order, so no submitted work uses it. An epoch begins when a
// capture is announced and when it ends.
Epoch Heap::stamp_of_free(const Block& block) {
  const Epoch now = context_.timeline.now();
  if (block.freed != now || context_.captures.load() == 0 || !stream_lasts()) {
    return now;
  }
  try {
    // Without an id it is the legacy stream while a blocking stream captures.
    const CaptureInfo capture = context_.driver.capture_info(stream_);
    return capture.status == CaptureStatus::kActive && capture.id != 0 ? kCaptured : now;
  } catch (const DriverError&) {
    return now;  // a free never fails
  }
}

void Heap::undo_allocation(Span& span, DevicePtr ptr) {
  const HeapLock lock(mutex_);
  Block* block = span.block_at(ptr);
  FERRO_CHECK(block != nullptr && block->state == BlockState::kLive && !block->has_uses());
  context_.stats.note_activity(&stats_, claim_countdown_);
  notify(*block, MemoryEvent::kFreeRequested, nullptr);
  stats_.undo_allocate(static_cast<std::int64_t>(block->size),
                       static_cast<std::int64_t>(block->requested));
  complete_free(block, nullptr);
}

FreeResult Heap::free_slow(Block* block, const CallContext& context) {
  const std::size_t size = block->size;
  notify(*block, MemoryEvent::kFreeRequested, context);
  bool waits = false;
  if (block->has_uses()) {
    used_outside_captures_ -= block->is_used_outside_captures() ? 1 : 0;
    block->state = BlockState::kPending;
    waits = pending_.add(block);
  }
  if (waits) {
    stats_.on_free_pending(static_cast<std::int64_t>(size));
    context_.with_pending.add(this, links_);
  } else {
    stats_.on_free(static_cast<std::int64_t>(size), static_cast<std::int64_t>(block->requested));
    complete_free(block, context);
  }
  return {FreeError::kNone, size};
}

void Heap::notify(Block& block, MemoryEvent what, const CallContext& context) {
  MemoryObserver* observer = context_.observer.get();
  if (observer != nullptr) [[unlikely]] {
    const bool by_allocation = context == nullptr && block.extra != nullptr;
    observer->on_event({.what = what,
                        .ptr = block.ptr,
                        .size = block.requested,
                        .stream = stream_,
                        .pool = pool_,
                        .context = by_allocation ? block.extra->context : context,
                        .block_bytes = block.size,
                        .tag = &block.tag});
  }
}

void Heap::notify_of_range(DevicePtr begin, std::size_t bytes, MemoryEvent what,
                           const CallContext& context, const RangeFacts& facts) {
  MemoryObserver* observer = context_.observer.get();
  if (observer != nullptr) [[unlikely]] {
    observer->on_event({what, begin, bytes, stream_, pool_, context, facts});
  }
}

// The last step of every free: nothing uses the block any more.
void Heap::complete_free(Block* block, const CallContext& context) {
  notify(*block, MemoryEvent::kFreeCompleted, context);
  delete std::exchange(block->extra, nullptr);
  if (tiling_.is_asleep(*block)) [[unlikely]] {
    block->requested = 0;
    tiling_.free_asleep(block);
    list_free_pages();
  } else {
    insert_free(block);
  }
}

void Heap::insert_free(Block* block) {
  block->requested = 0;
  tiling_.insert(block);
  if (tiling_.was_page_freed()) {
    list_free_pages();
  }
}

void Heap::list_free_pages() { context_.with_free_pages.add(this, links_); }

bool Heap::record_stream(Span& span, DevicePtr ptr, StreamId stream) {
  const HeapLock lock(mutex_);
  Block* block = span.block_at(ptr);
  if (block == nullptr || block->state != BlockState::kLive) {
    return false;
  }
  if (stream == stream_) {
    return true;
  }
  const CaptureInfo capture = context_.driver.capture_info(stream);
  const StreamUse use{stream, capture.status == CaptureStatus::kActive ? capture.id : 0};
  if (block->extra == nullptr) {
    block->extra = new BlockExtra;
  }
  for (const StreamUse& known : block->extra->uses) {
    if (known.stream == use.stream && known.capture_id == use.capture_id) {
      return true;
    }
  }
  const bool was_used = block->is_used_outside_captures();
  block->extra->uses.push_back(use);
  used_outside_captures_ += !was_used && use.capture_id == 0 ? 1 : 0;
  return true;
}

void Heap::complete_pending(const std::vector<Block*>& ready) {
  for (Block* block : ready) {
    context_.stats.note_activity(&stats_, claim_countdown_);
    stats_.on_pending_complete(static_cast<std::int64_t>(block->size),
                               static_cast<std::int64_t>(block->requested));
    complete_free(block, nullptr);
  }
}

bool Heap::collect_locked() {
  if (pending_.count() == 0) {
    return false;
  }
  return complete_ready([this](std::vector<Block*>& ready) FERRO_REQUIRES(mutex_) {
    pending_.collect(ready);
    return !ready.empty();
  });
}

bool Heap::collect_pending() {
  const HeapLock lock(mutex_);
  return collect_locked();
}

bool Heap::wait_for_next() {
  std::optional<EventId> event;
  {
    const HeapLock lock(mutex_);
    const bool has_freed = complete_ready([&](std::vector<Block*>& ready) FERRO_REQUIRES(mutex_) {
      event = pending_.next_event(ready);
      return !ready.empty();
    });
    if (!event) {
      return has_freed;
    }
  }
  context_.driver.wait(*event);
  collect_pending();
  return true;
}

void Heap::wait_for_pending() {
  while (wait_for_next()) {
  }
}

bool Heap::can_restore(const std::vector<BlockView>& live) {
  const HeapLock lock(mutex_);
  return pending_.count() == 0 &&
         std::ranges::all_of(live, [this](const BlockView& view) FERRO_REQUIRES(mutex_) {
           const Span* span = tiling_.span_around(view.ptr);
           if (span == nullptr || view.size > distance(view.ptr, span->base() + span->bytes())) {
             return false;
           }
           std::size_t slot = span->page_slot(view.ptr);
           const std::size_t last = span->page_slot(view.ptr + (view.size - 1));
           while (slot <= last && span->page(slot) != kNoPage) {
             ++slot;
           }
           if (slot <= last) {
             return false;
           }
           const Block* block = span->block_around(view.ptr);
           while (block != nullptr && block->ptr < view.ptr + view.size &&
                  block->state != BlockState::kRetired) {
             block = block->next;
           }
           return block == nullptr || block->ptr >= view.ptr + view.size;
         });
}

void Heap::restore_live(const std::vector<BlockView>& live, std::vector<BlockView>* freed) {
  const HeapLock lock(mutex_);
  std::vector<Block*> to_free;
  tiling_.for_each_block([&](Block& block) {
    if (block.state == BlockState::kLive) {
      to_free.push_back(&block);
    }
  });
  for (Block* block : to_free) {
    context_.stats.note_activity(&stats_, claim_countdown_);
    block->freed = context_.timeline.now();
    used_outside_captures_ -= block->is_used_outside_captures() ? 1 : 0;
    freed->push_back({.ptr = block->ptr,
                      .size = block->size,
                      .requested = block->requested,
                      .state = BlockState::kLive});
    notify(*block, MemoryEvent::kFreeRequested, nullptr);
    stats_.on_free(static_cast<std::int64_t>(block->size),
                   static_cast<std::int64_t>(block->requested));
    complete_free(block, nullptr);
  }
  // All backed memory is free now, so each recorded block lies inside one free block.
  for (const BlockView& view : live) {
    const Span* span = tiling_.span_around(view.ptr);
    FERRO_CHECK(span != nullptr);
    Block* around = span->block_around(view.ptr);
    FERRO_CHECK(around->is_free() && view.ptr + view.size <= around->end());
    Block* block = tiling_.cut(around, view.ptr, view.size);
    block->tag = is_observed() ? view.tag : BlockTag{0};
    mark_live(block, {view.size, view.requested, view.context});
  }
}

void Heap::forget_mapping(DevicePtr begin, std::size_t bytes) {
  if (!mapped_by_.empty()) {
    mapped_by_.erase(mapped_by_.lower_bound(begin), mapped_by_.lower_bound(begin + bytes));
  }
}

}  // namespace ferro
