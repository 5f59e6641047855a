// The classic layout's way through a request, in PyTorch's order: pending frees, a cached block,
// the callbacks, collection of old segments, a new segment, pools that lend, oversize segments,
// all cached segments, failure.
//
// It runs under slow_mutex_ from the start, as PyTorch's runs under the one lock of a device: what
// it decides depends on all pools, and programs that compare the two see the same order of events.
#include "ferro/base/check.h"
#include "ferro/core/device_memory.h"

#include <algorithm>

namespace ferro {

AllocateResult DeviceMemory::allocate_in_segments(const PoolId& id, StreamId stream,
                                                  const Request& request) {
  const RecursiveMutexLock slow(slow_mutex_);
  if (captures_.load(std::memory_order_relaxed) == 0) {
    for (Heap* heap : all_heaps()) {
      heap->collect_pending();
    }
  }
  const HeapKind kind = segment_kind(request.size);
  Heap& heap = find_or_make_heap(id, {stream, kind});
  SegmentRules rules = segment_rules();
  if (layout_ == Layout::kPages && request.no_split) {
    // Nothing else will fill a segment that is larger than its block.
    rules.large_segment = align_up(request.size, kSmallSegment);
  }
  const auto done = [](const BlockView& block) {
    return AllocateResult{block.ptr, block.size, nullptr};
  };
  const auto search = [&]() FERRO_REQUIRES(slow_mutex_) {
    if (id == kDefaultPool && kind == HeapKind::kLargeSegments && collects(rules)) {
      searches_.fetch_add(1, std::memory_order_relaxed);
    }
    return heap.allocate_in_segments(request, rules);
  };
  const auto ended_by = [this](LadderStep step) FERRO_REQUIRES(slow_mutex_) {
    ++counters_.ladder[static_cast<std::size_t>(step)];
  };
  const auto grow = [&]() FERRO_REQUIRES(slow_mutex_) {
    return allocate_in_new_segment(id, heap, request, rules);
  };
  if (const BlockView block = search(); block.ptr != kNull) {
    return done(block);
  }
  read_rejection_limit();
  if (on_shortage_ && on_shortage_()) {
    if (const BlockView block = search(); block.ptr != kNull) {
      ended_by(LadderStep::kGiveBack);
      return done(block);
    }
  }
  if (collects(rules)) {
    collect_old_segments(rules, request.context);
  }
  if (const BlockView block = grow(); block.ptr != kNull) {
    ended_by(LadderStep::kGrow);
    return done(block);
  }
  if (rejected_) {
    return reject(segment_bytes(request.size, rules));
  }
  if (id == kDefaultPool) {
    if (const BlockView block = borrow_from_pools({stream, kind}, request, rules);
        block.ptr != kNull) {
      ended_by(LadderStep::kHandOver);
      return done(block);
    }
  }
  if (rules.max_split != SegmentRules::kUnlimited &&
      release_oversize_segments(heap, request, rules)) {
    if (const BlockView block = grow(); block.ptr != kNull) {
      ended_by(LadderStep::kGiveBack);
      return done(block);
    }
  }
  if (captures_.load(std::memory_order_relaxed) == 0) {
    ++counters_.retries;
    ++counters_.synchronisations;
    give_back_everything(request.context);
    if (const BlockView block = grow(); block.ptr != kNull) {
      ended_by(LadderStep::kWait);
      return done(block);
    }
  }
  return out_of_memory(segment_bytes(request.size, rules));
}

bool DeviceMemory::collects(const SegmentRules& rules) const {
  return rules.collect_above > 0 && store_.limit() != PageStore::kNoLimit;
}

SegmentSource& DeviceMemory::source_of(const PoolId& id) {
  const MutexLock lock(pools_mutex_);
  SegmentSource* source = pools_[id].source.get();
  return source != nullptr ? *source : driver_segments_;
}

BlockView DeviceMemory::allocate_in_new_segment(const PoolId& id, Heap& heap,
                                                const Request& request, const SegmentRules& rules) {
  const std::size_t bytes = segment_bytes(request.size, rules);
  if (const TakeResult room = store_.charge(bytes); room != TakeResult::kOk) {
    rejected_ = room == TakeResult::kRejected;
    return {};
  }
  DevicePtr base = kNull;
  try {
    base = source_of(id).allocate(bytes);
  } catch (...) {
    store_.discharge(bytes);
    throw;
  }
  if (base == kNull) {
    store_.discharge(bytes);
    return {};
  }
  store_.settle();
  ++counters_.segments_created;
  if (bytes >= rules.max_split) {
    segment_stats_.on_oversize_segment(1);
  }
  return heap.allocate_in_new_segment(base, bytes, request, rules);
}

// Only a block that is cached there already, and it stays theirs.
BlockView DeviceMemory::borrow_from_pools(const HeapKey& key, const Request& request,
                                          const SegmentRules& rules) {
  std::vector<Heap*> lenders;
  {
    const MutexLock lock(pools_mutex_);
    for (auto& [id, pool] : pools_) {
      const auto heap = pool.use_on_oom ? pool.heaps.find(key) : pool.heaps.end();
      if (heap != pool.heaps.end()) {
        lenders.push_back(heap->second.get());
      }
    }
  }
  for (Heap* lender : lenders) {
    BlockView block = lender->allocate_in_segments(request, rules);
    if (block.ptr != kNull) {
      return block;
    }
  }
  return {};
}

bool DeviceMemory::release_segment(Heap& heap, DevicePtr base, const CallContext& context) {
  std::unique_ptr<Span> segment = heap.detach_segment(base, context);
  if (segment == nullptr) {
    return false;
  }
  const std::size_t bytes = segment->bytes();
  bool released = false;
  try {
    released = source_of(heap.pool()).release(base);
  } catch (...) {
    heap.attach_segment(std::move(segment));
    throw;
  }
  if (!released) {
    heap.attach_segment(std::move(segment));
    return false;
  }
  store_.discharge(bytes);
  ++counters_.segments_released;
  if (bytes >= segment_rules().max_split) {
    segment_stats_.on_oversize_segment(-1);
  }
  return true;
}

void DeviceMemory::collect_old_segments(const SegmentRules& rules, const CallContext& context) {
  const auto threshold =
      static_cast<std::size_t>(rules.collect_above * static_cast<double>(store_.limit()));
  const std::size_t held = held_bytes();
  if (held <= threshold) {
    return;
  }
  struct Candidate {
    Heap* heap;
    DevicePtr base;
  };
  std::vector<Candidate> candidates;
  std::vector<std::size_t> sizes;
  std::vector<std::uint32_t> ages;
  const std::uint32_t now = searches_.load(std::memory_order_relaxed);
  for (Heap* heap : heaps_of(kDefaultPool)) {
    if (heap->kind() != HeapKind::kLargeSegments) {
      continue;
    }
    for (const FreeSegment& segment : heap->free_segments()) {
      candidates.push_back({heap, segment.base});
      sizes.push_back(segment.bytes);
      ages.push_back(now - segment.free_since);
    }
  }
  for (const std::size_t i : plan_collection(sizes, ages, held - threshold)) {
    release_segment(*candidates[i].heap, candidates[i].base, context);
  }
}

bool DeviceMemory::release_oversize_segments(Heap& heap, const Request& request,
                                             const SegmentRules& rules) {
  const std::vector<FreeSegment> segments = heap.free_segments();
  std::vector<std::size_t> sizes(segments.size());
  std::ranges::transform(segments, sizes.begin(), &FreeSegment::bytes);
  const OversizeRelease plan = plan_oversize_release(sizes, request.size, rules);
  for (const std::size_t i : plan.segments) {
    release_segment(heap, segments[i].base, request.context);
  }
  return plan.enough;
}

void DeviceMemory::release_free_segments(Heap& heap, const CallContext& context) {
  for (const FreeSegment& segment : heap.free_segments()) {
    release_segment(heap, segment.base, context);
  }
}

}  // namespace ferro
