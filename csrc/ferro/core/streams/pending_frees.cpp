#include "ferro/core/streams/pending_frees.h"

#include "ferro/base/check.h"
#include "ferro/driver/error.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace ferro {

bool PendingFrees::add(Block* block) {
  Start start = Start::kDeferred;
  std::optional<Driver::Session> session;
  try {
    session.emplace(driver_);
    start = start_waiting(block, Query::kWhereNeeded);
  } catch (const DriverError&) {
    // A free never fails. The block stays unused until the driver responds again.
  }
  if (start == Start::kNothingToWaitFor) {
    return false;
  }
  if (start == Start::kDeferred) {
    deferred_.push_back({block, captured_uses(*block)});
  }
  ++count_;
  return true;
}

std::optional<CaptureFrontier> PendingFrees::captured_uses(const Block& block) {
  const bool may_be_gone =
      stream_lasts_ != nullptr && !stream_lasts_->load(std::memory_order_relaxed);
  if (may_be_gone) {
    return std::nullopt;
  }
  std::vector<StreamId> streams;
  for (const StreamUse& use : block.extra->uses) {
    if (use.capture_id == 0) {
      return std::nullopt;
    }
    streams.push_back(use.stream);
  }
  try {
    return order_.mark(streams);
  } catch (const DriverError&) {
    return std::nullopt;
  }
}

// EventPool::record detects a stream that captures, and disturbs no capture. So a stream is queried
// before only if the block is deferred, because it most likely waits for a capture that still runs.
PendingFrees::Start PendingFrees::start_waiting(Block* block, Query query) {
  std::vector<StreamId> streams;
  for (const StreamUse& use : block->extra->uses) {
    if (query == Query::kWhereNeeded && use.capture_id == 0) {
      streams.push_back(use.stream);
      continue;
    }
    const CaptureInfo capture = driver_.capture_info(use.stream);
    const bool capturing = capture.status != CaptureStatus::kNone;
    if (capturing && (use.capture_id == 0 || capture.id == 0 || use.capture_id == capture.id)) {
      return Start::kDeferred;
    }
    // The end of a capture has joined the uses inside it.
    if (use.capture_id == 0) {
      streams.push_back(use.stream);
    }
  }
  if (streams.empty()) {
    return Start::kNothingToWaitFor;
  }
  std::vector<EventId> recorded;
  const auto undo = [&] {
    for (const EventId event : recorded) {
      events_.put(event);
    }
  };
  try {
    for (const StreamId stream : streams) {
      const EventId event = events_.record(stream);
      if (event == kNoEvent) {
        undo();
        return Start::kDeferred;
      }
      recorded.push_back(event);
    }
  } catch (...) {
    undo();
    throw;
  }
  for (std::size_t i = 0; i < streams.size(); ++i) {
    queues_[streams[i]].push_back({recorded[i], block, next_number_});
  }
  ++next_number_;
  bytes_on_events_ += block->size;
  block->extra->events = streams.size();
  return Start::kWaiting;
}

void PendingFrees::retry_deferred(std::vector<Block*>& ready) {
  if (std::ranges::any_of(deferred_, [](const Deferred& one) { return one.uses.has_value(); })) {
    try {
      order_.scan();
    } catch (const DriverError&) {
      // The results of earlier scans still hold.
    }
  }
  for (Deferred& one : std::exchange(deferred_, {})) {
    Block* block = one.block;
    Start start = Start::kDeferred;
    try {
      const bool ordered = one.uses && order_.is_behind(*one.uses);
      start = ordered ? Start::kNothingToWaitFor : start_waiting(block, Query::kAlways);
    } catch (const DriverError&) {
      // Its stream may no longer exist. That must not fail requests that do not depend on it.
    }
    if (start == Start::kDeferred) {
      deferred_.push_back(std::move(one));
    } else if (start == Start::kNothingToWaitFor) {
      ready.push_back(block);
      --count_;
    }
  }
}

void PendingFrees::finish_front(std::deque<Entry>& queue, std::vector<Block*>& ready) {
  const Entry entry = queue.front();
  queue.pop_front();
  events_.put(entry.event);
  if (--entry.block->extra->events == 0) {
    ready.push_back(entry.block);
    bytes_on_events_ -= entry.block->size;
    --count_;
  }
}

void PendingFrees::pop_complete(std::deque<Entry>& queue, std::vector<Block*>& ready) {
  // Events of one stream complete in the order in which they were recorded.
  while (!queue.empty() && driver_.is_complete(queue.front().event)) {
    finish_front(queue, ready);
  }
}

void PendingFrees::collect(std::vector<Block*>& ready) {
  if (count_ == 0) {
    return;
  }
  retry_deferred(ready);
  for (auto it = queues_.begin(); it != queues_.end();) {
    pop_complete(it->second, ready);
    // A stream that no longer exists must not keep its queue.
    it = it->second.empty() ? queues_.erase(it) : std::next(it);
  }
}

Block* PendingFrees::first_freed(std::size_t size) const {
  const Entry* first = nullptr;
  for (const auto& [stream, queue] : queues_) {
    const auto fits = [size](const Entry& entry) { return entry.block->size >= size; };
    const auto found = std::ranges::find_if(queue, fits);
    if (found != queue.end() && (first == nullptr || found->number < first->number)) {
      first = &*found;
    }
  }
  return first == nullptr ? nullptr : first->block;
}

// The uses may be on another device. Points of this device cover them only after the wait, so the
// blocks are stamped after it.
bool PendingFrees::stream_wait_for_one(std::size_t size, const DeviceTimeline& timeline,
                                       std::vector<Block*>& ready) {
  const Block* block = first_freed(size);
  if (block == nullptr) {
    return false;
  }
  bool ordered = false;
  for (auto& [stream, queue] : queues_) {
    const auto entry = std::ranges::find(queue, block, &Entry::block);
    if (entry == queue.end()) {
      continue;
    }
    if (!driver_.stream_wait(entry->event, own_stream_)) {
      return ordered;
    }
    ordered = true;
    // One stream's events complete in the order of their records, so the wait covers all before it.
    for (auto left = entry - queue.begin() + 1; left != 0; --left) {
      queue.front().block->freed = timeline.now();
      finish_front(queue, ready);
    }
  }
  return ordered;
}

std::optional<EventId> PendingFrees::next_event(std::vector<Block*>& ready) {
  // Blocks that were deferred because of a capture that has ended have no events yet.
  const std::size_t ready_before = ready.size();
  retry_deferred(ready);
  if (ready.size() != ready_before) {
    return std::nullopt;
  }
  for (const auto& [stream, queue] : queues_) {
    if (!queue.empty()) {
      return queue.front().event;
    }
  }
  return std::nullopt;
}

bool PendingFrees::is_behind_capture() {
  try {
    return order_.is_behind_all();
  } catch (const DriverError&) {
    return false;
  }
}

void PendingFrees::check_invariants() const {
  std::unordered_map<const Block*, std::size_t> events;
  for (const auto& [stream, queue] : queues_) {
    FERRO_CHECK(std::ranges::is_sorted(queue, std::ranges::less{}, &Entry::number));
    for (const Entry& entry : queue) {
      ++events[entry.block];
    }
  }
  std::size_t bytes = 0;
  for (const auto& [block, count] : events) {
    FERRO_CHECK(block->state == BlockState::kPending && block->extra->events == count);
    bytes += block->size;
  }
  FERRO_CHECK(bytes == bytes_on_events_);
  for (const auto& [block, uses] : deferred_) {
    FERRO_CHECK(block->state == BlockState::kPending && block->extra->events == 0);
  }
  FERRO_CHECK(events.size() + deferred_.size() == count_);
}

}  // namespace ferro
