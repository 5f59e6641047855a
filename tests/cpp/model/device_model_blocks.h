// The model's blocks: allocation, uses by streams, frees, and the waits between streams.
#pragma once

#include "model/device_model.h"

namespace ferro::testing {

// Every call has a context of its own.
inline Request DeviceModel::request_of(std::size_t size) {
  return {size, size - size / 8, std::make_shared<unsigned>(++next_call_)};
}

inline void DeviceModel::allocate(const PoolId& pool, const Allocate& i) {
  be_held(pool);
  wait_for_late_uses(pool, owner_of(i.stream, i.size));
  const StreamId stream = traffic_.stream(i.stream);
  const auto capture = running_.find(pool);
  const bool borrows = capture != running_.end() && capture->second.of_member;
  const std::uint64_t created = device_->store().counts().created;
  const std::size_t held_before = device_->report().held_bytes();
  AllocateResult result;
  bool answered = false;
  guarded([&] {
    const Request request = request_of(i.size);
    result = pool == kDefaultPool ? device_->allocate(pool, stream, request)
                                  : graph_memory_->allocate(pool, stream, request);
    answered = true;
  });
  if (device_->store().counts().created != created) {
    expect(device_->report().held_bytes() <= limit_, "the limit holds");
    expect(device_->report().held_bytes() + others_bytes_ + world_.headroom * kPageBytes <=
               kDeviceBytes,
           "the headroom is left free");
  }
  if (!answered) {
    return;
  }
  if (result.ptr == kNull) {
    expect(result.failure != nullptr, "a failure explains itself");
    check_failure(i, *result.failure, held_before);
    return;
  }
  expect(result.failure == nullptr, "success has nothing to explain");
  // A block that a capture in a group may keep covers whole pages, unless the previous capture
  // predicts its lifetime.
  const std::size_t whole = pages_of(i.size) * kPageBytes;
  expect(
      result.size == (borrows && i.size > kSmallRequest && result.size >= whole ? whole : i.size),
      "the size");
  expect(address_of(result.ptr) % kBlockAlignment == 0, "the alignment");
  const Heap& heap = heap_of(address_of(result.ptr));
  expect(heap.pool() == pool, "the right pool");
  expect(heap.stream() == stream, "the right stream");
  become_live(result.ptr, result.size, pool, i.stream % Traffic::kStreams);
}

inline void DeviceModel::operator()(const AllocateAt& i) {
  DevicePtr ptr{std::uint64_t{kBlockAlignment} * i.which};
  PoolId pool = kDefaultPool;
  StreamId stream = traffic_.stream(i.owner);
  const bool wants_live = i.place == Place::kLive || i.place == Place::kBehind;
  if (wants_live && !live_.empty()) {
    const auto& [address, block] = *nth_live(i.which);
    ptr = DevicePtr{address};
    pool = block.pool;
    stream = heap_of(address).stream();
    if (i.place == Place::kBehind) {
      ptr = DevicePtr{(address + block.size + kPageBytes - 1) / kPageBytes * kPageBytes};
    }
  } else if (!wants_live && i.place != Place::kNowhere && !freed_.empty()) {
    const Freed& freed = freed_[i.which % freed_.size()];
    ptr = DevicePtr{freed.address};
    pool = freed.pool;
    stream = freed.stream;
    if (i.place == Place::kInside) {
      ptr = ptr + kBlockAlignment * (1 + i.which);
    }
  }
  if (i.owner != 0) {
    pool = kPools[i.owner / Traffic::kStreams % kPools.size()];
    stream = traffic_.stream(i.owner);
  }
  const unsigned number = number_of(stream);
  if (number == kGone) {
    return;  // a program requests no memory for a destroyed stream
  }
  wait_for_late_uses(pool, owner_of(number, i.size));
  const bool expected = is_free_range(pool, stream, ptr, i.size);
  AllocateResult result;
  guarded([&] {
    const Request request = request_of(i.size);
    result = pool == kDefaultPool ? device_->allocate_at(pool, stream, ptr, request)
                                  : graph_memory_->allocate_at(pool, stream, ptr, request);
  });
  expect(result.failure == nullptr, "there is nothing to explain");
  if (result.ptr == kNull) {
    // A capture does not get memory that graphs of its pool may write.
    const bool may_refuse = running_.contains(pool) || unsettled_.contains(pool);
    expect(!expected || may_refuse || fault_struck(), "free memory can be allocated");
    return;
  }
  expect(result.ptr == ptr && ptr + i.size > ptr, "at the address");
  const Heap& heap = heap_of(address_of(ptr));
  expect(heap.pool() == pool && heap.stream() == stream, "in the pool and on the stream");
  expect(result.size == i.size, "the size");
  become_live(ptr, result.size, pool, number);
}

// Does the allocator's view show the range within one free block that serves such requests?
inline bool DeviceModel::is_free_range(const PoolId& pool, StreamId stream, DevicePtr ptr,
                                       std::size_t size) {
  for (const SegmentView& segment : device_->report().segments(&pool)) {
    const bool serves = segment.kind == heap_kind(size) || segment.kind == HeapKind::kKeptPages;
    for (const BlockView& block : segment.blocks) {
      if (serves && segment.stream == stream && block.state == BlockState::kFree &&
          ptr >= block.ptr && ptr < block.ptr + block.size) {
        return size <= distance(ptr, block.ptr + block.size);
      }
    }
  }
  return false;
}

inline void DeviceModel::free(Live::iterator found) {
  const auto& [address, block] = *found;
  const DevicePtr ptr{address};
  if (block.shared) {
    check_shared(address, block);
  }
  if (block.tag != 0 && block.stream != kGone && !is_capturing(block.stream)) {
    traffic_.read(block.stream, ptr, block.size, block.tag);
  }
  note_freed(block);
  for (const Use& use : block.uses) {
    quarantine(address, block.size, use);
  }
  if (block.last_work != nullptr) {
    quarantine_.push_back({address, address + block.size, kGone, 0, block.last_work});
  }
  Span& span = *addresses().find(ptr);
  freed_.push_back({address, block.pool, span.heap()->stream()});
  if (freed_.size() > 8) {
    freed_.pop_front();
  }
  const FreeResult freed = span.heap()->free(span, ptr);
  expect(freed.error == FreeError::kNone && freed.size == block.size, "a free never fails");
  expect(span.heap()->free(span, ptr).error == FreeError::kNotLive, "nothing is freed twice");
  live_.erase(found);
}

inline void DeviceModel::operator()(const FreeInUse& i) {
  if (live_.empty()) {
    return;
  }
  const auto found = nth_live(i.block);
  const Block& block = found->second;
  if (i.block % 64 == 0) {
    traffic_.use_second_device();
  }
  const bool by_second = traffic_.uses_second_device() && i.block % 3 == 0;
  const unsigned user = by_second ? Traffic::kSecondDevice : i.stream % Traffic::kStreams;
  if (block.pool == kDefaultPool && block.stream != kGone && block.stream != user &&
      block.tag != 0 && !is_capturing(user) && !is_capturing(block.stream)) {
    traffic_.order(block.stream, user);
    traffic_.read(user, DevicePtr{found->first}, block.size, block.tag);
    late_uses_[owner_of(block.stream, block.size)].push_back(
        {traffic_.last_place(user), i.wait, found->first, found->first + block.size});
  }
  free(found);
}

inline void DeviceModel::wait_for(const LateUse& use, unsigned stream) {
  if (use.wait == LateWait::kOfHost || is_capturing(stream)) {
    use.last->wait();
  } else {
    use.last->hold_back(traffic_.stream(stream));
  }
}

// A program waits before each request, even if the request does not get that memory.
inline void DeviceModel::wait_for_late_uses(const PoolId& pool, const Owner& owner) {
  if (pool == kDefaultPool) {
    std::erase_if(late_uses_[owner], [&](const LateUse& use) {
      const bool now = use.wait != LateWait::kWhereItLay;
      if (now) {
        wait_for(use, owner.first);
      }
      return now;
    });
  }
}

// A page at a new address is ordered behind all work of the device. Memory at its old address
// serves any request that fits, as in expandable segments.
inline void DeviceModel::wait_for_uses_of(const Block& block, std::uint64_t begin) {
  if (block.pool == kDefaultPool && block.stream != kGone) {
    std::erase_if(late_uses_[owner_of(block.stream, block.size)], [&](const LateUse& use) {
      const bool overlaps = begin < use.end && use.begin < begin + block.size;
      if (overlaps) {
        wait_for(use, block.stream);
      }
      return overlaps;
    });
  }
}

inline void DeviceModel::operator()(const RecordStream& i) {
  if (live_.empty()) {
    return;
  }
  const auto found = nth_live(i.block);
  Block& block = found->second;
  const DevicePtr ptr{found->first};
  const unsigned user = i.stream % Traffic::kStreams;
  if (known::kGoneStreamIsAskedByFree && block.stream == kGone && is_capturing(user)) {
    return;
  }
  Span& span = *addresses().find(ptr);
  bool recorded = false;
  guarded([&] {
    expect(span.heap()->record_stream(span, ptr, traffic_.stream(user)), "a live block");
    recorded = true;
  });
  if (!recorded || user == block.stream) {
    return;
  }
  block.uses.push_back({user, traffic_.capture(user)});
  if (block.tag != 0 && !is_capturing(user) && !is_capturing(block.stream)) {
    if (block.last_work != nullptr) {
      block.last_work->hold_back(traffic_.stream(user));
    } else {
      traffic_.order(block.stream, user);
    }
    traffic_.read(user, ptr, block.size, block.tag);
  }
}

// The number of a stream; kGone for a destroyed one.
inline unsigned DeviceModel::number_of(StreamId stream) const {
  for (unsigned number = 0; number < Traffic::kStreams; ++number) {
    if (traffic_.stream(number) == stream) {
      return number;
    }
  }
  return kGone;
}

inline void DeviceModel::become_live(DevicePtr ptr, std::size_t size, const PoolId& pool,
                                     unsigned stream) {
  const std::uint64_t begin = address_of(ptr);
  const auto after = live_.lower_bound(begin);
  expect(after == live_.end() || begin + size <= after->first, "no overlap with the next");
  expect(after == live_.begin() || std::prev(after)->first + std::prev(after)->second.size <= begin,
         "no overlap with the one before");
  std::erase_if(quarantine_, [this](const Quarantined& q) { return is_over(q); });
  for (const Quarantined& q : quarantine_) {
    if (begin < q.end && q.begin < begin + size && stream != kGone) {
      expect(q.event != nullptr, "no other stream uses it any more");
      promises_.push_back({q.event, traffic_.last_place(stream)});
    }
  }
  Block& block = live_[begin] = {.size = size, .pool = pool, .stream = stream};
  if (running_.contains(pool)) {
    note_captured(pool, begin, size);
  } else {
    wait_for_uses_of(block, begin);
    wait_for_replays(block);
    write_first(begin, block);
  }
}

inline void DeviceModel::write_first(std::uint64_t begin, Block& block) {
  if (block.stream != kGone && !is_capturing(block.stream)) {
    block.tag = static_cast<std::uint8_t>(1 + next_tag_++ % 255);
    traffic_.write(block.stream, DevicePtr{begin}, block.size, block.tag);
  }
}

inline void DeviceModel::quarantine(std::uint64_t begin, std::size_t size, const Use& use) {
  const unsigned running = traffic_.capture(use.stream);
  if (use.capture != 0 && use.capture != running) {
    return;  // joined by the end of its capture
  }
  quarantine_.push_back(
      {begin, begin + size, use.stream, running,
       running == 0 ? std::make_shared<Event>(traffic_.record(use.stream)) : nullptr});
}

// A checkpoint is restored only while the pool has no other uses. False if captures use it.
inline bool DeviceModel::settle_uses(const PoolId& pool) {
  for (const auto& [address, block] : live_) {
    for (const Use& use : block.pool == pool ? block.uses : std::vector<Use>{}) {
      if (traffic_.capturing(use.stream)) {
        return false;
      }
      traffic_.finish(use.stream);
    }
  }
  return true;
}

}  // namespace ferro::testing
