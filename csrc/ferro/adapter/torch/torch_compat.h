// All differences between the versions of torch that ferro_alloc supports. One binary serves one
// minor version, because the layout of CUDAAllocator's virtual table changes between them.
//
// Additions of a later torch exist for every version: types under one name, functions that do
// nothing for members that a struct lacks, and `override` as a macro that is empty if the virtual
// is missing. So the rest of the adapter is written once, for the newest.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/headeronly/version.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#if TORCH_VERSION_MAJOR != 2 || TORCH_VERSION_MINOR < 11 || TORCH_VERSION_MINOR > 15
#error "ferro_alloc is written for torch 2.11 to 2.15; the torch of this build is another one"
#endif

#define FERRO_STRINGIFY_(x) #x
#define FERRO_STRINGIFY(x) FERRO_STRINGIFY_(x)

// For virtuals that torch 2.<minor> introduced.
#if TORCH_VERSION_MINOR >= 12
#define FERRO_OVERRIDE_SINCE_12 override
#else
#define FERRO_OVERRIDE_SINCE_12
#endif
#if TORCH_VERSION_MINOR >= 13
#define FERRO_OVERRIDE_SINCE_13 override
#else
#define FERRO_OVERRIDE_SINCE_13
#endif
#if TORCH_VERSION_MINOR >= 14
#define FERRO_OVERRIDE_SINCE_14 override
#else
#define FERRO_OVERRIDE_SINCE_14
#endif

namespace ferro {

// The minor version of torch for this binary, such as "2.11".
inline constexpr const char* kBuiltForTorch =
    FERRO_STRINGIFY(TORCH_VERSION_MAJOR) "." FERRO_STRINGIFY(TORCH_VERSION_MINOR);

// The format version of the strings with which PyTorch's own allocator shares memory.
inline constexpr std::uint8_t kIpcFormat = TORCH_VERSION_MINOR >= 13 ? 3 : 2;

// Since 2.14 a graph whose capture failed ends its diversion and releases its pool when destroyed.
inline constexpr bool kFailedGraphsCleanUp = TORCH_VERSION_MINOR >= 14;

// 2.11 enters a graph in a set of the device's random generator when its capture begins, and removes
// it when the graph is destroyed, without a lock: threads that do this side by side crash.
inline constexpr bool kGraphsRegisterWithoutLock = TORCH_VERSION_MINOR == 11;

// 2.12 and 2.13 end the diversion of a failed capture and keep its pool permanently. They do so
// before they read the error with which the capture ended. Called in endAllocateToPool.
inline bool capture_has_just_failed() {
#if TORCH_VERSION_MINOR == 12 || TORCH_VERSION_MINOR == 13
  const cudaError_t error = cudaPeekAtLastError();
  return error == cudaErrorStreamCaptureInvalidated || error == cudaErrorStreamCaptureUnjoined;
#else
  return false;
#endif
}

// Since 2.13 a capture, even a failed one, ends for pinned host memory right after the device.
inline constexpr bool kHostCapturesEndWithTheDevices = TORCH_VERSION_MINOR >= 13;

// (device, bytes requested, bytes held, bytes allowed or of the device).
using OomRejectionObserver =
    std::function<void(std::int64_t, std::size_t, std::size_t, std::size_t)>;

// The divisions of each power of two, by the settings (block_size.h). The entries change with them,
// the address never: keeping it saves a request about 90 instructions of the call.
inline const std::vector<std::size_t>& roundup_divisions() {
  return c10::CachingAllocator::AcceleratorAllocatorConfig::roundup_power2_divisions();
}
static_assert(
    std::is_reference_v<
        decltype(c10::CachingAllocator::AcceleratorAllocatorConfig::roundup_power2_divisions())>);

// Setting `throw_on_cudamalloc_oom`: a request that would exceed the memory fraction is refused at
// once.
inline bool rejects_before_driver() {
#if TORCH_VERSION_MINOR >= 12
  return c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig::throw_on_cudamalloc_oom();
#else
  return false;
#endif
}

// The trace's action for metadata that is attached later; none before torch 2.14.
inline std::optional<c10::CachingDeviceAllocator::TraceEntry::Action> annotate_action() {
#if TORCH_VERSION_MINOR >= 14
  return c10::CachingDeviceAllocator::TraceEntry::ANNOTATE;
#else
  return std::nullopt;
#endif
}

// Sets the allocator's own metadata of an entry, beside the program's.
inline void set_internal_metadata([[maybe_unused]] c10::CachingDeviceAllocator::TraceEntry& entry,
                                  [[maybe_unused]] const std::string& metadata) {
#if TORCH_VERSION_MINOR >= 15
  entry.internal_metadata_ = metadata;
#endif
}

// The same for an entry that may have metadata of the program. Older versions of torch have one
// field for both; the program's metadata then stays.
inline void set_note(c10::CachingDeviceAllocator::TraceEntry& entry, const std::string& note) {
#if TORCH_VERSION_MINOR >= 15
  entry.internal_metadata_ = note;
#else
  if (entry.user_metadata_.empty()) {
    entry.user_metadata_ = note;
  }
#endif
}

// Calls of another allocator's methods, if this torch has them.
using Allocator = c10::cuda::CUDACachingAllocator::CUDAAllocator;

inline void attach_rejection_observer([[maybe_unused]] Allocator& allocator,
                                      [[maybe_unused]] OomRejectionObserver observer) {
#if TORCH_VERSION_MINOR >= 12
  allocator.attachOomRejectionObserver(std::move(observer));
#endif
}

inline std::shared_ptr<c10::GatheredContext> context_for_pointer(
    [[maybe_unused]] Allocator& allocator, [[maybe_unused]] const void* ptr) {
#if TORCH_VERSION_MINOR >= 12
  return allocator.getContextForPointer(ptr);
#else
  return nullptr;
#endif
}

inline c10::DataPtr allocate_with_address([[maybe_unused]] Allocator& allocator,
                                          [[maybe_unused]] std::size_t bytes,
                                          [[maybe_unused]] void* address) {
#if TORCH_VERSION_MINOR >= 13
  return allocator.allocateWithAddress(bytes, address);
#else
  TORCH_CHECK(false, allocator.name(), " has no allocateWithAddress before torch 2.13");
#endif
}

inline void mark_capture_begin([[maybe_unused]] Allocator& allocator,
                               [[maybe_unused]] c10::DeviceIndex device) {
#if TORCH_VERSION_MINOR >= 13
  allocator.markCaptureBegin(device);
#endif
}

inline void mark_capture_end([[maybe_unused]] Allocator& allocator,
                             [[maybe_unused]] c10::DeviceIndex device) {
#if TORCH_VERSION_MINOR >= 13
  allocator.markCaptureEnd(device);
#endif
}

inline void annotate_memory([[maybe_unused]] Allocator& allocator, [[maybe_unused]] const void* ptr,
                            [[maybe_unused]] const std::string& metadata) {
#if TORCH_VERSION_MINOR >= 14
  allocator.annotateMemory(ptr, metadata);
#endif
}

inline void set_oom_rejections([[maybe_unused]] c10::CachingDeviceAllocator::DeviceStats& stats,
                               [[maybe_unused]] std::int64_t count) {
#if TORCH_VERSION_MINOR >= 12
  stats.num_oom_rejections = count;
#endif
}

inline void set_reserved_bytes_of_pool(
    [[maybe_unused]] c10::CachingDeviceAllocator::DeviceStats& stats,
    [[maybe_unused]] const c10::MempoolId_t& pool,
    [[maybe_unused]] const c10::CachingAllocator::StatArray& bytes) {
#if TORCH_VERSION_MINOR >= 13
  stats.reserved_bytes_by_private_pools[pool] = bytes;
#endif
}

// Adds the counters of later versions to `sum`. Each pool belongs to one allocator.
inline void add_later_statistics(
    [[maybe_unused]] c10::CachingDeviceAllocator::DeviceStats& sum,
    [[maybe_unused]] const c10::CachingDeviceAllocator::DeviceStats& more) {
#if TORCH_VERSION_MINOR >= 12
  sum.num_oom_rejections += more.num_oom_rejections;
#endif
#if TORCH_VERSION_MINOR >= 13
  for (const auto& [pool, bytes] : more.reserved_bytes_by_private_pools) {
    sum.reserved_bytes_by_private_pools[pool] = bytes;
  }
#endif
}

// The settings of the host allocator that a snapshot shows.
inline void set_pinned_settings(
    [[maybe_unused]] c10::cuda::CUDACachingAllocator::AllocatorConfigInfo& info) {
#if TORCH_VERSION_MINOR >= 13
  using c10::CachingAllocator::AcceleratorAllocatorConfig;
  info.max_round_threshold = AcceleratorAllocatorConfig::pinned_max_round_threshold();
  info.max_cached_size = AcceleratorAllocatorConfig::pinned_max_cached_size();
#endif
}

}  // namespace ferro
