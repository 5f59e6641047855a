// Counters of a heap and their sums for a device.
//
// A heap's lock guards its counters; a read without the lock returns a recent value. Heaps share
// nothing on the hit path: sums are computed when they are read. Only the peak of a sum cannot be
// computed later, so it is kept by windows. While one heap is active, the values of all others are
// constant, and the peak of the sum is the active heap's peak plus these values. A heap that
// becomes active folds the previous heap's window into the device's peaks and opens its own.
//
// Cost: the device keeps the sum of the values that it has read of every heap, and a list of the
// heaps that changed since. A window and a read visit only those, however many heaps there are.
//
// Exactness: peaks of the device are exact while one thread at a time uses it, on any number of
// streams. When parallel threads on several heaps keep taking the window from each other, a heap
// claims it only every kClaimInterval operations, and a shorter peak may be missed.
#pragma once

#include "ferro/base/biased_mutex.h"
#include "ferro/base/mutex.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

namespace ferro {

// PyTorch's classes: a block counts as small up to 1 MiB, and every block counts as kAll.
enum StatClass { kAll, kSmall, kLarge, kStatClasses };

// Written under one lock, read by any thread.
class RelaxedCounter {
 public:
  std::int64_t get() const { return value_.load(std::memory_order_relaxed); }
  void set(std::int64_t value) { value_.store(value, std::memory_order_relaxed); }
  void add(std::int64_t amount) { set(get() + amount); }
  void raise_to(std::int64_t value) {
    if (value > get()) {
      set(value);
    }
  }

 private:
  std::atomic<std::int64_t> value_{0};
};

struct Gauge {
  RelaxedCounter increased;  // sum of all increases
  RelaxedCounter decreased;

  std::int64_t current() const { return increased.get() - decreased.get(); }
};

// The statistics of one class of blocks of one heap, except kAll.
struct ClassStats {
  Gauge blocks;     // live
  Gauge bytes;      // sizes of live blocks
  Gauge requested;  // requested bytes of live and pending blocks
  Gauge pending_blocks;
  Gauge pending_bytes;
};

// Peaks since the window was opened.
struct ClassPeaks {
  RelaxedCounter blocks;
  RelaxedCounter bytes;
  RelaxedCounter requested;
  // Only from times with pending blocks; at other times active equals live.
  RelaxedCounter active_blocks;
  RelaxedCounter active_bytes;
};

// A heap's share in a sum.
struct StatShare {
  std::int64_t current = 0;
  std::int64_t increased = 0;
};

enum StatKind { kBlocks, kBytes, kActiveBlocks, kActiveBytes, kRequested, kStatKinds };

// Invariants: active == live + pending; kAll == kSmall + kLarge, except the peaks. So an allocation
// and its release change six counters, not eighteen.
struct HeapStats {
  std::array<ClassPeaks, kStatClasses> peaks{};

  static StatClass class_of(std::size_t size) { return size <= (1U << 20) ? kSmall : kLarge; }
  ClassStats& part(StatClass cls) { return parts_[cls - 1]; }
  const ClassStats& part(StatClass cls) const { return parts_[cls - 1]; }

  std::int64_t current(Gauge ClassStats::*gauge, StatClass cls) const {
    return sum(cls, [gauge](const ClassStats& part) { return (part.*gauge).current(); });
  }
  std::int64_t increased(Gauge ClassStats::*gauge, StatClass cls) const {
    return sum(cls, [gauge](const ClassStats& part) { return (part.*gauge).increased.get(); });
  }

  void on_allocate(std::int64_t size, std::int64_t requested) {
    const StatClass cls = class_of(static_cast<std::size_t>(size));
    const ClassStats& other = part(cls == kSmall ? kLarge : kSmall);
    raise(cls, other, &ClassStats::blocks, &ClassPeaks::blocks, 1);
    raise(cls, other, &ClassStats::bytes, &ClassPeaks::bytes, size);
    raise(cls, other, &ClassStats::requested, &ClassPeaks::requested, requested);
    if (current(&ClassStats::pending_blocks, kAll) != 0) [[unlikely]] {
      raise_active_peaks();
    }
  }
  void on_free(std::int64_t size, std::int64_t requested) {
    ClassStats& mine = part(class_of(static_cast<std::size_t>(size)));
    mine.blocks.decreased.add(1);
    mine.bytes.decreased.add(size);
    mine.requested.decreased.add(requested);
  }
  // Undoes `on_allocate`, except its effect on peaks.
  void undo_allocate(std::int64_t size, std::int64_t requested) {
    ClassStats& mine = part(class_of(static_cast<std::size_t>(size)));
    mine.blocks.increased.add(-1);
    mine.bytes.increased.add(-size);
    mine.requested.increased.add(-requested);
  }
  void on_free_pending(std::int64_t size);
  void on_pending_complete(std::int64_t size, std::int64_t requested);

  // The lock under which the counters change; null if only one thread uses them.
  BiasedSpinMutex* lock = nullptr;
  // Belongs to DeviceStats, under its lock: this heap's share in its sums.
  std::array<std::array<StatShare, kStatClasses>, kStatKinds> counted{};
  // Whether the heap is on the list of those that may have changed. Cleared under both locks, so
  // that no change is missed.
  bool listed = false;

 private:
  template <typename Function>
  std::int64_t sum(StatClass cls, Function of) const {
    return cls == kAll ? of(parts_[0]) + of(parts_[1]) : of(part(cls));
  }
  void raise(StatClass cls, const ClassStats& other, Gauge ClassStats::*gauge,
             RelaxedCounter ClassPeaks::*peak, std::int64_t amount) {
    Gauge& mine = part(cls).*gauge;
    mine.increased.add(amount);
    const std::int64_t now = mine.current();
    (peaks[cls].*peak).raise_to(now);
    (peaks[kAll].*peak).raise_to(now + (other.*gauge).current());
  }
  void raise_active_peaks();

  std::array<ClassStats, 2> parts_{};  // kSmall, kLarge
};

// A sum in PyTorch's form.
struct StatValue {
  std::int64_t current = 0;
  std::int64_t peak = 0;
  std::int64_t increased = 0;  // since the last reset of accumulated values
  std::int64_t decreased = 0;
};

using StatTable = std::array<std::array<StatValue, kStatClasses>, kStatKinds>;

// The sums over the heaps of one device. Thread-safe; its lock is taken inside a heap's lock.
class DeviceStats {
 public:
  // The operations that share the cost of one claim. A claim takes microseconds, because it reads
  // counters that other cores have just written.
  static constexpr int kClaimInterval = 4096;
  // After more claims in a row, each by another thread than the previous one, threads count as
  // parallel; fewer are a handover.
  static constexpr int kClaimsSideBySide = 16;
  // A heap that is biased to another thread stays on the list of changed heaps, because locking it
  // would revoke the bias. If the list is longer than this, such heaps are locked nevertheless.
  static constexpr std::size_t kMaxListed = 64;

  // The heap's accumulated values stay in the sums. It has no active block and changes no further.
  void remove_heap(HeapStats* stats) FERRO_EXCLUDES(mutex_);

  // A heap calls this under its lock before each change of its counters. `countdown` is the heap's.
  void note_activity(HeapStats* stats, int& countdown) FERRO_EXCLUDES(mutex_) {
    if (active_.load(std::memory_order_relaxed) != stats) [[unlikely]] {
      note_activity_of_another(stats, countdown);
    }
  }

  StatTable read() FERRO_EXCLUDES(mutex_);
  // The number of blocks handed out since construction.
  std::uint64_t allocations() FERRO_EXCLUDES(mutex_);
  void reset_accumulated() FERRO_EXCLUDES(mutex_);
  void reset_peaks() FERRO_EXCLUDES(mutex_);

 private:
  void note_activity_of_another(HeapStats* stats, int& countdown) FERRO_EXCLUDES(mutex_);
  int claim(HeapStats* stats) FERRO_REQUIRES(mutex_);
  void list(HeapStats* stats) FERRO_REQUIRES(mutex_);
  // Folds all changes into the sums and the peaks. `held`: the heap whose lock the caller holds.
  // O(heaps that changed since the last call).
  void fold(const HeapStats* held = nullptr) FERRO_REQUIRES(mutex_);

  std::atomic<HeapStats*> active_{nullptr};
  Mutex mutex_;
  const void* active_thread_ FERRO_GUARDED_BY(mutex_) = nullptr;
  int claims_by_others_ FERRO_GUARDED_BY(mutex_) = 0;         // in a row
  std::vector<HeapStats*> changed_ FERRO_GUARDED_BY(mutex_);  // those that are `listed`
  StatTable sums_ FERRO_GUARDED_BY(mutex_){};  // of all `counted`, also of removed heaps; no peaks
  StatTable baseline_ FERRO_GUARDED_BY(mutex_){};  // increased/decreased at the last reset
  std::array<std::array<std::int64_t, kStatClasses>, kStatKinds> peaks_ FERRO_GUARDED_BY(mutex_){};
};

}  // namespace ferro
