#include "ferro/adapter/fallback/previous_allocator.h"

#include "ferro/adapter/torch/convert.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

namespace ferro {
namespace {

using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using NativeStats = c10::CachingDeviceAllocator::DeviceStats;
using c10::cuda::CUDACachingAllocator::SegmentInfo;
using c10::cuda::CUDACachingAllocator::SnapshotInfo;
using c10::cuda::CUDACachingAllocator::TraceEntry;

constexpr std::array<StatArray NativeStats::*, 9> kTriples = {
    &NativeStats::allocation,      &NativeStats::segment,
    &NativeStats::active,          &NativeStats::inactive_split,
    &NativeStats::allocated_bytes, &NativeStats::reserved_bytes,
    &NativeStats::active_bytes,    &NativeStats::inactive_split_bytes,
    &NativeStats::requested_bytes};

// All statistics, in a fixed order.
std::vector<Stat*> stats_of(NativeStats& stats) {
  std::vector<Stat*> all;
  for (StatArray NativeStats::*triple : kTriples) {
    for (Stat& stat : stats.*triple) {
      all.push_back(&stat);
    }
  }
  all.push_back(&stats.oversize_allocations);
  all.push_back(&stats.oversize_segments);
  return all;
}

// The id of a pool that no program can have: PyTorch counts both numbers up from 0.
constexpr c10::MempoolId_t kCaptures{~0ULL, ~0ULL};
// The tolerance between two clocks of a process, in microseconds.
constexpr std::int64_t kClockSlack = 100;

// Whether this thread is in `try_allocate`, whose failures do not count.
thread_local bool is_trying = false;

}  // namespace

int PreviousAllocator::pool_use_count(c10::DeviceIndex device, c10::MempoolId_t id) const {
  try {
    return is_in_use() ? allocator_.getPoolUseCount(device, id) : -1;
  } catch (const c10::Error&) {  // thrown for an unknown pool
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
  std::deque<Moment> moments;
  {
    const MutexLock lock(moments_mutex_);
    moments = moments_;
  }
  // Each moment hides one entry, because a failure that counts may follow at once.
  const auto is_hidden = [&moments](const TraceEntry& entry) {
    const auto found = std::ranges::find_if(moments, [&entry](const Moment& moment) {
      return entry.action_ == TraceEntry::OOM && entry.time_.t_ >= moment.begin &&
             entry.time_.t_ <= moment.end;
    });
    const bool hidden = found != moments.end();
    if (hidden) {
      moments.erase(found);
    }
    return hidden;
  };
  const std::size_t devices = std::min(ours->device_traces.size(), theirs.device_traces.size());
  for (std::size_t i = 0; i < devices; ++i) {
    std::vector<TraceEntry>& trace = ours->device_traces[i];
    // Our trace already has the entry of this snapshot.
    std::erase_if(theirs.device_traces[i], [&is_hidden](const TraceEntry& entry) {
      return entry.action_ == TraceEntry::SNAPSHOT || is_hidden(entry);
    });
    std::ranges::move(theirs.device_traces[i], std::back_inserter(trace));
    std::ranges::stable_sort(trace, {}, [](const TraceEntry& entry) { return entry.time_.t_; });
  }
}

std::map<PoolId, PreviousAllocator::PoolBlocks> PreviousAllocator::private_pools(
    c10::DeviceIndex device, c10::MempoolId_t only) const {
  std::map<PoolId, PoolBlocks> pools;
  if (!is_in_use()) {
    return pools;
  }
  for (const auto& segment : allocator_.snapshot(only, false).segments) {
    const PoolId id = to_pool_id(segment.owner_private_pool_id);
    if (segment.device != device || id == kDefaultPool) {
      continue;
    }
    PoolBlocks& pool = pools[id];
    pool.reserved += segment.total_size;
    DevicePtr ptr{segment.address};
    for (const auto& block : segment.blocks) {
      if (block.allocated) {
        pool.live.push_back({.ptr = ptr,
                             .size = block.size,
                             .requested = block.requested_size,
                             .state = BlockState::kLive});
      }
      ptr = ptr + block.size;
    }
  }
  return pools;
}

void PreviousAllocator::record_history(HistoryCall call) {
  const MutexLock lock(mutex_);
  if (is_in_use()) {
    call(allocator_);
  }
  history_call_ = std::move(call);
}

void PreviousAllocator::attach_observer(
    c10::cuda::CUDACachingAllocator::OutOfMemoryObserver observer) {
  allocator_.attachOutOfMemoryObserver(
      [observer = std::move(observer)](std::int64_t device, std::size_t request, std::size_t total,
                                       std::size_t free) {
        if (!is_trying) {
          observer(device, request, total, free);
        }
      });
}

void* PreviousAllocator::try_allocate(c10::DeviceIndex device, std::size_t bytes,
                                      cudaStream_t stream) {
  const auto now = [] {
    return std::chrono::duration_cast<std::chrono::microseconds>(
               std::chrono::system_clock::now().time_since_epoch())
        .count();
  };
  const NativeStats before = allocator_.getDeviceStats(device);
  const std::int64_t began = now();
  is_trying = true;
  const auto end = c10::make_scope_exit([] { is_trying = false; });
  try {
    return allocator_.raw_alloc_with_stream(bytes, stream);
  } catch (const c10::OutOfMemoryError&) {
    const NativeStats after = allocator_.getDeviceStats(device);
    {
      const MutexLock lock(mutex_);
      hidden_[device].failures += after.num_ooms - before.num_ooms;
      hidden_[device].retries += after.num_alloc_retries - before.num_alloc_retries;
    }
    const MutexLock lock(moments_mutex_);
    moments_.push_back({began - kClockSlack, now() + kClockSlack});
    if (moments_.size() > kMaxMoments) {
      moments_.pop_front();
    }
    return nullptr;
  }
}

// Diverts to a separate pool whose filter accepts no stream.
void PreviousAllocator::begin_captures(c10::DeviceIndex device) const {
  if (pool_use_count(device, kCaptures) < 0) {
    allocator_.createOrIncrefPool(device, kCaptures, nullptr);  // held, so that it can begin again
  }
  allocator_.beginAllocateToPool(device, kCaptures, [](cudaStream_t) { return false; });
}

void PreviousAllocator::end_captures(c10::DeviceIndex device) const {
  allocator_.endAllocateToPool(device, kCaptures);
  allocator_.releasePool(device, kCaptures);
}

void PreviousAllocator::reset_accumulated(c10::DeviceIndex device) {
  const MutexLock lock(mutex_);
  allocator_.resetAccumulatedStats(device);
  hidden_.erase(device);
}

void PreviousAllocator::start(int device_count) {
  const MutexLock lock(mutex_);
  allocator_.init(device_count);
  if (!is_in_use() && history_call_) {
    history_call_(allocator_);
  }
  in_use_.store(true, std::memory_order_release);
}

NativeStats PreviousAllocator::add_statistics(c10::DeviceIndex device, const NativeStats& ours,
                                              Serving grew) {
  NativeStats theirs = allocator_.getDeviceStats(device);
  NativeStats sum = ours;
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
  const auto hidden = hidden_.find(device);
  const Hidden& not_counted = hidden == hidden_.end() ? Hidden{} : hidden->second;
  sum.num_alloc_retries += theirs.num_alloc_retries - not_counted.retries;
  sum.num_ooms += theirs.num_ooms - not_counted.failures;
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
