#include "ferro/adapter/fallback/previous_allocator.h"

#include <c10/cuda/CUDAFunctions.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace ferro {
namespace {

using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::CachingDeviceAllocator::DeviceStats;
using c10::cuda::CUDACachingAllocator::SegmentInfo;
using c10::cuda::CUDACachingAllocator::SnapshotInfo;
using c10::cuda::CUDACachingAllocator::TraceEntry;

constexpr std::array<StatArray DeviceStats::*, 9> kTriples = {
    &DeviceStats::allocation,      &DeviceStats::segment,
    &DeviceStats::active,          &DeviceStats::inactive_split,
    &DeviceStats::allocated_bytes, &DeviceStats::reserved_bytes,
    &DeviceStats::active_bytes,    &DeviceStats::inactive_split_bytes,
    &DeviceStats::requested_bytes};

// All of them, in an order that is always the same.
std::vector<Stat*> stats_of(DeviceStats& stats) {
  std::vector<Stat*> all;
  for (StatArray DeviceStats::*triple : kTriples) {
    for (Stat& stat : stats.*triple) {
      all.push_back(&stat);
    }
  }
  all.push_back(&stats.oversize_allocations);
  all.push_back(&stats.oversize_segments);
  return all;
}

constexpr auto kAggregate = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);

}  // namespace

int PreviousAllocator::pool_use_count(c10::DeviceIndex device, c10::MempoolId_t id) const {
  try {
    return is_in_use() ? allocator_.getPoolUseCount(device, id) : -1;
  } catch (const c10::Error&) {  // its answer for a pool that it does not know
    return -1;
  }
}

void PreviousAllocator::record_stream(void* ptr, c10::DeviceIndex device,
                                      c10::cuda::CUDAStream stream) const {
  c10::DataPtr data(ptr, ptr, allocator_.raw_deleter(), c10::Device(c10::kCUDA, device));
  try {
    allocator_.recordStream(data, stream);
  } catch (...) {
    data.release_context();
    throw;
  }
  data.release_context();
}

bool PreviousAllocator::empty_cache() const {
  const auto reserved = [this] {
    std::size_t bytes = 0;
    for (c10::DeviceIndex i = 0; i < c10::cuda::device_count(); ++i) {
      bytes += reserved_bytes(i);
    }
    return bytes;
  };
  if (!is_in_use()) {
    return false;
  }
  const std::size_t before = reserved();
  allocator_.emptyCache({0, 0});
  return reserved() < before;
}

std::size_t PreviousAllocator::reserved_bytes(c10::DeviceIndex device) const {
  return is_in_use() ? static_cast<std::size_t>(
                           allocator_.getDeviceStats(device).reserved_bytes[kAggregate].current)
                     : 0;
}

std::size_t PreviousAllocator::allocated_bytes(c10::DeviceIndex device) const {
  return is_in_use() ? static_cast<std::size_t>(
                           allocator_.getDeviceStats(device).allocated_bytes[kAggregate].current)
                     : 0;
}

void PreviousAllocator::add_snapshot(c10::MempoolId_t id, bool include_traces,
                                     SnapshotInfo* ours) const {
  SnapshotInfo theirs = allocator_.snapshot(id, include_traces);
  std::ranges::move(theirs.segments, std::back_inserter(ours->segments));
  std::ranges::sort(ours->segments, {}, [](const SegmentInfo& segment) {
    return std::pair(segment.device, segment.address);
  });
  const std::size_t devices = std::min(ours->device_traces.size(), theirs.device_traces.size());
  for (std::size_t i = 0; i < devices; ++i) {
    std::vector<TraceEntry>& trace = ours->device_traces[i];
    // The snapshot itself is in ours already.
    std::erase_if(theirs.device_traces[i],
                  [](const TraceEntry& entry) { return entry.action_ == TraceEntry::SNAPSHOT; });
    std::ranges::move(theirs.device_traces[i], std::back_inserter(trace));
    std::ranges::stable_sort(trace, {}, [](const TraceEntry& entry) { return entry.time_.t_; });
  }
}

void PreviousAllocator::record_history(HistoryCall call) {
  if (is_in_use()) {
    call(allocator_);
  }
  const MutexLock lock(mutex_);
  history_call_ = std::move(call);
}

void PreviousAllocator::start(int device_count) {
  const bool is_new = !is_in_use();
  allocator_.init(device_count);
  const MutexLock lock(mutex_);
  if (is_new && history_call_) {
    history_call_(allocator_);
  }
}

DeviceStats PreviousAllocator::add_statistics(c10::DeviceIndex device, const DeviceStats& ours,
                                              Serving grew) {
  DeviceStats theirs = allocator_.getDeviceStats(device);
  DeviceStats sum = ours;
  const MutexLock lock(mutex_);
  peaks_.resize(std::max(peaks_.size(), static_cast<std::size_t>(device) + 1));
  auto shown_before = peaks_[static_cast<std::size_t>(device)].begin();
  const std::vector<Stat*> sums = stats_of(sum);
  const std::vector<Stat*> others = stats_of(theirs);
  for (std::size_t i = 0; i < kStats; ++i) {
    Stat& stat = *sums[i];
    const Stat& other = *others[i];
    const std::int64_t peak =
        grew == Serving::kOurs ? stat.peak + other.current : stat.current + other.peak;
    shown_before[i] = std::max(shown_before[i], peak);
    stat.peak = shown_before[i];
    stat.current += other.current;
    stat.allocated += other.allocated;
    stat.freed += other.freed;
  }
  add_later_statistics(sum, theirs);
  sum.num_alloc_retries += theirs.num_alloc_retries;
  sum.num_ooms += theirs.num_ooms;
  sum.num_sync_all_streams += theirs.num_sync_all_streams;
  sum.num_device_alloc += theirs.num_device_alloc;
  sum.num_device_free += theirs.num_device_free;
  sum.max_split_size = grew == Serving::kOurs ? ours.max_split_size : theirs.max_split_size;
  return sum;
}

void PreviousAllocator::forget_peaks(c10::DeviceIndex device) {
  const MutexLock lock(mutex_);
  if (static_cast<std::size_t>(device) < peaks_.size()) {
    peaks_[static_cast<std::size_t>(device)].fill(0);
  }
}

}  // namespace ferro
