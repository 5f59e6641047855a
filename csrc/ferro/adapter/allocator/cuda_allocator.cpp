// Allocation, frees and the life cycle. The cache and its statistics, pools and graphs, histories,
// and sharing have separate files; cuda_allocator_routing.cpp has requests that go elsewhere.
#include "ferro/adapter/allocator/cuda_allocator.h"

#include "ferro/adapter/allocator/block_size.h"
#include "ferro/adapter/allocator/installed_allocator.h"
#include "ferro/adapter/history/tag_limits.h"
#include "ferro/adapter/torch/convert.h"
#include "ferro/adapter/torch/driver_refusals.h"
#include "ferro/adapter/torch/rank_messages.h"

#include <c10/core/Event.h>
#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/ScopeExit.h>
#include <c10/util/ThreadLocalDebugInfo.h>

namespace ferro {
namespace {

std::atomic<CudaAllocator*> the_allocator{nullptr};

using c10::cuda::CUDACachingAllocator::RecordContext;

// Part of every DataPtr, so it must be one function for the life of the process and work from the
// pointer alone, on any thread, with any current device.
void delete_block(void* ptr) { installed_allocator()->free(ptr); }

// PyTorch never destroys its own streams, whose ids are odd (c10/cuda/CUDAStream.cpp). A program
// may destroy its streams (ExternalStream) at any time.
bool is_stream_of_pytorch(DeviceId device, StreamId stream) {
  const cudaStream_t handle = reinterpret_cast<cudaStream_t>(static_cast<std::uint64_t>(stream));
  if (handle == nullptr || handle == cudaStreamLegacy) {
    return true;
  }
  if (handle == cudaStreamPerThread) {
    return false;  // another stream in each thread
  }
  const auto current = c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device));
  return current.stream() == handle && current.id() % 2 != 0;
}

AllocatorConfig with_current_rules(AllocatorConfig config) {
  config.rejection_limit = rejection_limit;
  config.stream_lasts = is_stream_of_pytorch;
  config.streams_of_others = [](DeviceId own, std::span<StreamId> to) {
    std::size_t count = 0;
    DeviceMemory* memory = nullptr;
    for (DeviceId device = 0; (memory = installed_allocator()->core_of(device)) != nullptr;
         ++device) {
      count += device != own ? memory->pools().copy_lasting_streams(to.subspan(count)) : 0;
    }
    return count;
  };
  static const auto captures = std::make_shared<CaptureCount>();
  config.captures_of_process = captures;
  config.has_rank_messages = has_rank_messages;
  return config;
}

// A free must not fail because a tracker failed.
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

const CallContext kNoContext;

KnownStreams::Slot& current_stream(c10::DeviceIndex device) {
  thread_local constinit KnownStreams known;
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream(device);
  const std::uint64_t key = KnownStreams::key_of(stream.id(), device);
  KnownStreams::Slot& slot = known.slot_of(key);
  if (slot.key != key) [[unlikely]] {
    slot = {key, to_stream_id(stream.stream())};
  }
  return slot;
}

// Whether a profiler or a tracer observes this thread's allocations and frees. The first test is
// that of c10::memoryProfilingEnabled, without the call around it.
bool is_profiled_or_traced() {
  return c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE) != nullptr ||
         c10::impl::GPUTrace::get_trace() != nullptr;
}

}  // namespace

CudaAllocator* installed_allocator() { return the_allocator.load(std::memory_order_acquire); }

void set_installed_allocator(CudaAllocator* allocator) {
  the_allocator.store(allocator, std::memory_order_release);
}

CudaAllocator::Device::Device(const CudaApi& api, c10::DeviceIndex index, AddressIndex& addresses,
                              const Settings& config, MemoryShortageCallback on_shortage,
                              Serving serving)
    : core(api, index, addresses, with_current_rules(config), std::move(on_shortage)),
      graphs(core),
      router(core, kFailedGraphsCleanUp ? FailedGraphs::kCleanUp : FailedGraphs::kForget),
      history(index, core),
      has_pages(config.layout == Layout::kPages && core.driver().has_virtual_memory()),
      grows(has_pages ? serving : Serving::kPrevious) {}

// cudaGetDevice serialises all threads and costs up to 930 ns in a thread that never set a device;
// the current context costs 8 ns. PyTorch allocates under a device guard, so the two agree.
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
  const bool possible = index >= 0 && static_cast<std::size_t>(index) < kMaxDevices;
  Device* found = possible
                      ? devices_[static_cast<std::size_t>(index)].load(std::memory_order_acquire)
                      : nullptr;
  if (found == nullptr) [[unlikely]] {
    refuse_device(index);
  }
  return *found;
}

void CudaAllocator::refuse_device(c10::DeviceIndex index) const {
  TORCH_CHECK(
      !is_in_forked_child(),
      "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you "
      "must use the 'spawn' start method");
  TORCH_CHECK(false, "Invalid device argument ", static_cast<int>(index), ": did you call init?");
}

DeviceMemory* CudaAllocator::core_of(int index) const {
  if (index < 0 || index >= device_count()) {
    return nullptr;
  }
  return &devices_[static_cast<std::size_t>(index)].load(std::memory_order_acquire)->core;
}

void CudaAllocator::init(int device_count) {
  add_devices(device_count);
  if (!has_pages()) {
    start_previous();
  }
  if (serves()) {
    ExpandableSetting::instance().set(has_pages());
  }
  // If it cannot start, only `top` does not work.
  (void)status_server_.start();
}

void CudaAllocator::add_devices(int device_count) {
  const MutexLock lock(init_mutex_);
  TORCH_CHECK(device_count <= static_cast<int>(kMaxDevices), "ferro_alloc serves at most ",
              kMaxDevices, " devices, this machine has ", device_count);
  for (int i = device_count_.load(std::memory_order_relaxed); i < device_count; ++i) {
    const auto index = static_cast<c10::DeviceIndex>(i);
    // Kept for the life of the process, like the allocator itself.
    devices_[static_cast<std::size_t>(i)].store(
        new Device(
            api_, index, addresses_, config_, [this] { return relieve_shortage(); }, serving()),
        std::memory_order_release);
    device_count_.store(i + 1, std::memory_order_release);
    Device& made = device(index);
    made.history.record(history_settings_);
    if (has_tags_.load() || tag_names().any()) {
      made.history.count_tags();
    }
    choose_observed();
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

void CudaAllocator::renew_in_child() {
  if (!initialized()) {
    return;
  }
  // Only of members that no lock guards.
  Settings config;
  config.page_bytes = page_bytes_;
  config.layout = layout_;
  config.memory_limit = memory_limit_.load(std::memory_order_relaxed);
  config.headroom = headroom_.load(std::memory_order_relaxed);
  config.graph_layout = graph_layout_.load(std::memory_order_relaxed);
  const CudaApi& api = api_;
  CUDAAllocator& previous = previous_.allocator();
  const Serving was_serving = serving();
  auto* renewed = new (this) CudaAllocator(api, config, previous, In::kForkedChild);
  renewed->serving_.store(was_serving, std::memory_order_release);
}

bool CudaAllocator::initialized() { return device_count() > 0; }

// The hit path. Unusual cases leave it early, so that the rest stays in registers.
void* CudaAllocator::allocate_on(c10::DeviceIndex index, KnownStreams::Slot& stream,
                                 std::size_t bytes) {
  Device& owner = device(index);
  const bool elsewhere = !owner.serves_hits.load(std::memory_order_relaxed);
  const bool observed = observed_.load(std::memory_order_relaxed);
  if ((static_cast<int>(elsewhere) | static_cast<int>(observed) |
       static_cast<int>(owner.router.any()) | static_cast<int>(!memory_is_expandable()) |
       static_cast<int>(bytes >= kTooManyBytes)) != 0 ||
      is_profiled_or_traced()) [[unlikely]] {
    return allocate_slow(owner, index, stream, bytes);
  }
  const std::size_t size = block_size(bytes, roundup_divisions_);
  if (Heap* arena = stream.arenas[is_large(size)]) [[likely]] {
    const DevicePtr ptr = arena->allocate_hit(size, bytes, kNoContext);
    if (ptr != kNull) [[likely]] {
      return to_void_ptr(ptr);
    }
  }
  return allocate_beyond_hit(owner, index, stream, bytes);
}

void* CudaAllocator::allocate_beyond_hit(Device& owner, c10::DeviceIndex index,
                                         KnownStreams::Slot& stream, std::size_t bytes) {
  // A callback of the climb may allocate too, and use the slot for another stream.
  const KnownStreams::Slot wanted = stream;
  const Request request = to_request(bytes, nullptr);
  const AllocateResult result =
      allocate_unannounced(owner, index, kDefaultPool, wanted.handle, request);
  const bool large = is_large(request.size);
  if (wanted.arenas[large] == nullptr && stream.key == wanted.key) {
    stream.arenas[large] =
        &owner.core.pools().arena(kDefaultPool, wanted.handle, heap_kind(request.size));
  }
  return to_void_ptr(result.ptr);
}

Request CudaAllocator::to_request(std::size_t bytes, CallContext context) const {
  return {.size = block_size(bytes, roundup_divisions_),
          .requested = bytes,
          .context = std::move(context)};
}

void* CudaAllocator::allocate_slow(Device& owner, c10::DeviceIndex index,
                                   const KnownStreams::Slot& stream, std::size_t bytes) {
  // A program that passes a negative size arrives with a number near 2^64.
  TORCH_CHECK_WITH(OutOfMemoryError, static_cast<std::ptrdiff_t>(bytes) >= 0,
                   "CUDA out of memory. Tried to allocate ", static_cast<std::ptrdiff_t>(bytes),
                   " bytes, a negative size.");
  TORCH_CHECK_WITH(OutOfMemoryError, bytes < kTooManyBytes,
                   "CUDA out of memory. Tried to allocate more than 1EB memory.");
  const Request request = to_request(bytes, owner.history.gather_for(bytes));
  return tag_limits().any() ? allocate_limited(owner, index, stream, request)
                            : allocate_unlimited(owner, index, stream, request);
}

void* CudaAllocator::allocate_unlimited(Device& owner, c10::DeviceIndex index,
                                        const KnownStreams::Slot& stream, const Request& request) {
  if (owner.router.any() || update_route(owner, index) != Route::kOurs) {
    return allocate_routed(owner, index, stream.handle, request);
  }
  // Most often only an observer is attached.
  Heap* arena = stream.arenas[is_large(request.size)];
  if (arena != nullptr) {
    const DevicePtr ptr = arena->allocate_hit(request.size, request.requested, request.context);
    if (ptr != kNull) {
      announce(owner, index, to_void_ptr(ptr), request.size);
      return to_void_ptr(ptr);
    }
  }
  return allocate_here(owner, index, kDefaultPool, stream.handle, request);
}

AllocateResult CudaAllocator::allocate_unannounced(Device& owner, c10::DeviceIndex index,
                                                   const PoolId& pool, StreamId stream,
                                                   const Request& request) {
  if (previous_.is_in_use() && limit_of_both(owner) != PageStore::kNoLimit) {
    apply_limit(index);
  }
  AllocateResult result = with_torch_errors([&] {
    if (pool == kDefaultPool) {
      return owner.core.allocate(pool, stream, request);
    }
    using InCapture = GraphMemory::InCapture;
    const auto in = owner.router.has_captures() ? InCapture::kYes : InCapture::kNo;
    return owner.graphs.allocate(pool, stream, request, in);
  });
  if (result.ptr == kNull) [[unlikely]] {
    void* borrowed = pool == kDefaultPool
                         ? borrow_from_previous(owner, index, stream, request.requested)
                         : nullptr;
    if (borrowed == nullptr) {
      fail_allocation(owner, index, pool, stream, request, *result.failure);
    }
    owner.core.forget_failure(*result.failure);
    result = {to_device_ptr(borrowed), request.size, nullptr};
  }
  return result;
}

void* CudaAllocator::allocate_here(Device& owner, c10::DeviceIndex index, const PoolId& pool,
                                   StreamId stream, const Request& request) {
  const AllocateResult result = allocate_unannounced(owner, index, pool, stream, request);
  void* ptr = to_void_ptr(result.ptr);
  if (addresses_.find(result.ptr) != nullptr) {  // else the previous allocator has announced it
    announce(owner, index, ptr, result.size);
  }
  return ptr;
}

void CudaAllocator::free(void* ptr) {
  const DevicePtr address = to_device_ptr(ptr);
  Span* span = addresses_.find(address);
  const bool unusual =
      observed_.load(std::memory_order_relaxed) || previous_grows_.load(std::memory_order_relaxed);
  if (span == nullptr || unusual || is_profiled_or_traced()) [[unlikely]] {
    free_slow(span, ptr);
    return;
  }
  if (span->heap()->free(*span, address, kNoContext).error != FreeError::kNone) [[unlikely]] {
    free_inside_block(ptr);
  }
}

void CudaAllocator::free_slow(Span* span, void* ptr) {
  if (span == nullptr) {
    free_foreign(ptr);
    return;
  }
  if (const c10::impl::PyInterpreter* trace = c10::impl::GPUTrace::get_trace()) {
    (*trace)->trace_gpu_memory_deallocation(c10::kCUDA, reinterpret_cast<std::uintptr_t>(ptr));
  }
  const bool observed = observed_.load(std::memory_order_relaxed);
  // Read before the free, after which another thread may release the heap.
  const auto index = static_cast<c10::DeviceIndex>(span->heap()->device());
  Device& owner = device(index);
  const CallContext context = observed ? owner.history.gather(RecordContext::ALL) : nullptr;
  if (watched_blocks_.is_on()) {
    // Before the free, after which another block may have the address.
    if (const auto block = span->heap()->live_block_at(*span, to_device_ptr(ptr))) {
      watched_blocks_.on_free(*block, span->heap()->pool(), context, owner.router.has_captures());
    }
  }
  fold_peaks(owner, index, Serving::kOurs);
  const FreeResult result = span->heap()->free(*span, to_device_ptr(ptr), context);
  if (observed) {
    deliver_to_trackers();
    warn_of_tracker_failure();
  }
  if (result.error != FreeError::kNone) {
    free_inside_block(ptr);
    return;
  }
  if (c10::memoryProfilingEnabled()) {
    report_to_profiler(owner, index, ptr, -static_cast<std::int64_t>(result.size));
  }
}

// A pool's own allocator may hand out parts of our blocks, and the previous allocator serves it.
void CudaAllocator::free_inside_block(void* ptr) {
  if (previous_.is_in_use()) {
    try {
      free_foreign(ptr);
      return;
    } catch (const c10::AcceleratorError&) {
      throw;
    } catch (const c10::Error&) {  // NOLINT(bugprone-empty-catch): it does not know the pointer
    }
  }
  TORCH_CHECK(
      false, "invalid device pointer: ", ptr,
      " (no live block of ferro_alloc starts there: it was freed already, or lies inside one)");
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
  const StreamId stream = current_stream(index).handle;
  const Destination to = destination(owner, stream);
  TORCH_CHECK(to.route != Route::kUncached,
              "Exact-address allocation is only supported by the native CUDA caching allocator");
  if (to.route == Route::kPrevious) {
    note_growth(owner, index, Serving::kPrevious);
    return allocate_with_address(previous_.allocator(), bytes, address);
  }
  // PyTorch's note, by which a trace distinguishes such entries.
  std::string& note = thread_annotations().internal_metadata;
  note = "mallocWithAddress";
  const auto end_of_note = c10::make_scope_exit([&note] { note.clear(); });
  const Request request = to_request(bytes, owner.history.gather_for(bytes));
  const AllocateResult result = with_torch_errors([&] {
    return to.pool == kDefaultPool ? owner.core.allocate_at(to.pool, stream, wanted, request)
                                   : owner.graphs.allocate_at(to.pool, stream, wanted, request);
  });
  TORCH_CHECK(result.ptr != kNull, "Could not allocate CUDA storage at exact address ", address);
  announce(owner, index, address, result.size);
  return {address, address, &delete_block, c10::Device(c10::kCUDA, index)};
}

c10::DeleterFnPtr CudaAllocator::raw_deleter() const { return &delete_block; }

// The copy runs on the null stream, as natively. `to` may be memory that another stream freed with
// unfinished work. The current stream waits for that work, the null stream does not by itself.
void CudaAllocator::copy_data(void* to, const void* from, std::size_t bytes) const {
  const c10::cuda::CUDAStream current = c10::cuda::getCurrentCUDAStream();
  const c10::cuda::CUDAStream null = c10::cuda::getDefaultCUDAStream(current.device_index());
  // In a capture the copy fails by itself, as in the native allocator.
  const bool ordered = current != null && c10::cuda::currentStreamCaptureStatusMayInitCtx() ==
                                              c10::cuda::CaptureStatus::None;
  c10::Event event(c10::kCUDA);
  if (ordered) {
    event.record(current);
    event.block(null);
  }
  C10_CUDA_CHECK(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToDevice));
  if (ordered) {
    event.record(null);
    event.block(current);
  }
}

void* CudaAllocator::raw_alloc(std::size_t bytes) {
  if (bytes == 0) {
    return nullptr;
  }
  const c10::DeviceIndex index = current_device();
  return allocate_on(index, current_stream(index), bytes);
}

void* CudaAllocator::raw_alloc_with_stream(std::size_t bytes, cudaStream_t stream) {
  KnownStreams::Slot slot{.key = 0, .handle = to_stream_id(stream)};
  return bytes != 0 ? allocate_on(current_device(), slot, bytes) : nullptr;
}

void CudaAllocator::raw_delete(void* ptr) {
  if (ptr != nullptr) {
    free(ptr);
  }
}

void CudaAllocator::recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) {
  if (data.get() == nullptr || is_in_forked_child()) {
    return;
  }
  // Other allocators order their own memory (shared by another process, or wrapped). The previous
  // allocator ignores memory that is not its own.
  if (data.get_deleter() != &delete_block) {
    previous_.allocator().recordStream(data, stream);
    return;
  }
  const DevicePtr address = to_device_ptr(data.get());
  Span* span = addresses_.find(address);
  if (span == nullptr) [[unlikely]] {
    if (!uncached_.owns(data.get())) {  // uncached ones are freed after all work of the device
      previous_.record_stream(data.get(), data.device().index(), stream);
    }
    return;
  }
  const bool known = with_torch_errors(
      [&] { return span->heap()->record_stream(*span, address, to_stream_id(stream.stream())); });
  if (!known && previous_.is_in_use()) {  // see free_inside_block
    previous_.record_stream(data.get(), data.device().index(), stream);
    return;
  }
  TORCH_CHECK(known, "ferro_alloc: recordStream: no live block starts at ", data.get());
}

}  // namespace ferro
