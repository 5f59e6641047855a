// Handles that give their memory up while their addresses stay.
#include "ferro/base/check.h"
#include "ferro/core/heap/heap.h"

#include <algorithm>
#include <utility>

namespace ferro {
namespace {

// `used` and what of `held` lies on the handle.
std::vector<PageRun> with_held(std::vector<PageRun> used, const AddressRanges& held,
                               DevicePtr begin, DevicePtr end) {
  if (!held.overlaps(begin, distance(begin, end))) {
    return used;
  }
  AddressRanges all;
  for (const PageRun& run : used) {
    all.add(run.begin, run.bytes);
  }
  all.unite(held);
  used.clear();
  all.for_each_inside(begin, distance(begin, end), [&](DevicePtr ptr, std::size_t bytes) {
    used.push_back({ptr, bytes});
  });
  return used;
}

}  // namespace

// What lies on a handle.
struct Heap::Use {
  bool any_wanted = false;    // in use, and of the filter
  bool any_other = false;     // in use, or pending
  std::vector<PageRun> used;  // whose contents are kept
};

// `first` is the block at `begin`. Parts in use that lie close together are one: copying what is
// between them costs less than a second copy.
Heap::Use Heap::use_of_handle(const Block* first, DevicePtr begin, DevicePtr end,
                              const SleepFilter& which) const {
  constexpr std::size_t kCopiedGap = 64 * kKiB;
  Use use;
  for (const Block* block = first; block != nullptr && block->ptr < end; block = block->next) {
    if (block->state == BlockState::kPending) {
      use.any_other = true;
    }
    if (block->state != BlockState::kLive) {
      continue;
    }
    const SleepFilter::InUse in_use{block->ptr, block->requested, block->tag, pool_};
    if (!which.has(in_use)) {
      use.any_other = true;
      continue;
    }
    use.any_wanted = true;
    if (which.keeps && !which.keeps(in_use)) {
      continue;
    }
    const DevicePtr from = std::max(block->ptr, begin);
    const DevicePtr until = std::min(block->end(), end);
    if (!use.used.empty()) {
      PageRun& last = use.used.back();
      if (distance(last.begin + last.bytes, from) <= kCopiedGap) {
        last.bytes = distance(last.begin, until);
        continue;
      }
    }
    use.used.push_back({from, distance(from, until)});
  }
  return use;
}

std::optional<StayReason> Heap::reason_to_stay(const Span& span, DevicePtr begin,
                                               const std::set<PageHandle>& shared) {
  const std::size_t slot = span.page_slot(begin);
  if (span.is_borrowed(slot) || shared.contains(span.page(slot))) {
    return StayReason::kShared;
  }
  if (const ExportedUnit* unit = exported_.find(begin)) {
    return unit->id != 0 ? StayReason::kExported : StayReason::kPinned;
  }
  return std::nullopt;
}

std::vector<Heap::Asleep> Heap::fall_asleep(const SleepFilter& which,
                                            const std::set<PageHandle>& shared,
                                            StayingBytes& staying) {
  const bool has_scratch = keeps_pages() && which.has_scratch(pool_);
  const AddressRanges held =
      context_.graphs != nullptr ? context_.graphs->held_by_trees(pool_) : AddressRanges{};
  const HeapLock lock(mutex_);
  collect_quietly();
  std::vector<Asleep> asleep;
  for (const auto& [base, span] : tiling_.spans()) {
    const Block* block = span->first;
    for (std::size_t slot = 0; slot < span->page_slots();) {
      if (span->page(slot) == kNoPage) {
        slot = span->is_filled(slot) ? span->handle_end(slot) : slot + 1;
        continue;
      }
      const std::size_t pages = span->handle_end(slot) - slot;
      const DevicePtr begin = base + slot * page_bytes_;
      const DevicePtr end = begin + pages * page_bytes_;
      slot += pages;
      while (block->end() <= begin) {
        block = block->next;
      }
      Use use = use_of_handle(block, begin, end, which);
      if (!use.any_wanted && (use.any_other || !has_scratch)) {
        continue;
      }
      std::optional<StayReason> why = reason_to_stay(*span, begin, shared);
      if (!why && use.any_other) {
        why = StayReason::kBeside;
      }
      if (why) {
        staying.add(*why, pages * page_bytes_);
      } else {
        asleep.push_back(
            {begin, {kNoPage, pages}, with_held(std::move(use.used), held, begin, end)});
      }
    }
  }
  for (Asleep& each : asleep) {
    Span& span = *tiling_.span_around(each.begin);
    const DevicePtr end = each.begin + each.range.pages * page_bytes_;
    for (Block* block = span.block_around(each.begin); block != nullptr && block->ptr < end;
         block = block->next) {
      if (block->state == BlockState::kLive && block->extra == nullptr) {
        block->extra = new BlockExtra;
      }
    }
    const std::size_t bytes = each.range.pages * page_bytes_;
    notify_of_range(each.begin, bytes, MemoryEvent::kUnmapped, nullptr, {.reason = "asleep"});
    each.range.handle = tiling_.put_to_sleep(span, each.begin, &asleep_[each.begin]);
    count_pool_bytes(kLarge, -static_cast<std::int64_t>(bytes));
  }
  return asleep;
}

std::vector<Heap::Asleep> Heap::sleeping(const SleepFilter& which) {
  const bool has_scratch = keeps_pages() && which.has_scratch(pool_);
  const HeapLock lock(mutex_);
  std::vector<Asleep> found;
  for (const auto& [begin, retired] : asleep_) {
    const Span& span = *tiling_.span_around(begin);
    const DevicePtr end = tiling_.handle_end(span, begin);
    const Use use = use_of_handle(span.block_around(begin), begin, end, which);
    if (use.any_wanted || (!use.any_other && has_scratch)) {
      found.push_back({begin, {kNoPage, distance(begin, end) / page_bytes_}});
    }
  }
  return found;
}

std::vector<DevicePtr> Heap::forget_asleep() {
  std::vector<DevicePtr> forgotten;
  const SleepFilter any{[](const SleepFilter::InUse&) { return true; }, nullptr};
  const HeapLock lock(mutex_);
  for (auto unit = asleep_.begin(); unit != asleep_.end();) {
    const DevicePtr begin = unit->first;
    Span& span = *tiling_.span_around(begin);
    const DevicePtr end = tiling_.handle_end(span, begin);
    const Use use = use_of_handle(span.block_around(begin), begin, end, any);
    if (use.any_wanted || use.any_other) {
      ++unit;
      continue;
    }
    forget_mapping(begin, distance(begin, end));
    tiling_.make_gap(tiling_.forget_asleep(span, begin));
    forgotten.push_back(begin);
    unit = asleep_.erase(unit);
  }
  return forgotten;
}

bool Heap::is_asleep(Span& span, DevicePtr ptr) {
  const HeapLock lock(mutex_);
  const Block* block = span.block_around(ptr);
  return block->is_backed() && tiling_.is_asleep(*block);
}

void Heap::wake(DevicePtr begin, std::span<const HandleRange> handles, const char* reason) {
  const HeapLock lock(mutex_);
  Span& span = *tiling_.span_around(begin);
  const auto unit = asleep_.find(begin);
  FERRO_CHECK(unit != asleep_.end());
  tiling_.wake(span, begin, handles, unit->second);
  asleep_.erase(unit);
  const std::size_t bytes = pages_in(handles) * page_bytes_;
  count_pool_bytes(kLarge, static_cast<std::int64_t>(bytes));
  notify_of_range(begin, bytes, MemoryEvent::kMapped, nullptr, {.reason = reason});
  list_free_pages();
}

}  // namespace ferro
