// Counters of a heap and their sums for a device.
//
// A heap's counters are plain integers that its lock guards; reading them without the lock gives a
// value that was true a moment ago. Nothing is shared between heaps on the hit path: sums are made
// when somebody asks. The one thing that cannot be summed later is the peak of a sum, so it is kept
// by windows: while one heap alone is active, the others' current values stand still, and the peak
// of the sum is that heap's own peak plus those. When another heap becomes active it folds the
// window of the one before into the device's peaks and opens its own.
//
// Cost: the device keeps the sum of what it has read of every heap, and a list of the heaps that
// changed since; a window and a sum look at those alone, however many heaps there are.
//
// Exactness: peaks of the device are exact while one thread at a time uses it, on any number of
// streams. When threads that work on several heaps side by side keep taking the window from each
// other, a heap claims it only every kClaimInterval operations, and a peak that lasted shorter may
// be missed.
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

// Written under one lock, read by anybody.
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

// One class of blocks of one heap, kAll aside.
struct ClassStats {
  Gauge blocks;     // live
  Gauge bytes;      // sizes of live blocks
  Gauge requested;  // bytes asked for, of live and pending blocks
  Gauge pending_blocks;
  Gauge pending_bytes;
};

// Since the window was opened.
struct ClassPeaks {
  RelaxedCounter blocks;
  RelaxedCounter bytes;
  RelaxedCounter requested;
  // At times when something was pending; at all other times active equals live.
  RelaxedCounter active_blocks;
  RelaxedCounter active_bytes;
};

// What one heap adds to a sum.
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
  // As if the allocation had not been, but for what peaks saw.
  void undo_allocate(std::int64_t size, std::int64_t requested) {
    ClassStats& mine = part(class_of(static_cast<std::size_t>(size)));
    mine.blocks.increased.add(-1);
    mine.bytes.increased.add(-size);
    mine.requested.increased.add(-requested);
  }
  void on_free_pending(std::int64_t size);
  void on_pending_complete(std::int64_t size, std::int64_t requested);

  // The lock under which the counters change; null where nobody else is.
  BiasedSpinMutex* lock = nullptr;
  // Of DeviceStats, under its lock: what its sums have of this heap.
  std::array<std::array<StatShare, kStatClasses>, kStatKinds> counted{};
  // Is the heap on the list of those that may have changed? Cleared under both locks, so that a
  // change is never missed.
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

// A sum as PyTorch shows it.
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
  // A claim reads the counters of heaps that other cores have just written: some microseconds that
  // this many operations share.
  static constexpr int kClaimInterval = 4096;
  // So many claims in a row, each by another thread than the one before, are no handover.
  static constexpr int kClaimsSideBySide = 16;
  // Heaps that other threads have to themselves stay on the list of those that changed, because
  // locking them would end their bias; from so many on they are locked all the same.
  static constexpr std::size_t kMaxListed = 64;

  // The heap's accumulated values stay in the sums. It has no active block, and changes no more.
  void remove_heap(HeapStats* stats) FERRO_EXCLUDES(mutex_);

  // Called by a heap, under its lock, before each change of its counters. `countdown` is the
  // heap's.
  void note_activity(HeapStats* stats, int& countdown) FERRO_EXCLUDES(mutex_) {
    if (active_.load(std::memory_order_relaxed) != stats) [[unlikely]] {
      note_activity_of_another(stats, countdown);
    }
  }

  StatTable read() FERRO_EXCLUDES(mutex_);
  // How many blocks were handed out since construction.
  std::uint64_t allocations() FERRO_EXCLUDES(mutex_);
  void reset_accumulated() FERRO_EXCLUDES(mutex_);
  void reset_peaks() FERRO_EXCLUDES(mutex_);

 private:
  void note_activity_of_another(HeapStats* stats, int& countdown) FERRO_EXCLUDES(mutex_);
  int claim(HeapStats* stats) FERRO_REQUIRES(mutex_);
  void list(HeapStats* stats) FERRO_REQUIRES(mutex_);
  // Takes what changed into the sums and the peaks. `held`: the heap whose lock the caller has.
  // O(heaps that changed since the last time).
  void fold(const HeapStats* held = nullptr) FERRO_REQUIRES(mutex_);

  std::atomic<HeapStats*> active_{nullptr};
  Mutex mutex_;
  const void* active_thread_ FERRO_GUARDED_BY(mutex_) = nullptr;
  int claims_by_others_ FERRO_GUARDED_BY(mutex_) = 0;         // in a row
  std::vector<HeapStats*> changed_ FERRO_GUARDED_BY(mutex_);  // those that are `listed`
  StatTable sums_ FERRO_GUARDED_BY(mutex_){};  // peaks aside; of all `counted`, also of gone heaps
  StatTable baseline_ FERRO_GUARDED_BY(mutex_){};  // increased/decreased at the last reset
  std::array<std::array<std::int64_t, kStatClasses>, kStatKinds> peaks_ FERRO_GUARDED_BY(mutex_){};
};

}  // namespace ferro
