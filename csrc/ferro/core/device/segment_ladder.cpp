#include "ferro/core/device/segment_ladder.h"

#include "ferro/base/check.h"

#include <algorithm>

namespace ferro {

SegmentLadder::Search SegmentLadder::begin(const PoolId& id, StreamId stream,
                                           const Request& request) {
  if (parts_.captures.load(std::memory_order_relaxed) == 0) {
    parts_.pools.for_each_with_pending([](Heap& heap) { heap.collect_pending(); });
  }
  SegmentHeap& heap = parts_.pools.segments(id, stream, segment_kind(request.size));
  SegmentRules rules = parts_.segment_rules();
  if (parts_.layout == Layout::kPages && request.no_split) {
    // Nothing else will fill a segment that is larger than its block.
    rules.large_segment = align_up(request.size, kSmallSegment);
  }
  return {id, stream, request, heap, rules};
}

BlockView SegmentLadder::find_cached(const Search& search) {
  if (search.id == kDefaultPool && search.heap.kind() == HeapKind::kLargeSegments &&
      collects(search.rules)) {
    parts_.searches.fetch_add(1, std::memory_order_relaxed);
  }
  return search.heap.allocate(search.request, search.rules);
}

SegmentLadder::Outcome SegmentLadder::climb(Search& search) {
  const SegmentRules& rules = search.rules;
  const std::size_t wanted = segment_bytes(search.request.size, rules);
  const auto ended = [&](LadderStep step, const BlockView& block) {
    ++parts_.counters.ended_by(step);
    return Outcome{block, wanted};
  };
  if (parts_.ask_program_for_memory()) {
    if (const BlockView block = find_cached(search); block.ptr != kNull) {
      return ended(LadderStep::kReclaim, block);
    }
  }
  if (collects(rules)) {
    collect_old_segments(search);
  }
  if (const BlockView block = allocate_in_new_segment(search); block.ptr != kNull) {
    return ended(LadderStep::kGrow, block);
  }
  if (search.rejected) {
    return {{}, wanted, true};
  }
  if (search.id == kDefaultPool) {
    if (const BlockView block =
            parts_.pools.borrow({search.stream, search.heap.kind()}, search.request, rules);
        block.ptr != kNull) {
      return ended(LadderStep::kTransfer, block);
    }
  }
  if (rules.max_split != SegmentRules::kUnlimited && release_oversize_segments(search)) {
    if (const BlockView block = allocate_in_new_segment(search); block.ptr != kNull) {
      return ended(LadderStep::kReclaim, block);
    }
  }
  if (parts_.captures.load(std::memory_order_relaxed) == 0) {
    ++parts_.counters.retries;
    ++parts_.counters.synchronisations;
    reclaimer_.empty_cache(search.request.context);
    if (const BlockView block = allocate_in_new_segment(search); block.ptr != kNull) {
      return ended(LadderStep::kWait, block);
    }
    // Pages that have left their heap, and whose epochs have not passed.
    while (const std::optional<Epoch> freed = parts_.store.epoch_to_wait_for()) {
      if (!parts_.timeline.wait(*freed)) {
        break;
      }
      if (const BlockView block = allocate_in_new_segment(search); block.ptr != kNull) {
        return ended(LadderStep::kWait, block);
      }
    }
  }
  return {{}, wanted, false};
}

bool SegmentLadder::collects(const SegmentRules& rules) const {
  return rules.collect_above > 0 && parts_.store.limit() != PageStore::kNoLimit;
}

BlockView SegmentLadder::allocate_in_new_segment(Search& search) {
  const SegmentRules& rules = search.rules;
  const std::size_t bytes = segment_bytes(search.request.size, rules);
  TakeResult room = parts_.store.charge(bytes);
  if (room != TakeResult::kOk && reclaimer_.trim(Reclaimer::kAllPages) != 0) {
    room = parts_.store.charge(bytes);
  }
  search.rejected = room == TakeResult::kRejected;
  if (room != TakeResult::kOk) {
    return {};
  }
  DevicePtr base = kNull;
  try {
    std::shared_ptr<SegmentSource> keep;
    SegmentSource& source = reclaimer_.source_of(search.id, keep);
    base = source.allocate(bytes);
    if (base == kNull && reclaimer_.trim(Reclaimer::kAllPages) != 0) {
      base = source.allocate(bytes);
    }
  } catch (...) {
    parts_.store.discharge(bytes);
    throw;
  }
  if (base == kNull) {
    parts_.store.discharge(bytes);
    return {};
  }
  parts_.store.commit_peak();
  ++parts_.counters.segments_created;
  if (bytes >= rules.max_split) {
    parts_.segment_stats.on_oversize_segment(1);
  }
  return search.heap.allocate_in_new_segment(base, bytes, search.request, rules);
}

void SegmentLadder::collect_old_segments(const Search& search) {
  const auto threshold = static_cast<std::size_t>(search.rules.collect_above *
                                                  static_cast<double>(parts_.store.limit()));
  const std::size_t held = parts_.held_bytes();
  if (held <= threshold) {
    return;
  }
  struct Candidate {
    SegmentHeap* heap;
    DevicePtr base;
  };
  std::vector<Candidate> candidates;
  std::vector<std::size_t> sizes;
  std::vector<std::uint32_t> ages;
  const std::uint32_t now = parts_.searches.load(std::memory_order_relaxed);
  for (Heap* heap : parts_.pools.heaps_of(kDefaultPool)) {
    if (heap->kind() != HeapKind::kLargeSegments) {
      continue;
    }
    auto* segments = static_cast<SegmentHeap*>(heap);
    for (const FreeSegment& segment : segments->free_segments()) {
      candidates.push_back({segments, segment.base});
      sizes.push_back(segment.bytes);
      ages.push_back(now - segment.free_since);
    }
  }
  for (const std::size_t i : plan_collection(sizes, ages, held - threshold)) {
    reclaimer_.release_segment(*candidates[i].heap, candidates[i].base, search.request.context);
  }
}

bool SegmentLadder::release_oversize_segments(const Search& search) {
  const std::vector<FreeSegment> segments = search.heap.free_segments();
  std::vector<std::size_t> sizes(segments.size());
  std::ranges::transform(segments, sizes.begin(), &FreeSegment::bytes);
  const OversizeRelease plan = plan_oversize_release(sizes, search.request.size, search.rules);
  for (const std::size_t i : plan.segments) {
    reclaimer_.release_segment(search.heap, segments[i].base, search.request.context);
  }
  return plan.enough;
}

}  // namespace ferro
