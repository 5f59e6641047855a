// Requests that our memory does not serve: requests and pools of the previous allocator, blocks
// that bypass the cache, and the switch between the two allocators.
//
// Our memory has one layout, pages. Memory in PyTorch's layout comes from PyTorch's own allocator,
// the previous one: all memory with layout:segments or on a device without virtual memory
// management, pools with graph_layout:segments, requests while the program has switched expandable
// segments off, and pools whose blocks are whole segments or that have their own allocator.
#include "ferro/adapter/allocator/capture_pools.h"
#include "ferro/adapter/allocator/cuda_allocator.h"
#include "ferro/adapter/history/gathering.h"
#include "ferro/adapter/torch/convert.h"
#include "ferro/adapter/torch/driver_refusals.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>

#include <algorithm>
#include <optional>

namespace ferro {
namespace {

// Allows this thread, while a capture runs, the calls of PyTorch's allocator that a capture of
// another thread forbids and that would invalidate it: cudaMalloc, and from torch 2.13 on, which
// knows only the captures of its own stream, queries of events. There a refused query also leaves
// an empty event behind, on which the next `empty_cache` crashes.
class BesideCaptures {
 public:
  explicit BesideCaptures(bool any) {
    if (any) {
      relaxed_.emplace(cudaStreamCaptureModeRelaxed);
    }
  }

 private:
  std::optional<c10::cuda::CUDAStreamCaptureModeGuard> relaxed_;
};

}  // namespace

CudaAllocator::CudaAllocator(const CudaApi& api, const Settings& config, CUDAAllocator& previous,
                             In in)
    : api_(api),
      in_(in),
      page_bytes_(config.page_bytes),
      layout_(config.layout),
      memory_limit_(config.memory_limit),
      headroom_(config.headroom),
      graph_layout_(config.graph_layout),
      previous_(previous, in == In::kOwnProcess && previous.initialized()),
      enabled_(previous.isEnabled()),
      config_(config) {}

std::string CudaAllocator::name() {
  return serves() ? "ferro_alloc" : previous_.allocator().name();
}

void CudaAllocator::enable(bool value) {
  enabled_.store(value, std::memory_order_relaxed);
  for (c10::DeviceIndex i = 0; i < device_count(); ++i) {
    update_route(device(i), i);
  }
}

CudaAllocator::Route CudaAllocator::route_now(const Device& owner) const {
  if (caching_is_forbidden() || !isEnabled()) {
    return Route::kUncached;
  }
  return serves() && owner.has_pages && requests_are_expandable() ? Route::kOurs : Route::kPrevious;
}

CudaAllocator::Route CudaAllocator::update_route(Device& owner, c10::DeviceIndex index) {
  const Route route = route_now(owner);
  owner.serves_hits.store(route == Route::kOurs, std::memory_order_relaxed);
  if (route != Route::kUncached) {
    note_growth(owner, index, route == Route::kOurs ? Serving::kOurs : Serving::kPrevious);
  }
  return route;
}

void CudaAllocator::note_growth(Device& owner, c10::DeviceIndex index, Serving which) {
  if (owner.grows.load(std::memory_order_relaxed) == which) {
    return;
  }
  if (which == Serving::kPrevious) {
    start_previous();
    owner.serves_hits.store(false, std::memory_order_relaxed);  // the next hit ends the stretch
  }
  const Serving grew = owner.grows.exchange(which, std::memory_order_relaxed);
  if (grew != which && previous_.is_in_use()) {
    end_stretch(index, grew);
  }
  bool any = false;
  for (c10::DeviceIndex i = 0; i < device_count(); ++i) {
    any |= device(i).has_pages &&
           device(i).grows.load(std::memory_order_relaxed) == Serving::kPrevious;
  }
  previous_grows_.store(any, std::memory_order_relaxed);
}

void CudaAllocator::fold_peaks(Device& owner, c10::DeviceIndex index, Serving frees) {
  const Serving grows = owner.grows.load(std::memory_order_relaxed);
  if (grows != frees && owner.has_pages && previous_.is_in_use()) {
    static_cast<void>(owner.core.try_under_climb_lock([&] { end_stretch(index, grows); }));
  }
}

void CudaAllocator::announce_captures(Device& owner, c10::DeviceIndex index) {
  if (!previous_.is_in_use() ||
      owner.announces_captures.load(std::memory_order_relaxed) == owner.router.has_captures()) {
    return;
  }
  const MutexLock lock(announce_mutex_);
  const bool captures = owner.router.has_captures();
  if (captures == owner.announces_captures) {
    return;
  }
  owner.announces_captures = captures;
  if (captures) {
    previous_.begin_captures(index);
  } else {
    previous_.end_captures(index);
  }
}

CudaAllocator::Destination CudaAllocator::destination(Device& owner, StreamId stream) const {
  const Route route = route_now(owner);
  if (route == Route::kUncached || !owner.router.any()) {
    return {route, kDefaultPool};
  }
  const PoolId pool = with_torch_errors([&] { return owner.router.pool_for(stream); });
  if (pool == kDefaultPool) {
    return {route, kDefaultPool};
  }
  // A diversion holds its pool in the allocator that owns the pool.
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
  }
  if (to.pool == kDefaultPool) {
    update_route(owner, index);
  } else {
    note_growth(owner, index, to.route == Route::kOurs ? Serving::kOurs : Serving::kPrevious);
  }
  if (to.route == Route::kOurs) {
    return allocate_here(owner, index, to.pool, stream, request);
  }
  void* ptr = allocate_in_previous(owner, index, to.pool, stream, request.requested);
  if (to.pool != kDefaultPool && owner.router.has_captures()) {
    owner.graphs.note_foreign(to.pool, stream, to_device_ptr(ptr), request.size);
  }
  return ptr;
}

void* CudaAllocator::allocate_in_previous(Device& owner, c10::DeviceIndex index, const PoolId& pool,
                                          StreamId stream, std::size_t bytes) {
  const auto handle = reinterpret_cast<cudaStream_t>(stream);
  announce_captures(owner, index);
  forward_annotations();
  apply_limit_of_previous(owner, index);
  // PyTorch 2.11's expandable segments fail an assertion when part of a pool returns to the driver.
  // This must not happen to a program that did not enable them.
  const ExpandableSetting::OriginalSetting setting;
  // Not for a graph's pool: on a full card PyTorch's allocator would free what earlier graphs of the
  // pool replay on, which only the driver's refusal prevents.
  const BesideCaptures beside(pool == kDefaultPool && has_captures());
  const bool has_allocator = [&] {
    const MutexLock lock(init_mutex_);
    const auto found = previous_pools_.find(pool);
    return found != previous_pools_.end() && found->second == PreviousPool::kWithAllocator;
  }();
  // The previous allocator does not know that our cache holds some of the memory.
  if (owner.core.report().held_bytes() != 0 && !rejects_before_driver() && !has_allocator) {
    if (void* ptr = previous_.try_allocate(index, bytes, handle)) {
      return ptr;
    }
    with_torch_errors([&] { owner.core.empty_cache(); });
    apply_limit_of_previous(owner, index);
  }
  try {
    return previous_.allocator().raw_alloc_with_stream(bytes, handle);
  } catch (const c10::OutOfMemoryError&) {
    if (rejects_before_driver()) {
      throw;
    }
    TORCH_CHECK_WITH(OutOfMemoryError, false,
                     message_of_failed_previous(
                         owner, index, bytes,
                         has_allocator ? label_of_pool(pool, pool_registry().name_of(pool)) : ""));
  }
}

void CudaAllocator::free_foreign(void* ptr) {
  if (is_in_forked_child()) {
    return;
  }
  if (!uncached_.free(ptr)) {
    for (c10::DeviceIndex i = 0; i < device_count(); ++i) {
      fold_peaks(device(i), i, Serving::kPrevious);
    }
    forward_annotations();
    const BesideCaptures beside(has_captures());
    previous_.allocator().raw_delete(ptr);  // throws if the block is not its own either
  }
}

bool CudaAllocator::is_previous_pool(Device& owner, c10::DeviceIndex index, c10::MempoolId_t id,
                                     IfUnknown unknown) const {
  if (owner.core.pools().use_count(to_pool_id(id)) >= 0) {
    return false;
  }
  return (unknown == IfUnknown::kCreated && makes_in_previous(owner, to_pool_id(id))) ||
         (previous_.is_in_use() && previous_.knows_pool(index, id));
}

bool CudaAllocator::makes_in_previous(const Device& owner, const PoolId& id) const {
  if (!serves() || !owner.has_pages || !requests_are_expandable() ||
      graph_layout_.load(std::memory_order_relaxed) == Layout::kSegments) {
    return true;
  }
  const MutexLock lock(init_mutex_);
  return previous_pools_.contains(id);
}

void CudaAllocator::move_pool_to_previous(Device& owner, c10::DeviceIndex index,
                                          c10::MempoolId_t id) {
  const PoolId known = to_pool_id(id);
  if (owner.router.is_diverting_to(known) || owner.graphs.group_of(known)) {
    return;
  }
  const std::optional<PoolTable::Unused> pool = owner.core.pools().remove_unused(known);
  if (!pool) {
    return;
  }
  start_previous();
  for (int i = 0; i < pool->use_count; ++i) {
    previous_.allocator().createOrIncrefPool(index, id, nullptr);
  }
  if (pool->use_on_oom) {
    set_use_on_oom_in_previous(index, id, true);
  }
}

bool CudaAllocator::is_diverting(c10::DeviceIndex index) const {
  return index < device_count() && device(index).router.any();
}

void CudaAllocator::start_serving() {
  const MutexLock lock(switch_mutex_);
  if (previous_.is_in_use()) {
    init(c10::cuda::device_count());
    previous_.allocator().emptyCache({0, 0});
    adopt_peers();
  }
  switch_to(Serving::kOurs);
  ExpandableSetting::instance().set(has_pages());
}

// As far as known: the devices are not queried before CUDA is initialised.
bool CudaAllocator::has_pages() const {
  bool has_pages = layout_ == Layout::kPages;
  for (c10::DeviceIndex i = 0; i < device_count(); ++i) {
    has_pages &= device(i).has_pages;
  }
  return has_pages;
}

Settings CudaAllocator::config() {
  const MutexLock lock(init_mutex_);
  return config_;
}

void CudaAllocator::adjust(const Settings& wanted) {
  {
    const MutexLock lock(init_mutex_);
    config_ = wanted;
  }
  memory_limit_.store(wanted.memory_limit, std::memory_order_relaxed);
  headroom_.store(wanted.headroom, std::memory_order_relaxed);
  graph_layout_.store(wanted.graph_layout, std::memory_order_relaxed);
  for (int i = 0; i < device_count(); ++i) {
    core_of(i)->adjust(wanted);
    apply_limit(static_cast<c10::DeviceIndex>(i));
  }
}

void CudaAllocator::start_previous() {
  if (previous_.is_in_use()) {
    return;
  }
  const MutexLock lock(init_mutex_);
  if (previous_.is_in_use()) {
    return;
  }
  previous_.start(device_count());
  for (c10::DeviceIndex i = 0; i < device_count(); ++i) {
    for (int marked = device(i).router.marked(); marked > 0; --marked) {
      mark_capture_begin(previous_.allocator(), i);  // so that it can match the ends
    }
    announce_captures(device(i), i);
  }
  for (const History::FailureObserver& observer : failure_observers_) {
    previous_.attach_observer(observer);
  }
  for (const OomRejectionObserver& observer : rejection_observers_) {
    attach_rejection_observer(previous_.allocator(), observer);
  }
  for (const History::Tracker& tracker : trackers_) {
    previous_.allocator().attachAllocatorTraceTracker(tracker);
  }
}

void CudaAllocator::stop_serving() {
  const MutexLock lock(switch_mutex_);
  start_previous();
  for (c10::DeviceIndex i = 0; i < device_count(); ++i) {
    for (const DeviceId user : device(i).core.driver().peers()) {
      previous_.allocator().enablePeerAccess(static_cast<c10::DeviceIndex>(user), i);
    }
  }
  switch_to(Serving::kPrevious);
  ExpandableSetting::instance().restore();
  for (int i = 0; i < device_count(); ++i) {
    with_torch_errors([&] { core_of(i)->empty_cache(); });
  }
}

// Only one allocator grows at a time, so the peaks of their sum are known. Folds the stretch in
// which `grew` did into the reported peaks, and begins a new one for both.
void CudaAllocator::end_stretch(c10::DeviceIndex index, Serving grew) {
  DeviceMemory& core = device(index).core;
  previous_.add_statistics(index, to_device_stats(core), grew);
  previous_.allocator().resetPeakStats(index);
  core.stats().reset_peaks();
  core.store().reset_peak();
}

void CudaAllocator::switch_to(Serving serving) {
  serving_.store(serving, std::memory_order_release);
  for (c10::DeviceIndex i = 0; i < device_count(); ++i) {
    update_route(device(i), i);
    apply_limit(i);
  }
}

bool CudaAllocator::empty_previous_cache() {
  for (c10::DeviceIndex i = 0; i < device_count(); ++i) {
    announce_captures(device(i), i);
  }
  if (has_captures() || !previous_.empty_cache()) {
    return false;
  }
  for (c10::DeviceIndex i = 0; i < device_count(); ++i) {
    apply_limit(i);
  }
  return true;
}

// Libraries that registered a callback may release memory, and so may the previous allocator, whose
// cache keeps the memory of its freed tensors. Called under the climb lock.
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

// Both allocators share one limit: the previous allocator's memory reduces ours.
void CudaAllocator::apply_limit(c10::DeviceIndex index) {
  Device& owner = device(index);
  std::size_t limit = limit_of_both(owner);
  if (limit != PageStore::kNoLimit) {
    limit -= std::min(limit, previous_.reserved_bytes(index));
  }
  owner.core.store().set_limit(limit);
}

// The same for the previous allocator, whose limit is a fraction of the device.
void CudaAllocator::apply_limit_of_previous(Device& owner, c10::DeviceIndex index) {
  const std::size_t limit =
      serves() ? limit_of_both(owner) : owner.fraction_limit.load(std::memory_order_relaxed);
  const std::size_t held = limit != PageStore::kNoLimit ? owner.core.report().held_bytes() : 0;
  std::size_t left = limit - std::min(limit, held);
  if (const std::size_t headroom = headroom_.load(std::memory_order_relaxed);
      headroom != 0 && serves()) {
    const std::size_t free = owner.core.driver().memory_info().free_bytes;
    left = std::min(left, previous_.reserved_bytes(index) + free - std::min(free, headroom));
  }
  if (owner.limit_of_previous.exchange(left, std::memory_order_relaxed) == left) {
    return;
  }
  const std::size_t total = owner.core.total_memory();
  previous_.allocator().setMemoryFraction(left < total ? to_fraction(left, total) : 1.0, index);
}

void CudaAllocator::set_use_on_oom_in_previous(c10::DeviceIndex index, c10::MempoolId_t id,
                                               bool use) {
  previous_.allocator().setUseOnOOM(index, id, use);
  if (use) {
    previous_lends_.store(true, std::memory_order_relaxed);
  }
}

// Pools of the previous allocator that lend serve a request before it fails, as they do there.
void* CudaAllocator::borrow_from_previous(Device& owner, c10::DeviceIndex index, StreamId stream,
                                          std::size_t bytes) {
  if (!previous_lends_.load(std::memory_order_relaxed)) {
    return nullptr;
  }
  note_growth(owner, index, Serving::kPrevious);
  apply_limit_of_previous(owner, index);
  const ExpandableSetting::OriginalSetting setting;
  const BesideCaptures beside(has_captures());
  return previous_.try_allocate(index, bytes, reinterpret_cast<cudaStream_t>(stream));
}

}  // namespace ferro
