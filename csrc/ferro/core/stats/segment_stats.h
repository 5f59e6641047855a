// What PyTorch counts about segments, for one device. Thread-safe; its lock is taken inside a
// heap's lock.
//
// Invariants: segments.current == number of segments of all heaps; bytes.current == sum of their
// sizes; splits.current == free blocks that share their segment with another block.
#pragma once

#include "ferro/base/mutex.h"
#include "ferro/core/stats/stats.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace ferro {

struct SplitCounts {
  std::int64_t blocks = 0;  // free, and part of a segment with other blocks
  std::int64_t bytes = 0;
};

enum SegmentStatKind { kSegments, kSegmentBytes, kSplitBlocks, kSplitBytes, kSegmentStatKinds };

struct SegmentTable {
  std::array<std::array<StatValue, kStatClasses>, kSegmentStatKinds> of{};
  StatValue oversize_allocations;
  StatValue oversize_segments;
};

class SegmentStats {
 public:
  void on_segment(StatClass cls, std::int64_t count, std::int64_t bytes) FERRO_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    add(kSegments, cls, count);
    add(kSegmentBytes, cls, bytes);
  }
  void on_splits(StatClass cls, const SplitCounts& change) FERRO_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    add(kSplitBlocks, cls, change.blocks);
    add(kSplitBytes, cls, change.bytes);
  }
  void on_oversize_allocation(std::int64_t count) FERRO_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    change(table_.oversize_allocations, count);
  }
  void on_oversize_segment(std::int64_t count) FERRO_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    change(table_.oversize_segments, count);
  }

  SegmentTable read() const FERRO_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    return table_;
  }
  void reset_accumulated() FERRO_EXCLUDES(mutex_) {
    for_each([](StatValue& value) { value.increased = value.decreased = 0; });
  }
  void reset_peaks() FERRO_EXCLUDES(mutex_) {
    for_each([](StatValue& value) { value.peak = value.current; });
  }

 private:
  static void change(StatValue& value, std::int64_t amount) {
    value.current += amount;
    value.peak = std::max(value.peak, value.current);
    (amount > 0 ? value.increased : value.decreased) += amount > 0 ? amount : -amount;
  }
  void add(SegmentStatKind kind, StatClass cls, std::int64_t amount) FERRO_REQUIRES(mutex_) {
    change(table_.of[kind][kAll], amount);
    change(table_.of[kind][cls], amount);
  }
  template <typename Function>
  void for_each(Function function) FERRO_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    for (auto& classes : table_.of) {
      std::ranges::for_each(classes, function);
    }
    function(table_.oversize_allocations);
    function(table_.oversize_segments);
  }

  mutable Mutex mutex_;
  SegmentTable table_ FERRO_GUARDED_BY(mutex_);
};

}  // namespace ferro
