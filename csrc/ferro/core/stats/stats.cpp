#include "ferro/core/stats/stats.h"

#include <algorithm>
#include <utility>

namespace ferro {
namespace {

// What one heap adds to a sum: current, its peak in this window, increases.
struct Share {
  std::int64_t current;
  std::int64_t peak;
  std::int64_t increased;
};

Share share_of(const HeapStats& heap, StatKind kind, StatClass cls) {
  const ClassStats& stats = heap.of[cls];
  const auto gauge = [](const Gauge& g) {
    return Share{g.current.get(), g.peak.get(), g.increased.get()};
  };
  const auto active = [](const Gauge& live, const Gauge& pending, const RelaxedCounter& peak) {
    return Share{live.current.get() + pending.current.get(), std::max(live.peak.get(), peak.get()),
                 live.increased.get()};
  };
  switch (kind) {
    case kBlocks:
      return gauge(stats.blocks);
    case kBytes:
      return gauge(stats.bytes);
    case kActiveBlocks:
      return active(stats.blocks, stats.pending_blocks, stats.active_blocks_peak);
    case kActiveBytes:
      return active(stats.bytes, stats.pending_bytes, stats.active_bytes_peak);
    default:
      return gauge(stats.requested);
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
  for (ClassStats& stats : heap.of) {
    for (Gauge* gauge : {&stats.blocks, &stats.bytes, &stats.requested, &stats.pending_blocks,
                         &stats.pending_bytes}) {
      gauge->peak.set(gauge->current.get());
    }
    stats.active_blocks_peak.set(stats.blocks.current.get() + stats.pending_blocks.current.get());
    stats.active_bytes_peak.set(stats.bytes.current.get() + stats.pending_bytes.current.get());
  }
}

const void* this_thread_tag() {
  thread_local char tag;
  return &tag;
}

}  // namespace

void HeapStats::on_free_pending(std::int64_t size) {
  for (ClassStats* stats : {&of[kAll], &of[class_of(static_cast<std::size_t>(size))]}) {
    // The block stays active: first raise the peak that includes it.
    stats->pending_blocks.increase(1);
    stats->pending_bytes.increase(size);
    stats->blocks.decrease(1);
    stats->bytes.decrease(size);
    raise_active_peaks(*stats);
  }
}

void HeapStats::on_pending_complete(std::int64_t size, std::int64_t requested) {
  for (ClassStats* stats : {&of[kAll], &of[class_of(static_cast<std::size_t>(size))]}) {
    stats->pending_blocks.decrease(1);
    stats->pending_bytes.decrease(size);
    stats->requested.decrease(requested);
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
  // One thread that alternates between streams claims at once, which keeps its peaks exact, and so
  // does the one that it hands over to. Threads that work side by side would pass this lock and
  // line to each other on every call.
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
    // A heap that is in the middle of a change stays on the list, and so does the active one, which
    // changes without a word.
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
    // Without its lock nothing of it is written: its own thread reads this under that lock alone.
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
