// Reports a device's state: views, statistics, numbers for users and PyTorch, and the recount.
//
// Thread-safe: the functions take the climb lock of the device, except `held_bytes` and
// `reserved_by_pool`. Lists are O(their length).
#pragma once

#include "ferro/base/mutex.h"
#include "ferro/core/device/device_parts.h"
#include "ferro/core/policy/report.h"
#include "ferro/core/stats/stats.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace ferro {

// The contents of the heaps of all pools, and the outcomes of the requests since construction.
struct DeviceView {
  std::size_t free_blocks = 0;
  std::size_t free_bytes = 0;         // in free blocks
  std::uint64_t hits = 0;             // requests that found a free block at once
  std::uint64_t late_hits = 0;        // requests that climbed the ladder, and needed no new page
  std::uint64_t misses = 0;           // requests that needed new pages, or failed
  std::uint64_t pages_moved = 0;      // within the arenas of existing heaps
  std::size_t asleep_live_bytes = 0;  // in live blocks, on handles that are asleep
};

class DeviceReport {
 public:
  DeviceReport(const DeviceParts& parts, RecursiveMutex& climb_mutex)
      : parts_(parts), climb_mutex_(climb_mutex) {}

  // `only`: just the segments of that pool, which may be unknown.
  std::vector<SegmentView> segments(const PoolId* only) FERRO_EXCLUDES(climb_mutex_);
  // The live blocks of one pool, which may be unknown.
  std::vector<BlockView> live_blocks(const PoolId& id) FERRO_EXCLUDES(climb_mutex_);
  // Visits all live blocks without copying them.
  void visit_live(const VisitLive& visit) FERRO_EXCLUDES(climb_mutex_);
  std::size_t largest_free_block() FERRO_EXCLUDES(climb_mutex_);
  // Free bytes in handles that also hold a live byte, which emptying the cache does not return.
  // Locks each heap briefly. O(heaps + free blocks of at least a page).
  std::size_t stranded_bytes() FERRO_EXCLUDES(climb_mutex_);
  // The bytes of them beside live ones, by the pages of their handles. O(free blocks).
  StrandedBytes stranded() FERRO_EXCLUDES(climb_mutex_);
  // The bytes of the handles on which each tag has live bytes. A handle with blocks of several tags
  // counts for each of them. O(blocks).
  TagBytes reserved_by_tag() FERRO_EXCLUDES(climb_mutex_);
  DeviceView view() FERRO_EXCLUDES(climb_mutex_);
  // Bytes that a request to the default pool would now take from the driver.
  std::size_t bytes_from_driver(StreamId stream, const Request& request)
      FERRO_EXCLUDES(climb_mutex_);
  DeviceCounters counters() FERRO_EXCLUDES(climb_mutex_);
  // `reset_peaks` for the host time of the slowest climb alone.
  void reset_slowest() FERRO_EXCLUDES(climb_mutex_);
  // Bytes of pages held.
  std::size_t held_bytes() const { return parts_.held_bytes(); }
  // The same in PyTorch's form.
  std::array<StatValue, kStatClasses> reserved() FERRO_EXCLUDES(climb_mutex_);
  // The same for every private pool that had memory, including the last few removed ones.
  std::map<PoolId, std::array<StatValue, kStatClasses>> reserved_by_pool() {
    return parts_.pools.reserved();
  }
  void reset_accumulated() FERRO_EXCLUDES(climb_mutex_);
  void reset_peaks() FERRO_EXCLUDES(climb_mutex_);
  // The facts of a request for `wanted` bytes that just failed.
  OutOfMemoryFacts facts_of_failure(std::size_t wanted) FERRO_EXCLUDES(climb_mutex_);
  // Recounts and throws InternalError on a mismatch. No thread may allocate or free meanwhile: each
  // heap is counted under its own lock, and the sums are compared afterwards.
  void check_invariants() FERRO_EXCLUDES(climb_mutex_);

 private:
  // The bytes of pages that small blocks in use occupy; all pages of heaps that hold only small
  // blocks. O(heaps of small blocks).
  StatValue occupied_by_small_blocks() FERRO_REQUIRES(climb_mutex_);
  std::size_t pages_of_graphs() const {
    return parts_.graphs != nullptr ? parts_.graphs->pages() : 0;
  }

  const DeviceParts& parts_;
  RecursiveMutex& climb_mutex_;
  PageCounts pages_at_reset_ FERRO_GUARDED_BY(climb_mutex_);
};

}  // namespace ferro
