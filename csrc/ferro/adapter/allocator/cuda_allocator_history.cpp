// Snapshots, histories and observers.
#include "ferro/adapter/allocator/cuda_allocator.h"
#include "ferro/adapter/history/gathering.h"
#include "ferro/adapter/history/request_tag.h"
#include "ferro/adapter/history/tag_limits.h"
#include "ferro/adapter/torch/convert.h"
#include "ferro/adapter/torch/driver_refusals.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/util/ApproximateClock.h>

#include <algorithm>
#include <iterator>

namespace ferro {
namespace {

using namespace c10::cuda::CUDACachingAllocator;  // NOLINT(google-build-using-namespace): the names
                                                  // of the interface that this file implements

// The first call is slow, because it compares two clocks many times.
const c10::ApproximateClockToUnixTimeConverter& clock_converter() {
  static const auto* converter = new c10::ApproximateClockToUnixTimeConverter;
  return *converter;
}

template <typename Entry>
void set_unix_times(std::vector<Entry>& entries) {
  auto to_nanoseconds =
      const_cast<c10::ApproximateClockToUnixTimeConverter&>(clock_converter()).makeConverter();
  for (Entry& entry : entries) {
    entry.time_.t_ = to_nanoseconds(entry.time_.approx_t_) / 1000;
  }
}

// Each allocator keeps `count` entries, so two traces together may have more.
void keep_last(std::vector<TraceEntry>& trace, std::size_t count) {
  if (trace.size() > count) {
    trace.erase(trace.begin(), trace.end() - static_cast<std::ptrdiff_t>(count));
  }
}

}  // namespace

SnapshotInfo CudaAllocator::snapshot(c10::MempoolId_t id, bool include_traces) {
  SnapshotInfo info;
  const PoolId pool = to_pool_id(id);
  const bool observed = observed_.load(std::memory_order_relaxed);
  for (int i = 0; i < device_count(); ++i) {
    const auto index = static_cast<c10::DeviceIndex>(i);
    Device& owner = device(index);
    with_torch_errors([&] { owner.core.collect_pending(); });
    // A program that registers mappings through a tracker begins with the whole ones of a snapshot.
    const Ranges ranges = owner.history.has_trackers() ? Ranges::kWhole : Ranges::kByClass;
    std::vector<SegmentInfo> segments = to_segments(
        owner.core.report().segments(pool == kDefaultPool ? nullptr : &pool), index, ranges);
    std::size_t active_bytes = 0;
    for (const SegmentInfo& segment : segments) {
      active_bytes += segment.active_size;
    }
    std::ranges::move(segments, std::back_inserter(info.segments));
    if (include_traces) {
      info.device_traces.push_back(owner.history.entries());
      set_unix_times(info.device_traces.back());
    }
    if (observed) {
      owner.history.on_snapshot(active_bytes);
    }
  }
  if (include_traces) {
    info.external_annotations = annotations_.read();
    for (c10::DeviceIndex i = 0; i < device_count(); ++i) {
      std::ranges::move(pool_names(i), std::back_inserter(info.external_annotations));
    }
    set_unix_times(info.external_annotations);
  }
  info.config_metadata = current_config_info();
  if (previous_.is_in_use()) {
    previous_.add_snapshot(id, include_traces, &info);
    const MutexLock lock(init_mutex_);
    for (std::vector<TraceEntry>& trace : info.device_traces) {
      keep_last(trace, history_settings_.max_entries);
    }
  }
  return info;
}

void CudaAllocator::recordHistory(bool enabled, CreateContextFn recorder, std::size_t max_entries,
                                  RecordContext when, bool clear,
                                  const std::vector<std::string>& skip_actions) {
  const HistorySettings settings =
      checked_settings(enabled, recorder, max_entries, when, clear, skip_actions);
  const MutexLock lock(init_mutex_);
  clock_converter();
  history_settings_ = settings;
  if (enabled) {
    observed_.store(true);
  }
  history_enabled_.store(enabled);
  for (int i = 0; i < device_count(); ++i) {
    device(static_cast<c10::DeviceIndex>(i)).history.record(settings);
  }
  annotations_.set_capacity(settings.max_entries);
  if (settings.clear) {
    annotations_.clear();
  }
  choose_observed();
  previous_.record_history([=](CUDAAllocator& previous) {
    previous.recordHistory(enabled, where_allowed(recorder), max_entries, when, clear,
                           skip_actions);
  });
}

void CudaAllocator::sample_stacks(std::size_t bytes) {
  const MutexLock lock(init_mutex_);
  history_settings_.sample_bytes = bytes;
  for (c10::DeviceIndex i = 0; i < device_count(); ++i) {
    device(i).history.sample(bytes);
  }
}

void CudaAllocator::choose_observed() {
  observed_.store(isHistoryEnabled() || !trackers_.empty() || watched_blocks_.is_on() ||
                  tag_limits().any());
}

void CudaAllocator::watch_blocks(bool on) {
  const MutexLock lock(init_mutex_);
  if (on) {
    watched_blocks_.turn_on();
  } else {
    watched_blocks_.turn_off();
  }
  choose_observed();
}

void CudaAllocator::recordAnnotation(
    const std::vector<std::pair<std::string, std::string>>& metadata) {
  if (!isHistoryEnabled()) {
    return;
  }
  c10::DeviceIndex index = 0;
  C10_CUDA_CHECK(c10::cuda::GetDevice(&index));
  c10::CachingDeviceAllocator::AnnotationEntry entry(index, c10::getApproximateTime());
  for (const auto& [name, value] : metadata) {
    entry.recordUserMetadata(name, value);
  }
  annotations_.add(std::move(entry));
}

void CudaAllocator::pushCompileContext(std::string& name) {
  if (isHistoryEnabled()) {
    thread_annotations().compile_contexts.push_back(name);
  }
}

void CudaAllocator::popCompileContext() {
  std::vector<std::string>& contexts = thread_annotations().compile_contexts;
  if (!isHistoryEnabled()) {
    return;
  }
  if (!contexts.empty()) {
    contexts.pop_back();
  } else if (previous_.is_in_use()) {
    previous_.allocator().popCompileContext();  // pushed before ferro_alloc was installed
  }
}

// Called just before the previous allocator may record an event, because it may never record one.
void CudaAllocator::forward_annotations() {
  if (!isHistoryEnabled() || !previous_.is_in_use()) {
    return;
  }
  static thread_local std::vector<std::string> contexts;
  static thread_local std::string metadata;
  const ThreadAnnotations& mine = thread_annotations();
  CUDAAllocator& previous = previous_.allocator();
  if (metadata != mine.user_metadata) {
    previous.setUserMetadata(mine.user_metadata);
    metadata = mine.user_metadata;
  }
  if (contexts != mine.compile_contexts) {
    for (std::size_t i = 0; i < contexts.size(); ++i) {
      previous.popCompileContext();
    }
    contexts = mine.compile_contexts;
    for (std::string& context : contexts) {
      previous.pushCompileContext(context);
    }
  }
}

void CudaAllocator::setUserMetadata(const std::string& metadata) {
  thread_annotations().user_metadata = metadata;
  const BlockTag tag = tag_names().tag_of(metadata);
  if (tag != 0) {
    count_tags();
  }
  set_tag_of_thread(tag);
}

std::string CudaAllocator::getUserMetadata() { return thread_annotations().user_metadata; }

void CudaAllocator::annotateMemory(const void* ptr, const std::string& metadata) {
  const DevicePtr address = to_device_ptr(ptr);
  Span* span = addresses_.find(address);
  const auto block = span != nullptr ? span->heap()->live_block_at(*span, address) : std::nullopt;
  if (!block && previous_.is_in_use()) {
    annotate_memory(previous_.allocator(), ptr, metadata);
    return;
  }
  TORCH_CHECK(block.has_value(), "annotateMemory: no live allocation found at pointer ", ptr);
  const Heap& heap = *span->heap();
  History& history = device(static_cast<c10::DeviceIndex>(heap.device())).history;
  history.on_annotation(*block, heap.stream(), heap.pool(), metadata,
                        history.gather(RecordContext::STATE));
}

std::shared_ptr<c10::GatheredContext> CudaAllocator::getContextForPointer(const void* ptr) {
  const DevicePtr address = to_device_ptr(ptr);
  Span* span = addresses_.find(address);
  const auto block = span != nullptr ? span->heap()->live_block_at(*span, address) : std::nullopt;
  if (!block && previous_.is_in_use()) {
    return context_for_pointer(previous_.allocator(), ptr);
  }
  return block ? std::static_pointer_cast<c10::GatheredContext>(block->context) : nullptr;
}

void CudaAllocator::attachOutOfMemoryObserver(OutOfMemoryObserver observer) {
  const MutexLock lock(init_mutex_);
  if (previous_.is_in_use()) {
    previous_.attach_observer(observer);
  }
  failure_observers_.push_back(std::move(observer));
}

void CudaAllocator::attachOomRejectionObserver(OomRejectionObserver observer) {
  const MutexLock lock(init_mutex_);
  if (previous_.is_in_use()) {
    attach_rejection_observer(previous_.allocator(), observer);
  }
  rejection_observers_.push_back(std::move(observer));
}

// The last step of every allocation.
void CudaAllocator::announce(Device& owner, c10::DeviceIndex index, void* ptr, std::size_t size) {
  if (observed_.load(std::memory_order_relaxed)) [[unlikely]] {
    deliver_to_trackers();
    if (const std::exception_ptr failure = take_tracker_failure()) {
      free(ptr);
      std::rethrow_exception(failure);
    }
  }
  if (c10::memoryProfilingEnabled()) [[unlikely]] {
    report_to_profiler(owner, index, ptr, static_cast<std::int64_t>(size));
  }
  if (const c10::impl::PyInterpreter* trace = c10::impl::GPUTrace::get_trace()) [[unlikely]] {
    (*trace)->trace_gpu_memory_allocation(c10::kCUDA, reinterpret_cast<std::uintptr_t>(ptr));
  }
}

void CudaAllocator::report_to_profiler(Device& owner, c10::DeviceIndex index, void* ptr,
                                       std::int64_t bytes) {
  c10::reportMemoryUsageToProfiler(
      ptr, bytes, static_cast<std::size_t>(owner.core.stats().read()[kBytes][kAll].current),
      owner.core.report().held_bytes(), c10::Device(c10::kCUDA, index));
}

void CudaAllocator::attachAllocatorTraceTracker(AllocatorTraceTracker tracker) {
  const MutexLock lock(init_mutex_);
  observed_.store(true);
  for (int i = 0; i < device_count(); ++i) {
    device(static_cast<c10::DeviceIndex>(i)).history.attach_tracker(tracker);
  }
  if (previous_.is_in_use()) {
    previous_.allocator().attachAllocatorTraceTracker(tracker);
  }
  trackers_.push_back(std::move(tracker));
}

}  // namespace ferro
