// The allocator that was in place before ours: PyTorch's own, as a rule.
//
// It serves what asks for its layout (cuda_allocator_routing.cpp), and every new request while ours
// does not serve. What it allocated, and the pools that were made in it, stay its own: calls about
// them are sent to it. Thread-safe. It is never destroyed.
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

// Which of the two takes new requests.
enum class Serving : std::uint8_t { kOurs, kPrevious };

class PreviousAllocator {
 public:
  using Allocator = c10::cuda::CUDACachingAllocator::CUDAAllocator;
  using DeviceStats = c10::CachingDeviceAllocator::DeviceStats;

  explicit PreviousAllocator(Allocator& allocator)
      : allocator_(allocator), in_use_(allocator.initialized()) {}
  PreviousAllocator(const PreviousAllocator&) = delete;
  PreviousAllocator& operator=(const PreviousAllocator&) = delete;

  Allocator& allocator() const { return allocator_; }
  // Can it own anything? False where ours was in place before CUDA was first used, until `start`.
  bool is_in_use() const { return in_use_.load(std::memory_order_acquire); }

  // Asks it: a pool lives in one allocator only, the one that was asked for it first.
  bool knows_pool(c10::DeviceIndex device, c10::MempoolId_t id) const {
    return pool_use_count(device, id) >= 0;
  }
  // -1 for a pool that it does not know.
  int pool_use_count(c10::DeviceIndex device, c10::MempoolId_t id) const;
  // As its own method, for a block whose DataPtr carries our deleter.
  void record_stream(void* ptr, c10::DeviceIndex device, c10::cuda::CUDAStream stream) const;
  // Gives its cached memory back to the driver. Must not be called while a capture runs. True: some
  // was given back.
  bool empty_cache() const;
  std::size_t reserved_bytes(c10::DeviceIndex device) const;
  // Of these, what the program uses.
  std::size_t allocated_bytes(c10::DeviceIndex device) const;

  // Its private pools that have memory, or the one of that id.
  struct PoolBlocks {
    std::size_t reserved = 0;
    std::vector<BlockView> live;  // in order of segments, then address
  };
  std::map<PoolId, PoolBlocks> private_pools(c10::DeviceIndex device, c10::MempoolId_t only) const;

  // Adds its segments and traces to `ours`: segments by device and address, traces by time.
  void add_snapshot(c10::MempoolId_t id, bool include_traces,
                    c10::cuda::CUDACachingAllocator::SnapshotInfo* ours) const;
  // Has it record a history too, `call` being its own method with its arguments; where it is not in
  // use yet, as soon as it is.
  using HistoryCall = std::function<void(Allocator&)>;
  void record_history(HistoryCall call) FERRO_EXCLUDES(mutex_);
  // Told of its failures, but of those that another try may mend.
  void attach_observer(c10::cuda::CUDACachingAllocator::OutOfMemoryObserver observer);
  // A request whose failure counts as none, is in no history, and no observer hears of. Null: it
  // failed.
  void* try_allocate(c10::DeviceIndex device, std::size_t bytes, cudaStream_t stream)
      FERRO_EXCLUDES(mutex_);
  // Captures run that it does not serve: it defers events and gives nothing back meanwhile.
  void begin_captures(c10::DeviceIndex device) const;
  void end_captures(c10::DeviceIndex device) const;
  // Brings it into use for so many devices. One caller at a time.
  void start(int device_count) FERRO_EXCLUDES(mutex_);

  // Sums of `ours` and its own statistics. Peaks are those of the sum as far as they are known: of
  // the allocator that grew since both were reset, plus what the other one has now, which only fell;
  // and never less than what was shown before. So a peak is never too high, and too low by at most
  // what the other one freed between two looks.
  DeviceStats add_statistics(c10::DeviceIndex device, const DeviceStats& ours, Serving grew)
      FERRO_EXCLUDES(mutex_);
  // The peaks shown so far count no more.
  void forget_peaks(c10::DeviceIndex device) FERRO_EXCLUDES(mutex_);
  void reset_accumulated(c10::DeviceIndex device) FERRO_EXCLUDES(mutex_);

 private:
  static constexpr std::size_t kStats = 9 * 3 + 2;  // nine triples and two of oversize blocks

  Allocator& allocator_;
  std::atomic<bool> in_use_;
  Mutex mutex_;
  HistoryCall history_call_ FERRO_GUARDED_BY(mutex_);
  std::vector<std::array<std::int64_t, kStats>> peaks_ FERRO_GUARDED_BY(mutex_);  // by device
  // Failures and retries of `try_allocate` that its statistics have, since their last reset.
  struct Hidden {
    std::int64_t failures = 0;
    std::int64_t retries = 0;
  };
  std::map<c10::DeviceIndex, Hidden> hidden_ FERRO_GUARDED_BY(mutex_);
  // When such failures were, the last ones: entries of its history that are not shown.
  struct Moment {
    std::int64_t begin = 0;  // microseconds, as in a history
    std::int64_t end = 0;
  };
  static constexpr std::size_t kMostMoments = 1000;
  mutable Mutex moments_mutex_;
  std::deque<Moment> moments_ FERRO_GUARDED_BY(moments_mutex_);
};

}  // namespace ferro
