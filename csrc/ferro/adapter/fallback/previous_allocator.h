// The allocator that ferro_alloc replaced: usually PyTorch's own.
//
// It serves requests for its layout (cuda_allocator_routing.cpp), and all new requests while
// ferro_alloc does not serve. It keeps the blocks that it allocated and the pools created in it:
// calls about them go to it. Thread-safe. It is never destroyed.
#pragma once

#include "ferro/adapter/torch/torch_compat.h"
#include "ferro/base/mutex.h"
#include "ferro/core/heap/views.h"
#include "ferro/core/types/pool_id.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <vector>

namespace ferro {

// The allocator that serves new requests.
enum class Serving : std::uint8_t { kOurs, kPrevious };

class PreviousAllocator {
 public:
  using Allocator = c10::cuda::CUDACachingAllocator::CUDAAllocator;
  using DeviceStats = c10::CachingDeviceAllocator::DeviceStats;

  explicit PreviousAllocator(Allocator& allocator)
      : PreviousAllocator(allocator, allocator.initialized()) {}
  PreviousAllocator(Allocator& allocator, bool in_use) : allocator_(allocator), in_use_(in_use) {}
  PreviousAllocator(const PreviousAllocator&) = delete;
  PreviousAllocator& operator=(const PreviousAllocator&) = delete;

  Allocator& allocator() const { return allocator_; }
  // Whether it may own memory. After an install before the first use of CUDA, false until `start`.
  bool is_in_use() const { return in_use_.load(std::memory_order_acquire); }

  // Queries it: a pool is in one allocator only, the one that first received a request for it.
  bool knows_pool(c10::DeviceIndex device, c10::MempoolId_t id) const {
    return pool_use_count(device, id) >= 0;
  }
  // -1 for a pool that it does not know.
  int pool_use_count(c10::DeviceIndex device, c10::MempoolId_t id) const;
  // Calls its own method, for a block whose DataPtr has our deleter.
  void record_stream(void* ptr, c10::DeviceIndex device, c10::cuda::CUDAStream stream) const;
  // Releases its cache to the driver; not to be called while a capture runs. True if it freed any.
  bool empty_cache() const;
  std::size_t reserved_bytes(c10::DeviceIndex device) const;
  // The part of these that the program uses.
  std::size_t allocated_bytes(c10::DeviceIndex device) const;

  // Its private pools that have memory, or only the one with that id.
  struct PoolBlocks {
    std::size_t reserved = 0;
    std::vector<BlockView> live;  // in order of segments, then address
  };
  std::map<PoolId, PoolBlocks> private_pools(c10::DeviceIndex device, c10::MempoolId_t only) const;

  // Adds its segments and traces to `ours`: segments by device and address, traces by time.
  void add_snapshot(c10::MempoolId_t id, bool include_traces,
                    c10::cuda::CUDACachingAllocator::SnapshotInfo* ours) const;
  // Makes it record a history too. `call` calls its method: now, or in `start` if not in use yet.
  using HistoryCall = std::function<void(Allocator&)>;
  void record_history(HistoryCall call) FERRO_EXCLUDES(mutex_);
  // The observer is called for its failures, except those of `try_allocate`.
  void attach_observer(c10::cuda::CUDACachingAllocator::OutOfMemoryObserver observer);
  // Allocates, or returns null. A failure is in no statistics or history, and notifies no observer.
  void* try_allocate(c10::DeviceIndex device, std::size_t bytes, cudaStream_t stream)
      FERRO_EXCLUDES(mutex_);
  // Announces captures that it does not serve: it defers events and releases no memory meanwhile.
  void begin_captures(c10::DeviceIndex device) const;
  void end_captures(c10::DeviceIndex device) const;
  // Initialises it for that many devices. One caller at a time.
  void start(int device_count) FERRO_EXCLUDES(mutex_);

  // Sums of `ours` and its own statistics. The peak of a sum is the peak of the allocator that grew
  // since both were reset, plus the current value of the other one, which only fell; it is never
  // less than the peak reported before. So a peak is never too high, and too low by at most the
  // amount that the other one freed between two calls.
  DeviceStats add_statistics(c10::DeviceIndex device, const DeviceStats& ours, Serving grew)
      FERRO_EXCLUDES(mutex_);
  // Discards the peaks reported so far.
  void forget_peaks(c10::DeviceIndex device) FERRO_EXCLUDES(mutex_);
  void reset_accumulated(c10::DeviceIndex device) FERRO_EXCLUDES(mutex_);

 private:
  static constexpr std::size_t kStats = 9 * 3 + 2;  // nine triples and two of oversize blocks

  Allocator& allocator_;
  std::atomic<bool> in_use_;
  Mutex mutex_;
  HistoryCall history_call_ FERRO_GUARDED_BY(mutex_);
  std::vector<std::array<std::int64_t, kStats>> peaks_ FERRO_GUARDED_BY(mutex_);  // by device
  // Failures and retries of `try_allocate` in its statistics, since their last reset.
  struct Hidden {
    std::int64_t failures = 0;
    std::int64_t retries = 0;
  };
  std::map<c10::DeviceIndex, Hidden> hidden_ FERRO_GUARDED_BY(mutex_);
  // The times of the last such failures, whose entries in its history are not shown.
  struct Moment {
    std::int64_t begin = 0;  // microseconds, as in a history
    std::int64_t end = 0;
  };
  static constexpr std::size_t kMaxMoments = 1000;
  mutable Mutex moments_mutex_;
  std::deque<Moment> moments_ FERRO_GUARDED_BY(moments_mutex_);
};

}  // namespace ferro
