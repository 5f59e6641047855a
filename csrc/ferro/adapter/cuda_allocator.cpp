// The way in and out: allocation, frees, life cycle, statistics. Pools and graphs, histories and
// sharing are in files of their own; what is sent elsewhere is in cuda_allocator_routing.cpp.
#include "ferro/adapter/cuda_allocator.h"

#include "ferro/adapter/block_size.h"
#include "ferro/adapter/convert.h"
#include "ferro/adapter/install.h"
#include "ferro/driver/error.h"

#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>

namespace ferro {
namespace {

using c10::CachingAllocator::AcceleratorAllocatorConfig;
using c10::cuda::CUDACachingAllocator::RecordContext;

// Part of every DataPtr, so it must be one function for the life of the process and work from the
// pointer alone, on any thread, with any current device.
void delete_block(void* ptr) { installed_allocator()->free(ptr); }

// PyTorch never destroys the streams of its own, whose ids are odd (c10/cuda/CUDAStream.cpp); those
// of programs (ExternalStream) go when they want.
bool is_stream_of_pytorch(DeviceId device, StreamId stream) {
  const cudaStream_t handle = reinterpret_cast<cudaStream_t>(static_cast<std::uint64_t>(stream));
  if (handle == nullptr || handle == cudaStreamLegacy || handle == cudaStreamPerThread) {
    return true;
  }
  const auto current = c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device));
  return current.stream() == handle && current.id() % 2 != 0;
}

AllocatorConfig with_current_rules(AllocatorConfig config) {
  config.segment_rules = current_segment_rules;
  config.rejection_limit = rejection_limit;
  config.stream_lasts = is_stream_of_pytorch;
  return config;
}

// A free cannot fail because somebody who watches it did.
void warn_of_tracker_failure() {
  if (const std::exception_ptr failure = take_tracker_failure()) {
    try {
      std::rethrow_exception(failure);
    } catch (const std::exception& error) {
      TORCH_WARN("An allocator trace tracker failed: ", error.what());
    } catch (...) {
      TORCH_WARN("An allocator trace tracker failed.");
    }
  }
}

// c10's stream object leads to the driver's handle through a device guard and a table, some 60 ns;
// the handle behind an id never changes.
StreamId current_stream(c10::DeviceIndex device) {
  struct KnownStream {
    c10::StreamId id = -1;
    c10::DeviceIndex device = -1;
    StreamId handle{};
  };
  constexpr std::size_t kKnownStreams = 8;
  thread_local std::array<KnownStream, kKnownStreams> known;

  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(device);
  const c10::StreamId id = stream.id();
  KnownStream& slot =
      known[(static_cast<std::uint64_t>(id) ^ static_cast<std::uint64_t>(device)) % kKnownStreams];
  if (slot.id != id || slot.device != device) [[unlikely]] {
    slot = {id, device, to_stream_id(stream.stream())};
  }
  return slot.handle;
}

Request to_request(std::size_t bytes, CallContext context) {
  return {block_size(bytes, AcceleratorAllocatorConfig::roundup_power2_divisions(bytes)), bytes,
          std::move(context)};
}

}  // namespace

CudaAllocator::Device::Device(const CudaApi& api, c10::DeviceIndex index, AddressIndex& addresses,
                              const AllocatorConfig& config, MemoryShortageCallback on_shortage)
    : core(api, index, addresses, with_current_rules(config), std::move(on_shortage)),
      diversions(core, kFailedGraphsCleanUp ? FailedGraphs::kCleanUp : FailedGraphs::kForget),
      history(index, core) {}

// cudaGetDevice serialises all threads and costs up to 930 ns in one that never set a device; the
// current context costs 8 ns. PyTorch allocates under a device guard, which makes the two agree.
c10::DeviceIndex CudaAllocator::current_device() const {
  if (device_count_.load(std::memory_order_relaxed) == 1) {
    return 0;
  }
  struct KnownContext {
    CUcontext context = nullptr;
    c10::DeviceIndex device = -1;
  };
  thread_local KnownContext known;

  CUcontext context = nullptr;
  api_.ctx_get_current(&context);
  if (context != nullptr && context == known.context) {
    return known.device;
  }
  c10::DeviceIndex index = 0;
  C10_CUDA_CHECK(c10::cuda::GetDevice(&index));
  Device* device = devices_[static_cast<std::size_t>(index)].load(std::memory_order_acquire);
  if (context != nullptr && device != nullptr &&
      context == device->core.driver().context_if_created()) {
    known = {context, index};
  }
  return index;
}

CudaAllocator::Device& CudaAllocator::device(c10::DeviceIndex index) const {
  const bool valid = index >= 0 && index < device_count();
  TORCH_CHECK(valid, "Invalid device argument ", static_cast<int>(index), ": did you call init?");
  return *devices_[static_cast<std::size_t>(index)].load(std::memory_order_acquire);
}

DeviceMemory* CudaAllocator::core_of(int index) const {
  if (index < 0 || index >= device_count()) {
    return nullptr;
  }
  return &devices_[static_cast<std::size_t>(index)].load(std::memory_order_acquire)->core;
}

void CudaAllocator::init(int device_count) {
  const MutexLock lock(init_mutex_);
  TORCH_CHECK(device_count <= static_cast<int>(kMaxDevices), "ferro_alloc serves at most ",
              kMaxDevices, " devices, this machine has ", device_count);
  for (int i = device_count_.load(std::memory_order_relaxed); i < device_count; ++i) {
    const auto index = static_cast<c10::DeviceIndex>(i);
    // Kept for the life of the process, like the allocator itself.
    devices_[static_cast<std::size_t>(i)].store(
        new Device(api_, index, addresses_, config_, [this] { return relieve_shortage(); }),
        std::memory_order_release);
    device_count_.store(i + 1, std::memory_order_release);
    Device& made = device(index);
    made.history.record(history_settings_);
    for (const History::Tracker& tracker : trackers_) {
      made.history.attach_tracker(tracker);
    }
    const double fraction =
        previous_.is_in_use()
            ? previous_.allocator().getMemoryFraction(index)
            : c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig::per_process_memory_fraction();
    if (fraction < 1.0) {
      setMemoryFraction(fraction, index);
    }
  }
}

bool CudaAllocator::initialized() { return device_count() > 0; }

void* CudaAllocator::allocate_on(c10::DeviceIndex index, StreamId stream, std::size_t bytes) {
  TORCH_CHECK_WITH(OutOfMemoryError, bytes < (std::size_t{1} << 60),
                   "CUDA out of memory. Tried to allocate more than 1EB memory.");
  Device& owner = device(index);
  const Request request = to_request(bytes, owner.history.gather(RecordContext::STATE));
  const bool elsewhere = route_.load(std::memory_order_relaxed) != Route::kOurs;
  if (static_cast<int>(elsewhere) | static_cast<int>(owner.diversions.any())) [[unlikely]] {
    return allocate_routed(owner, index, stream, request);
  }
  return allocate_here(owner, index, kDefaultPool, stream, request);
}

void* CudaAllocator::allocate_here(Device& owner, c10::DeviceIndex index, const PoolId& pool,
                                   StreamId stream, const Request& request) {
  const AllocateResult result = owner.core.allocate(pool, stream, request);
  if (result.ptr == kNull) [[unlikely]] {
    fail_allocation(owner, index, pool, stream, request, *result.failure);
  }
  void* ptr = to_void_ptr(result.ptr);
  announce(owner, index, ptr, result.size);
  return ptr;
}

// What every allocation ends with.
void CudaAllocator::announce(Device& owner, c10::DeviceIndex index, void* ptr, std::size_t size) {
  if (observed_.load(std::memory_order_relaxed)) [[unlikely]] {
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

void CudaAllocator::fail_allocation(Device& owner, c10::DeviceIndex index, const PoolId& pool,
                                    StreamId stream, const Request& request,
                                    const OutOfMemoryFacts& facts) {
  if (facts.rejected_beyond) {
    rejection_observers_.notify(facts);
    TORCH_CHECK_WITH(OutOfMemoryError, false, rejection_message(facts));
  }
  if (observed_.load(std::memory_order_relaxed)) {
    owner.history.on_out_of_memory(facts.device_free, request.size, stream, pool, request.context);
  }
  c10::reportOutOfMemoryToProfiler(static_cast<std::int64_t>(facts.request),
                                   owner.core.stats().read()[kBytes][kAll].current, facts.held,
                                   c10::Device(c10::kCUDA, index));
  std::vector<History::FailureObserver> observers;
  {
    const MutexLock lock(init_mutex_);
    observers = failure_observers_;
  }
  for (const History::FailureObserver& observer : observers) {
    observer(index, facts.request, facts.limit.value_or(facts.capacity), facts.device_free);
  }
  TORCH_CHECK_WITH(OutOfMemoryError, false, out_of_memory_message(facts), describe_pools(index),
                   describe_previous(index));
}

void CudaAllocator::report_to_profiler(Device& owner, c10::DeviceIndex index, void* ptr,
                                       std::int64_t bytes) {
  c10::reportMemoryUsageToProfiler(
      ptr, bytes, static_cast<std::size_t>(owner.core.stats().read()[kBytes][kAll].current),
      owner.core.held_bytes(), c10::Device(c10::kCUDA, index));
}

void CudaAllocator::free(void* ptr) {
  const DevicePtr address = to_device_ptr(ptr);
  Span* span = addresses_.find(address);
  if (span == nullptr) [[unlikely]] {
    free_elsewhere(ptr);
    return;
  }
  if (const c10::impl::PyInterpreter* trace = c10::impl::GPUTrace::get_trace()) [[unlikely]] {
    (*trace)->trace_gpu_memory_deallocation(c10::kCUDA, reinterpret_cast<std::uintptr_t>(ptr));
  }
  const bool observed = observed_.load(std::memory_order_relaxed);
  CallContext context;
  if (observed) [[unlikely]] {
    const auto index = static_cast<c10::DeviceIndex>(span->heap()->device());
    context = device(index).history.gather(RecordContext::ALL);
  }
  const FreeResult result = span->heap()->free(*span, address, context);
  if (observed) [[unlikely]] {
    warn_of_tracker_failure();
  }
  TORCH_CHECK(
      result.error == FreeError::kNone, "invalid device pointer: ", ptr,
      " (no live block of ferro_alloc starts there: it was freed already, or lies inside one)");
  if (c10::memoryProfilingEnabled()) [[unlikely]] {
    const auto index = static_cast<c10::DeviceIndex>(span->heap()->device());
    report_to_profiler(device(index), index, ptr, -static_cast<std::int64_t>(result.size));
  }
}

c10::DataPtr CudaAllocator::allocate(std::size_t bytes) {
  const c10::DeviceIndex index = current_device();
  void* ptr = bytes != 0 ? allocate_on(index, current_stream(index), bytes) : nullptr;
  return {ptr, ptr, &delete_block, c10::Device(c10::kCUDA, index)};
}

c10::DataPtr CudaAllocator::allocateWithAddress(std::size_t bytes, void* address) {
  const DevicePtr wanted = to_device_ptr(address);
  TORCH_CHECK(is_aligned(address_of(wanted), kBlockAlignment),
              "mallocWithAddress: addr must be aligned to kMinBlockSize (", kBlockAlignment,
              " bytes), got ", address);
  const c10::DeviceIndex index = current_device();
  Device& owner = device(index);
  const StreamId stream = current_stream(index);
  const Destination to = destination(owner, stream);
  TORCH_CHECK(to.route != Route::kUncached,
              "Exact-address allocation is only supported by the native CUDA caching allocator");
  if (to.route == Route::kPrevious) {
    return allocate_with_address(previous_.allocator(), bytes, address);
  }
  // PyTorch's name for it, which tells such entries of a trace from others.
  std::string& note = thread_annotations().internal_metadata;
  note = "mallocWithAddress";
  const auto end_of_note = c10::make_scope_exit([&note] { note.clear(); });
  const AllocateResult result = owner.core.allocate_at(
      to.pool, stream, wanted, to_request(bytes, owner.history.gather(RecordContext::STATE)));
  TORCH_CHECK(result.ptr != kNull, "Could not allocate CUDA storage at exact address ", address);
  announce(owner, index, address, result.size);
  return {address, address, &delete_block, c10::Device(c10::kCUDA, index)};
}

c10::DeleterFnPtr CudaAllocator::raw_deleter() const { return &delete_block; }

void CudaAllocator::copy_data(void* to, const void* from, std::size_t bytes) const {
  C10_CUDA_CHECK(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToDevice));
}

void* CudaAllocator::raw_alloc(std::size_t bytes) {
  if (bytes == 0) {
    return nullptr;
  }
  const c10::DeviceIndex index = current_device();
  return allocate_on(index, current_stream(index), bytes);
}

void* CudaAllocator::raw_alloc_with_stream(std::size_t bytes, cudaStream_t stream) {
  return bytes != 0 ? allocate_on(current_device(), to_stream_id(stream), bytes) : nullptr;
}

void CudaAllocator::raw_delete(void* ptr) {
  if (ptr != nullptr) {
    free(ptr);
  }
}

void CudaAllocator::recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) {
  if (data.get() == nullptr) {
    return;
  }
  // Memory of other allocators (shared by another process, wrapped from outside) is theirs to
  // order; the one before ours ignores what is not its own.
  if (data.get_deleter() != &delete_block) {
    previous_.allocator().recordStream(data, stream);
    return;
  }
  const DevicePtr address = to_device_ptr(data.get());
  Span* span = addresses_.find(address);
  if (span == nullptr) [[unlikely]] {
    if (!uncached_.owns(data.get())) {  // those are freed behind all work of the device
      previous_.record_stream(data.get(), data.device().index(), stream);
    }
    return;
  }
  const bool known = span->heap()->record_stream(*span, address, to_stream_id(stream.stream()));
  TORCH_INTERNAL_ASSERT(known, "No live block of ferro_alloc starts at ", data.get());
}

void CudaAllocator::emptyCache(c10::MempoolId_t id) {
  if (id == c10::MempoolId_t{0, 0}) {
    let_go_of_failed_captures();
  }
  bool asks_previous = false;
  for (int i = 0; i < device_count(); ++i) {
    const auto index = static_cast<c10::DeviceIndex>(i);
    Device& owner = device(index);
    const CallContext context = owner.history.gather(RecordContext::ALL);
    if (id == c10::MempoolId_t{0, 0}) {
      owner.core.empty_cache(context);
    } else {
      try {
        owner.core.empty_pool(to_pool_id(id), context);
      } catch (const DriverError& refusal) {
        // The destructor of a MemPool is here, which must not throw. What is left of the pool goes
        // with the next emptying of everything.
        TORCH_WARN(refusal.what());
      }
      asks_previous |= is_previous_pool(owner, index, id);
    }
  }
  if (id == c10::MempoolId_t{0, 0}) {
    empty_previous_cache();
  } else if (asks_previous) {
    previous_.allocator().emptyCache(id);
  }
}

c10::CachingDeviceAllocator::DeviceStats CudaAllocator::getDeviceStats(c10::DeviceIndex index) {
  DeviceMemory& core = device(index).core;
  core.collect_for_a_look();
  const c10::CachingDeviceAllocator::DeviceStats ours = to_device_stats(core);
  return previous_.is_in_use() ? previous_.add_statistics(index, ours, serving()) : ours;
}

void CudaAllocator::resetAccumulatedStats(c10::DeviceIndex index) {
  DeviceMemory& core = device(index).core;
  core.stats().reset_accumulated();
  core.reset_accumulated_counters();
  if (previous_.is_in_use()) {
    previous_.allocator().resetAccumulatedStats(index);
  }
}

void CudaAllocator::resetPeakStats(c10::DeviceIndex index) {
  DeviceMemory& core = device(index).core;
  core.reset_peaks();
  if (previous_.is_in_use()) {
    previous_.allocator().resetPeakStats(index);
    previous_.forget_peaks(index);
  }
}

double CudaAllocator::getMemoryFraction(c10::DeviceIndex index) {
  const Device& owner = device(index);
  const std::size_t limit = owner.fraction_limit.load(std::memory_order_relaxed);
  return limit == PageStore::kNoLimit
             ? 1.0
             : static_cast<double>(limit) / static_cast<double>(owner.core.total_memory());
}

void CudaAllocator::setMemoryFraction(double fraction, c10::DeviceIndex index) {
  TORCH_CHECK(0 <= fraction && fraction <= 1, "invalid fraction:", fraction,
              ". Please set within [0, 1].");
  Device& owner = device(index);
  const std::size_t limit =
      fraction < 1
          ? static_cast<std::size_t>(fraction * static_cast<double>(owner.core.total_memory()))
          : PageStore::kNoLimit;
  owner.fraction_limit.store(limit, std::memory_order_relaxed);
  apply_limit(index);
  if (previous_.is_in_use()) {
    previous_.allocator().setMemoryFraction(fraction, index);
  }
}

void CudaAllocator::cacheInfo(c10::DeviceIndex index, std::size_t* largest_block) {
  DeviceMemory& core = device(index).core;
  if (*largest_block == 0) {
    *largest_block = core.driver().memory_info().free_bytes;
  }
  *largest_block = std::max(*largest_block, core.largest_free_block());
  if (previous_.is_in_use()) {
    previous_.allocator().cacheInfo(index, largest_block);
  }
}

cudaError_t CudaAllocator::memcpyAsync(void* to, int to_device, const void* from, int from_device,
                                       std::size_t bytes, cudaStream_t stream, bool peers) {
  if (peers || to_device == from_device) {
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
  }
  return cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, stream);
}

}  // namespace ferro
