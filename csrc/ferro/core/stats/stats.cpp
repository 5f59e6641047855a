#include "ferro/core/stats/stats.h"

#include <algorithm>
#include <utility>

namespace ferro {
namespace {

// A heap's share in a sum: current, its peak in this window, increases.
struct Share {
  std::int64_t current;
  std::int64_t peak;
  std::int64_t increased;
};

Share share_of(const HeapStats& heap, StatKind kind, StatClass cls) {
  const ClassPeaks& peaks = heap.peaks[cls];
  const auto live = [&](Gauge ClassStats::*gauge, const RelaxedCounter& peak) {
    return Share{heap.current(gauge, cls), peak.get(), heap.increased(gauge, cls)};
  };
  const auto active = [&](Share share, Gauge ClassStats::*pending, const RelaxedCounter& peak) {
    return Share{share.current + heap.current(pending, cls), std::max(share.peak, peak.get()),
                 share.increased};
  };
  const Share blocks = live(&ClassStats::blocks, peaks.blocks);
  const Share bytes = live(&ClassStats::bytes, peaks.bytes);
  switch (kind) {
    case kBlocks:
      return blocks;
    case kBytes:
      return bytes;
    case kActiveBlocks:
      return active(blocks, &ClassStats::pending_blocks, peaks.active_blocks);
    case kActiveBytes:
      return active(bytes, &ClassStats::pending_bytes, peaks.active_bytes);
    default:
      return live(&ClassStats::requested, peaks.requested);
  }
}

template <typename Function>
void for_each_stat(Function function) {
  for (int kind = 0; kind < kStatKinds; ++kind) {
    for (int cls = 0; cls < kStatClasses; ++cls) {
      function(static_cast<StatKind>(kind), static_cast<StatClass>(cls));
    }
  }
}

void open_window(HeapStats& heap) {
  for (const StatClass cls : {kAll, kSmall, kLarge}) {
    ClassPeaks& peaks = heap.peaks[cls];
    const std::int64_t blocks = heap.current(&ClassStats::blocks, cls);
    const std::int64_t bytes = heap.current(&ClassStats::bytes, cls);
    peaks.blocks.set(blocks);
    peaks.bytes.set(bytes);
    peaks.requested.set(heap.current(&ClassStats::requested, cls));
    peaks.active_blocks.set(blocks + heap.current(&ClassStats::pending_blocks, cls));
    peaks.active_bytes.set(bytes + heap.current(&ClassStats::pending_bytes, cls));
  }
}

const void* this_thread_tag() {
  thread_local char tag;
  return &tag;
}

}  // namespace

void HeapStats::on_free_pending(std::int64_t size) {
  ClassStats& mine = part(class_of(static_cast<std::size_t>(size)));
  mine.pending_blocks.increased.add(1);
  mine.pending_bytes.increased.add(size);
  mine.blocks.decreased.add(1);
  mine.bytes.decreased.add(size);
  raise_active_peaks();
}

void HeapStats::on_pending_complete(std::int64_t size, std::int64_t requested) {
  ClassStats& mine = part(class_of(static_cast<std::size_t>(size)));
  mine.pending_blocks.decreased.add(1);
  mine.pending_bytes.decreased.add(size);
  mine.requested.decreased.add(requested);
}

void HeapStats::raise_active_peaks() {
  for (const StatClass cls : {kAll, kSmall, kLarge}) {
    peaks[cls].active_blocks.raise_to(current(&ClassStats::blocks, cls) +
                                      current(&ClassStats::pending_blocks, cls));
    peaks[cls].active_bytes.raise_to(current(&ClassStats::bytes, cls) +
                                     current(&ClassStats::pending_bytes, cls));
  }
}

void DeviceStats::list(HeapStats* stats) {
  if (!std::exchange(stats->listed, true)) {
    changed_.push_back(stats);
  }
}

void DeviceStats::note_activity_of_another(HeapStats* stats, int& countdown) {
  const bool claims = --countdown <= 0;
  if (!claims && stats->listed) {
    return;
  }
  const MutexLock lock(mutex_);
  list(stats);
  if (claims) {
    countdown = claim(stats);
  }
}

void DeviceStats::remove_heap(HeapStats* stats) {
  const MutexLock lock(mutex_);
  fold();
  if (active_.load(std::memory_order_relaxed) == stats) {
    active_.store(nullptr, std::memory_order_relaxed);
  }
  std::erase(changed_, stats);
}

int DeviceStats::claim(HeapStats* stats) {
  fold(stats);
  open_window(*stats);
  active_.store(stats, std::memory_order_relaxed);
  // A thread that alternates between streams claims at once, which keeps its peaks exact; so does a
  // thread that follows it. Threads that run in parallel would pass this lock and its cache line to
  // each other on every call.
  const bool same_thread = active_thread_ == this_thread_tag();
  active_thread_ = this_thread_tag();
  claims_by_others_ = same_thread ? 0 : claims_by_others_ + 1;
  return claims_by_others_ > kClaimsSideBySide ? kClaimInterval : 0;
}

void DeviceStats::fold(const HeapStats* held) {
  const HeapStats* active = active_.load(std::memory_order_relaxed);
  const bool insists = changed_.size() > kMaxListed;
  std::array<std::array<std::int64_t, kStatClasses>, kStatKinds> above{};  // peak over current
  std::erase_if(changed_, [&](HeapStats* heap) FERRO_NO_THREAD_SAFETY_ANALYSIS {
    // A heap in the middle of a change stays listed; so does the active one, which gives no notice.
    const bool is_held = heap == held;
    const bool locked =
        !is_held && heap->lock != nullptr &&
        (insists ? heap->lock->try_lock() : heap->lock->try_lock_without_revoking());
    for_each_stat([&](StatKind kind, StatClass cls) FERRO_NO_THREAD_SAFETY_ANALYSIS {
      const Share share = share_of(*heap, kind, cls);
      StatShare& counted = heap->counted[kind][cls];
      StatValue& sum = sums_[kind][cls];
      const std::int64_t change = share.current - counted.current;
      const std::int64_t increased = share.increased - counted.increased;
      sum.current += change;
      sum.increased += increased;
      sum.decreased += increased - change;
      above[kind][cls] += heap == active ? share.peak - share.current : 0;
      counted = {share.current, share.increased};
    });
    const bool leaves = heap != active && !is_held && (locked || heap->lock == nullptr);
    // Written only with the heap's lock, because the heap's thread reads it under that lock alone.
    if (leaves) {
      heap->listed = false;
    }
    if (locked) {
      heap->lock->unlock();
    }
    return leaves;
  });
  for_each_stat([&](StatKind kind, StatClass cls) FERRO_NO_THREAD_SAFETY_ANALYSIS {
    peaks_[kind][cls] = std::max(peaks_[kind][cls], sums_[kind][cls].current + above[kind][cls]);
  });
}

StatTable DeviceStats::read() {
  const MutexLock lock(mutex_);
  fold();
  StatTable table = sums_;
  for_each_stat([&](StatKind kind, StatClass cls) FERRO_NO_THREAD_SAFETY_ANALYSIS {
    table[kind][cls].peak = peaks_[kind][cls];
    table[kind][cls].increased -= baseline_[kind][cls].increased;
    table[kind][cls].decreased -= baseline_[kind][cls].decreased;
  });
  return table;
}

std::uint64_t DeviceStats::allocations() {
  const MutexLock lock(mutex_);
  fold();
  return static_cast<std::uint64_t>(sums_[kBlocks][kAll].increased);
}

void DeviceStats::reset_accumulated() {
  const MutexLock lock(mutex_);
  fold();
  baseline_ = sums_;
}

void DeviceStats::reset_peaks() {
  const MutexLock lock(mutex_);
  if (HeapStats* active = active_.load(std::memory_order_relaxed)) {
    open_window(*active);
  }
  fold();
  for_each_stat([&](StatKind kind, StatClass cls) FERRO_NO_THREAD_SAFETY_ANALYSIS {
    peaks_[kind][cls] = sums_[kind][cls].current;
  });
}

}  // namespace ferro
