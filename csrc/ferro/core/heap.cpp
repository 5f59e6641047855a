// Placement: how blocks are found, split, freed and merged. Pages are in heap_pages.cpp and
// heap_moves.cpp.
#include "ferro/core/heap.h"

#include "ferro/base/check.h"
#include "ferro/core/heap_blocks.h"

#include <algorithm>
#include <utility>

namespace ferro {

DevicePtr Heap::allocate_hit(const Request& request) {
  const SpinLock lock(mutex_);
  if (Block* block = unmerged_.pop(request.size)) {
    return hand_out(block, request);
  }
  return take_best_fit(request);
}

DevicePtr Heap::take_best_fit(const Request& request) {
  Block* block = free_.best_fit(request.size);
  if (block == nullptr) {
    return kNull;
  }
  free_.remove(block);
  if (block->size > request.size) {
    split_tail(block, request.size, BlockState::kFree);
    free_.insert(block->next);
  }
  return hand_out(block, request);
}

DevicePtr Heap::hand_out(Block* block, const Request& request) {
  context_.stats.note_activity(&stats_, claim_countdown_);
  block->state = BlockState::kLive;
  block->requested = request.requested;
  stats_.on_allocate(static_cast<std::int64_t>(block->size),
                     static_cast<std::int64_t>(request.requested));
  if (context_.observer.load(std::memory_order_relaxed) != nullptr) [[unlikely]] {
    if (request.context != nullptr) {
      block->extra = new BlockExtra{.uses = {}, .events = 0, .context = request.context};
    }
    tell_of(*block, MemoryEvent::kAllocate, request.context);
  }
  return block->ptr;
}

FreeResult Heap::free(Span& span, DevicePtr ptr, const CallContext& context) {
  const SpinLock lock(mutex_);
  Block* block = span.block_at(ptr);
  if (block == nullptr || block->state != BlockState::kLive) {
    return {FreeError::kNotLive, 0};
  }
  const std::size_t size = block->size;
  tell_of(*block, MemoryEvent::kFreeRequested, context);
  context_.stats.note_activity(&stats_, claim_countdown_);
  if (block->has_uses()) [[unlikely]] {
    block->state = BlockState::kPending;
    end_oversize(block);
    if (pending_.add(block)) {
      stats_.on_free_pending(static_cast<std::int64_t>(size));
      return {FreeError::kNone, size};
    }
  }
  stats_.on_free(static_cast<std::int64_t>(size), static_cast<std::int64_t>(block->requested));
  finish_free(block, context);
  return {FreeError::kNone, size};
}

void Heap::tell_of(const Block& block, MemoryEvent what, const CallContext& context) {
  MemoryObserver* observer = context_.observer.load(std::memory_order_relaxed);
  if (observer != nullptr) [[unlikely]] {
    const bool by_allocation = context == nullptr && block.extra != nullptr;
    observer->on_event({what, block.ptr, block.requested, stream_, pool_,
                        by_allocation ? block.extra->context : context});
  }
}

void Heap::tell_of_range(DevicePtr begin, std::size_t bytes, MemoryEvent what,
                         const CallContext& context, const RangeFacts& facts) {
  MemoryObserver* observer = context_.observer.load(std::memory_order_relaxed);
  if (observer != nullptr) [[unlikely]] {
    observer->on_event({what, begin, bytes, stream_, pool_, context, facts});
  }
}

// The last step of every free: nothing uses the block any more.
void Heap::finish_free(Block* block, const CallContext& context) {
  tell_of(*block, MemoryEvent::kFreeCompleted, context);
  delete std::exchange(block->extra, nullptr);
  make_free(block);
}

void Heap::make_free(Block* block) {
  block->requested = 0;
  if (!is_paged(kind_)) [[unlikely]] {
    free_in_segment(block);
    return;
  }
  if (unmerged_.accepts(block->size)) {
    unmerged_.push(block);
    return;
  }
  if (block->size <= UnmergedBins::kMaxBlock) {
    merge_all();
  }
  block->state = BlockState::kFree;
  free_.insert(merge_neighbours(block));
}

void Heap::merge_all() {
  while (Block* block = unmerged_.pop_any()) {
    block->state = BlockState::kFree;
    free_.insert(merge_neighbours(block));
  }
}

// `block` is in state kFree and in no index; its free neighbours are in the index and leave it.
Block* Heap::merge_neighbours(Block* block) {
  if (block->next != nullptr && block->next->is_free()) {
    free_.remove(block->next);
    absorb_next(block);
  }
  if (block->prev != nullptr && block->prev->is_free()) {
    block = block->prev;
    free_.remove(block);
    absorb_next(block);
  }
  return block;
}

void Heap::absorb_next(Block* block) {
  Block* gone = block->next;
  block->size += gone->size;
  block->next = gone->next;
  if (gone->next != nullptr) {
    gone->next->prev = block;
  }
  block->span->set_block(gone->ptr, nullptr);
  blocks_.recycle(gone);
}

// Cuts `block` down to `size`; what is left over becomes its next neighbour in `tail_state`.
void Heap::split_tail(Block* block, std::size_t size, BlockState tail_state) {
  Block* tail = blocks_.make();
  tail->ptr = block->ptr + size;
  tail->size = block->size - size;
  tail->span = block->span;
  tail->state = tail_state;
  tail->prev = block;
  tail->next = block->next;
  if (tail->next != nullptr) {
    tail->next->prev = tail;
  }
  block->next = tail;
  block->size = size;
  block->span->set_block(tail->ptr, tail);
}

bool Heap::record_stream(Span& span, DevicePtr ptr, StreamId stream) {
  const SpinLock lock(mutex_);
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
  block->extra->uses.push_back(use);
  return true;
}

void Heap::finish_pending(const std::vector<Block*>& ready) {
  for (Block* block : ready) {
    context_.stats.note_activity(&stats_, claim_countdown_);
    stats_.on_pending_complete(static_cast<std::int64_t>(block->size),
                               static_cast<std::int64_t>(block->requested));
    finish_free(block, nullptr);
  }
}

// Frees what `step` appends to its argument, also what it had appended when it threw.
template <typename Step>
bool Heap::finish_what(Step step) {
  std::vector<Block*> ready;
  bool result = false;
  try {
    result = step(ready);
  } catch (...) {
    finish_pending(ready);
    throw;
  }
  finish_pending(ready);
  return result;
}

bool Heap::collect_locked() {
  return finish_what([this](std::vector<Block*>& ready) FERRO_REQUIRES(mutex_) {
    pending_.collect(ready);
    return !ready.empty();
  });
}

bool Heap::collect_pending() {
  const SpinLock lock(mutex_);
  return collect_locked();
}

DevicePtr Heap::allocate_collected(const Request& request) {
  const SpinLock lock(mutex_);
  if (pending_.count() == 0) {
    // Another thread may have freed since the miss.
    return take_best_fit(request);
  }
  collect_locked();
  if (Block* block = unmerged_.pop(request.size)) {
    return hand_out(block, request);
  }
  return take_best_fit(request);
}

DevicePtr Heap::allocate_merged(const Request& request) {
  const SpinLock lock(mutex_);
  merge_all();
  return take_best_fit(request);
}

// In the default pool alone: a graph replays on the memory of its pool on any stream, and that one
// did not wait.
std::size_t Heap::orderable_bytes() {
  const SpinLock lock(mutex_);
  return pool_ == kDefaultPool ? pending_.bytes_on_events() : 0;
}

bool Heap::order_one(std::size_t size) {
  return finish_what([&](std::vector<Block*>& ready)
                         FERRO_REQUIRES(mutex_) { return pending_.order_behind_one(size, ready); });
}

bool Heap::wait_for_one() {
  return finish_what([this](std::vector<Block*>& ready)
                         FERRO_REQUIRES(mutex_) { return pending_.wait_for_one(ready); });
}

DevicePtr Heap::allocate_ordered(const Request& request, std::size_t at_most) {
  const SpinLock lock(mutex_);
  std::size_t ordered = 0;
  for (const std::size_t size : {request.size, std::size_t{1}}) {
    while (ordered < at_most) {
      const std::size_t before = pending_.bytes_on_events();
      if (!order_one(size)) {
        break;
      }
      ordered += before - pending_.bytes_on_events();
      merge_all();
      if (const DevicePtr ptr = take_best_fit(request); ptr != kNull) {
        return ptr;
      }
    }
  }
  return kNull;
}

DevicePtr Heap::allocate_waited(const Request& request) {
  const SpinLock lock(mutex_);
  for (;;) {
    merge_all();
    if (const DevicePtr ptr = take_best_fit(request); ptr != kNull) {
      return ptr;
    }
    if (!wait_for_one()) {
      return kNull;
    }
  }
}

void Heap::wait_for_pending() {
  const SpinLock lock(mutex_);
  while (wait_for_one()) {
  }
}

bool Heap::can_restore(const std::vector<BlockView>& live) {
  const SpinLock lock(mutex_);
  return pending_.count() == 0 && std::ranges::all_of(live, [this](const BlockView& view) {
           const Span* span = context_.addresses.find(view.ptr);
           if (span == nullptr || span->heap() != this) {
             return false;
           }
           std::size_t slot = span->page_slot(view.ptr);
           const std::size_t last = span->page_slot(view.ptr + (view.size - 1));
           while (slot <= last && span->page(slot) != kNoPage) {
             ++slot;
           }
           return slot > last;
         });
}

void Heap::restore_live(const std::vector<BlockView>& live, std::vector<BlockView>* freed) {
  const SpinLock lock(mutex_);
  std::vector<Block*> to_free;
  for_each_block([&](Block& block) {
    if (block.state == BlockState::kLive) {
      to_free.push_back(&block);
    }
  });
  for (Block* block : to_free) {
    context_.stats.note_activity(&stats_, claim_countdown_);
    freed->push_back({block->ptr, block->size, block->requested, BlockState::kLive, nullptr});
    tell_of(*block, MemoryEvent::kFreeRequested, nullptr);
    stats_.on_free(static_cast<std::int64_t>(block->size),
                   static_cast<std::int64_t>(block->requested));
    finish_free(block, nullptr);
  }
  merge_all();
  const SplitCounts splits_before = count_splits();
  // Everything backed is free now and merged, so each recorded block lies inside one free block.
  // They come in order of address, so one walk over each span finds all of them.
  Block* around = nullptr;
  for (const BlockView& view : live) {
    const Span* span = context_.addresses.find(view.ptr);
    if (around == nullptr || around->span != span || view.ptr < around->ptr) {
      around = span->first;
    }
    while (around->end() <= view.ptr) {
      around = around->next;
    }
    FERRO_CHECK(around->is_free() && view.ptr + view.size <= around->end());
    around = cut_out(around, view.ptr, view.size);
    hand_out(around, {view.size, view.requested, view.context});
  }
  note_splits_since(splits_before);
}

}  // namespace ferro
