// What is not served from our own memory: requests and pools of the allocator before ours, blocks
// that bypass the cache, and the switch between the two allocators.
#include "ferro/adapter/allocator/cuda_allocator.h"
#include "ferro/adapter/allocator/sealed_pools.h"
#include "ferro/adapter/history/gathering.h"
#include "ferro/adapter/torch/convert.h"
#include "ferro/adapter/torch/driver_refusals.h"

#include <c10/cuda/CUDAFunctions.h>

#include <algorithm>

namespace ferro {

CudaAllocator::CudaAllocator(const CudaApi& api, const AllocatorConfig& config,
                             CUDAAllocator& previous)
    : api_(api),
      page_bytes_(config.page_bytes),
      layout_(config.layout),
      memory_limit_(config.memory_limit),
      graph_layout_(config.graph_layout),
      previous_(previous),
      enabled_(previous.isEnabled()),
      config_(config) {
  choose_route();
}

std::string CudaAllocator::name() {
  return serves() ? "ferro_alloc" : previous_.allocator().name();
}

void CudaAllocator::enable(bool value) {
  enabled_.store(value, std::memory_order_relaxed);
  choose_route();
}

void CudaAllocator::choose_route() {
  const bool uncached = caching_is_forbidden() || !isEnabled();
  route_.store(uncached   ? Route::kUncached
               : serves() ? Route::kOurs
                          : Route::kPrevious,
               std::memory_order_relaxed);
}

CudaAllocator::Destination CudaAllocator::destination(Device& owner, StreamId stream) const {
  const Route route = route_.load(std::memory_order_relaxed);
  if (route == Route::kUncached || !owner.router.any()) {
    return {route, kDefaultPool};
  }
  const PoolId pool = with_torch_errors([&] { return owner.router.pool_for(stream); });
  if (pool == kDefaultPool) {
    return {route, kDefaultPool};
  }
  // A diversion holds its pool where the pool lives.
  const bool theirs = previous_.is_in_use() && owner.core.pools().use_count(pool) < 0;
  return {theirs ? Route::kPrevious : Route::kOurs, pool};
}

void* CudaAllocator::allocate_routed(Device& owner, c10::DeviceIndex index, StreamId stream,
                                     Request request) {
  const Destination to = destination(owner, stream);
  if (to.route == Route::kUncached) {
    return uncached_.allocate(request.requested);
  }
  if (to.pool != kDefaultPool) {
    refuse_if_sealed(to.pool);
    request.plain |= graph_layout_.load(std::memory_order_relaxed) == Layout::kSegments &&
                     owner.router.has_captures();
  }
  const auto allocate = [&] {
    if (to.route != Route::kOurs) {
      return allocate_in_previous(index, stream, request.requested);
    }
    if (to.pool == kDefaultPool) {
      return allocate_here(owner, index, to.pool, stream, request);
    }
    AllocateResult result = allocate_quietly(owner, index, to.pool, stream, request);
    while (!owner.core.scratch().note(to.pool, result.ptr)) {
      result = allocate_quietly(owner, index, to.pool, stream, request);
    }
    void* ptr = to_void_ptr(result.ptr);
    note_captured(owner, to.pool, stream, ptr, request.size);
    announce(owner, index, ptr, result.size);
    return ptr;
  };
  const Serving grows = to.route == Route::kOurs ? Serving::kOurs : Serving::kPrevious;
  const Serving serving = this->serving();
  if (grows == serving) {
    return allocate();
  }
  // A pool of the one that does not serve.
  end_stretch(index, serving);
  void* ptr = allocate();
  end_stretch(index, grows);
  return ptr;
}

void* CudaAllocator::allocate_in_previous(c10::DeviceIndex index, StreamId stream,
                                          std::size_t bytes) {
  const auto handle = reinterpret_cast<cudaStream_t>(stream);
  forward_annotations();
  // PyTorch 2.11's expandable segments fail an assertion when part of a pool goes back to the
  // driver; a program that did not ask for them must not meet that.
  const ExpandableSetting::AsBefore setting;
  try {
    return previous_.allocator().raw_alloc_with_stream(bytes, handle);
  } catch (const c10::OutOfMemoryError&) {
    // It cannot know that some of the memory is our cache.
    DeviceMemory& core = device(index).core;
    const std::size_t held = core.report().held_bytes();
    with_torch_errors([&] { core.empty_cache(); });
    if (core.report().held_bytes() == held) {
      throw;
    }
  }
  return previous_.allocator().raw_alloc_with_stream(bytes, handle);
}

void CudaAllocator::free_elsewhere(void* ptr) {
  if (!uncached_.free(ptr)) {
    forward_annotations();
    previous_.allocator().raw_delete(ptr);  // throws when it is not its own either
  }
}

bool CudaAllocator::is_previous_pool(Device& owner, c10::DeviceIndex index, c10::MempoolId_t id,
                                     IfUnknown unknown) const {
  if (!previous_.is_in_use() || owner.core.pools().use_count(to_pool_id(id)) >= 0) {
    return false;
  }
  return (unknown == IfUnknown::kIsMade && !serves()) || previous_.knows_pool(index, id);
}

bool CudaAllocator::is_diverting(c10::DeviceIndex index) const {
  return index < device_count() && device(index).router.any();
}

void CudaAllocator::start_serving() {
  const MutexLock lock(switch_mutex_);
  if (previous_.is_in_use()) {
    init(c10::cuda::device_count());
    previous_.allocator().emptyCache({0, 0});
  }
  switch_to(Serving::kOurs);
  ExpandableSetting::instance().say(has_pages());
}

// As far as is known: before CUDA is initialised nobody asked the devices.
bool CudaAllocator::has_pages() const {
  Layout layout = layout_;
  for (int i = 0; i < device_count(); ++i) {
    layout = core_of(i)->layout() == Layout::kSegments ? Layout::kSegments : layout;
  }
  return layout == Layout::kPages;
}

AllocatorConfig CudaAllocator::config() {
  const MutexLock lock(init_mutex_);
  return config_;
}

void CudaAllocator::adjust(const AllocatorConfig& wanted) {
  {
    const MutexLock lock(init_mutex_);
    config_ = wanted;
  }
  memory_limit_.store(wanted.memory_limit, std::memory_order_relaxed);
  graph_layout_.store(wanted.graph_layout, std::memory_order_relaxed);
  for (int i = 0; i < device_count(); ++i) {
    core_of(i)->adjust(wanted);
    apply_limit(static_cast<c10::DeviceIndex>(i));
  }
}

void CudaAllocator::stop_serving() {
  const MutexLock lock(switch_mutex_);
  if (!previous_.is_in_use()) {
    previous_.start(device_count());
    const MutexLock observers(init_mutex_);
    for (const History::FailureObserver& observer : failure_observers_) {
      previous_.allocator().attachOutOfMemoryObserver(observer);
    }
    for (const OomRejectionObserver& observer : rejection_observers_.all()) {
      attach_rejection_observer(previous_.allocator(), observer);
    }
    for (const History::Tracker& tracker : trackers_) {
      previous_.allocator().attachAllocatorTraceTracker(tracker);
    }
  }
  for (int i = 0; i < device_count(); ++i) {
    const auto index = static_cast<c10::DeviceIndex>(i);
    previous_.allocator().setMemoryFraction(getMemoryFraction(index), index);
  }
  switch_to(Serving::kPrevious);
  ExpandableSetting::instance().take_back();
  for (int i = 0; i < device_count(); ++i) {
    with_torch_errors([&] { core_of(i)->empty_cache(); });
  }
}

// Only one of the two grows at a time, which is what makes peaks of their sum known: the stretch in
// which `grew` did is folded into the peaks shown, and a new one begins for both.
void CudaAllocator::end_stretch(c10::DeviceIndex index, Serving grew) {
  DeviceMemory& core = device(index).core;
  previous_.add_statistics(index, to_device_stats(core), grew);
  previous_.allocator().resetPeakStats(index);
  core.stats().reset_peaks();
  core.store().reset_peak();
  core.segment_stats().reset_peaks();
}

void CudaAllocator::switch_to(Serving serving) {
  for (c10::DeviceIndex i = 0; previous_.is_in_use() && i < device_count(); ++i) {
    end_stretch(i, this->serving());
  }
  serving_.store(serving, std::memory_order_release);
  choose_route();
  for (c10::DeviceIndex i = 0; i < device_count(); ++i) {
    apply_limit(i);
  }
}

bool CudaAllocator::empty_previous_cache() {
  if (has_captures() || !previous_.empty_cache()) {
    return false;
  }
  for (c10::DeviceIndex i = 0; i < device_count(); ++i) {
    apply_limit(i);
  }
  return true;
}

// Others may have memory to give: libraries that registered a callback, and the allocator before
// ours, whose tensors leave it in its cache when they die. Asked under the climb lock.
bool CudaAllocator::relieve_shortage() {
  const NoGathering under_a_lock;
  bool freed = false;
  for (const std::string& name : c10::FreeCudaMemoryCallbacksRegistry()->Keys()) {
    freed |= c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute();
  }
  return empty_previous_cache() || freed;
}

std::size_t CudaAllocator::limit_of_both(const Device& owner) const {
  return std::min(owner.fraction_limit.load(std::memory_order_relaxed),
                  memory_limit_.load(std::memory_order_relaxed));
}

// The limit is one for both; what the other one holds is not ours to take.
void CudaAllocator::apply_limit(c10::DeviceIndex index) {
  Device& owner = device(index);
  std::size_t limit = limit_of_both(owner);
  if (limit != PageStore::kNoLimit) {
    limit -= std::min(limit, previous_.reserved_bytes(index));
  }
  owner.core.store().set_limit(limit);
}

}  // namespace ferro
