// Records what happens to the memory of one device, for `_record_memory_history`, snapshots, trace
// trackers and out-of-memory observers, with PyTorch's levels:
//   state  live blocks have the contexts of their allocations
//   alloc  entries of the trace too; a free has the context of its block's allocation
//   all    frees have their own contexts
//
// Thread-safe. The recorder of contexts and the observers of failures may take the GIL, so they are
// called without any lock. Trackers are called without the lock of a heap (tracker_queue.h), but
// under the climb lock if a climb caused the event; they then gather no context.
// Nothing here is destroyed: entries own Python frames, which must not be released at exit.
#pragma once

#include "ferro/adapter/history/sampling.h"
#include "ferro/adapter/history/tags.h"
#include "ferro/adapter/history/trace_record.h"
#include "ferro/adapter/history/trace_ring.h"
#include "ferro/adapter/history/tracker_queue.h"
#include "ferro/adapter/torch/torch_compat.h"
#include "ferro/core/device/device_memory.h"
#include "ferro/core/types/observer.h"

#include <c10/cuda/CUDACachingAllocator.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace ferro {

struct HistorySettings {
  bool enabled = false;
  c10::cuda::CUDACachingAllocator::CreateContextFn recorder = nullptr;
  std::size_t max_entries = 1;
  c10::cuda::CUDACachingAllocator::RecordContext when =
      c10::cuda::CUDACachingAllocator::RecordContext::NEVER;
  bool clear = false;
  std::uint32_t skipped = 0;  // one bit per action
  std::size_t sample_bytes = 0;
};

// Checks what PyTorch checks; throws c10::Error for an unknown action or a missing recorder.
HistorySettings checked_settings(bool enabled,
                                 c10::cuda::CUDACachingAllocator::CreateContextFn recorder,
                                 std::size_t max_entries,
                                 c10::cuda::CUDACachingAllocator::RecordContext when, bool clear,
                                 const std::vector<std::string>& skip_actions);

class History final : public MemoryObserver {
 public:
  using RecordContext = c10::cuda::CUDACachingAllocator::RecordContext;
  using TraceEntry = c10::cuda::CUDACachingAllocator::TraceEntry;
  using Tracker = c10::cuda::CUDACachingAllocator::AllocatorTraceTracker;
  using FailureObserver = c10::cuda::CUDACachingAllocator::OutOfMemoryObserver;

  History(c10::DeviceIndex device, DeviceMemory& core) : device_(device), core_(core) {}

  void record(const HistorySettings& settings);
  void attach_tracker(Tracker tracker);

  // From now on, blocks keep the tags of the requesting threads and are summed by tag.
  void count_tags();
  // The sums of the blocks since then; null before.
  TagSums* tags() const { return tags_.load(std::memory_order_acquire); }

  // Null unless contexts are collected at `level` or a more detailed one.
  CallContext gather(RecordContext level) const {
    return level_.load(std::memory_order_relaxed) >= level ? gather_now() : nullptr;
  }
  // The context of a request for that many bytes; null also if the request is not sampled.
  CallContext gather_for(std::size_t bytes) const {
    return level_.load(std::memory_order_relaxed) >= RecordContext::STATE &&
                   is_sampled(bytes, sample_bytes_.load(std::memory_order_relaxed))
               ? gather_now()
               : nullptr;
  }
  // Sets the mean bytes per sampled request (sampling.h), until the next `record`.
  void sample(std::size_t bytes) { sample_bytes_.store(bytes, std::memory_order_relaxed); }

  // Whether new blocks keep the contexts of their allocations.
  bool gathers() const { return level_.load(std::memory_order_relaxed) >= RecordContext::STATE; }

  void on_event(const EventFacts& event) noexcept override;
  bool has_undelivered() const noexcept override { return has_queued_for_trackers(); }
  void deliver() noexcept override;
  void on_out_of_memory(std::size_t device_free, std::size_t size, StreamId stream,
                        const PoolId& pool, const CallContext& context);
  // The program annotates a block that it received earlier.
  void on_annotation(const BlockView& block, StreamId stream, const PoolId& pool,
                     const std::string& metadata, const CallContext& context);
  // Called after the entries were read, so that only the next snapshot shows it.
  void on_snapshot(std::size_t active_bytes);

  bool has_trackers() const { return trackers_.load(std::memory_order_relaxed) != nullptr; }

  // In the order of events; times are still in ticks.
  std::vector<TraceEntry> entries() const;

 private:
  CallContext gather_now() const;
  bool has_listeners() const { return enabled_.load(std::memory_order_relaxed) || has_trackers(); }
  bool is_skipped(TraceEntry::Action action) const;
  void observe() FERRO_REQUIRES(settings_mutex_);
  TraceRecord record_of(const EventFacts& event) const;
  void add(TraceRecord&& record) noexcept;

  const c10::DeviceIndex device_;
  DeviceMemory& core_;
  std::atomic<RecordContext> level_{RecordContext::NEVER};
  std::atomic<std::size_t> sample_bytes_{0};
  std::atomic<c10::cuda::CUDACachingAllocator::CreateContextFn> recorder_{nullptr};
  std::atomic<bool> enabled_{false};
  std::atomic<std::uint32_t> skipped_{0};
  TraceRing<TraceRecord> ring_;

  // Permanent once set, because blocks have tags.
  std::atomic<TagSums*> tags_{nullptr};

  Mutex settings_mutex_;
  // Replaced as a whole. The old list is kept, because queued entries refer to it.
  std::atomic<const TrackerList*> trackers_{nullptr};
};

// A thread's annotations of the entries that it causes.
struct ThreadAnnotations {
  std::vector<std::string> compile_contexts;
  std::string user_metadata;
  std::string internal_metadata;

  // Adds them to an entry that this thread causes.
  void annotate(TraceRecord& record) const {
    if (!compile_contexts.empty()) {
      record.rare().compile_context = compile_contexts.back();
    }
    if (!user_metadata.empty()) {
      record.rare().user_metadata = user_metadata;
    }
  }
};
ThreadAnnotations& thread_annotations();

}  // namespace ferro
