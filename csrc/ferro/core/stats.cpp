#include "ferro/core/stats.h"

#include <algorithm>

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

void DeviceStats::add_heap(HeapStats* stats) {
  const MutexLock lock(mutex_);
  heaps_.push_back(stats);
}

void DeviceStats::remove_heap(HeapStats* stats) {
  const MutexLock lock(mutex_);
  fold_active();
  for_each_stat([&](StatKind kind, StatClass cls) FERRO_NO_THREAD_SAFETY_ANALYSIS {
    const Share share = share_of(*stats, kind, cls);
    retired_[kind][cls].increased += share.increased;
    retired_[kind][cls].decreased += share.increased - share.current;
  });
  std::erase(heaps_, stats);
  if (active_.load(std::memory_order_relaxed) == stats) {
    active_.store(nullptr, std::memory_order_relaxed);
  }
}

int DeviceStats::claim(HeapStats* stats) {
  const MutexLock lock(mutex_);
  fold_active();
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

void DeviceStats::fold_active() {
  const HeapStats* active = active_.load(std::memory_order_relaxed);
  for_each_stat([&](StatKind kind, StatClass cls) FERRO_NO_THREAD_SAFETY_ANALYSIS {
    std::int64_t sum = 0;
    for (const HeapStats* heap : heaps_) {
      const Share share = share_of(*heap, kind, cls);
      sum += heap == active ? share.peak : share.current;
    }
    peaks_[kind][cls] = std::max(peaks_[kind][cls], sum);
  });
}

StatTable DeviceStats::sums() const {
  StatTable table = retired_;
  for_each_stat([&](StatKind kind, StatClass cls) FERRO_NO_THREAD_SAFETY_ANALYSIS {
    StatValue& value = table[kind][cls];
    for (const HeapStats* heap : heaps_) {
      const Share share = share_of(*heap, kind, cls);
      value.current += share.current;
      value.increased += share.increased;
      value.decreased += share.increased - share.current;
    }
  });
  return table;
}

StatTable DeviceStats::read() {
  const MutexLock lock(mutex_);
  fold_active();
  StatTable table = sums();
  for_each_stat([&](StatKind kind, StatClass cls) FERRO_NO_THREAD_SAFETY_ANALYSIS {
    table[kind][cls].peak = peaks_[kind][cls];
    table[kind][cls].increased -= baseline_[kind][cls].increased;
    table[kind][cls].decreased -= baseline_[kind][cls].decreased;
  });
  return table;
}

std::uint64_t DeviceStats::allocations() {
  const MutexLock lock(mutex_);
  return static_cast<std::uint64_t>(sums()[kBlocks][kAll].increased);
}

void DeviceStats::reset_accumulated() {
  const MutexLock lock(mutex_);
  baseline_ = sums();
}

void DeviceStats::reset_peaks() {
  const MutexLock lock(mutex_);
  if (HeapStats* active = active_.load(std::memory_order_relaxed)) {
    open_window(*active);
  }
  const StatTable now = sums();
  for_each_stat([&](StatKind kind, StatClass cls) FERRO_NO_THREAD_SAFETY_ANALYSIS {
    peaks_[kind][cls] = now[kind][cls].current;
  });
}

}  // namespace ferro
