// Conversions between the core's plain structs and PyTorch's.
#pragma once

#include "ferro/adapter/torch/torch_compat.h"
#include "ferro/core/device/device_memory.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <string>
#include <vector>

namespace ferro {

// The class of PyTorch's statistics that sums the others.
inline constexpr auto kAggregate =
    static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);

inline StreamId to_stream_id(cudaStream_t stream) {
  return static_cast<StreamId>(reinterpret_cast<std::uint64_t>(stream));
}
inline DevicePtr to_device_ptr(const void* ptr) {
  return static_cast<DevicePtr>(reinterpret_cast<std::uint64_t>(ptr));
}
inline void* to_void_ptr(DevicePtr ptr) { return reinterpret_cast<void*>(address_of(ptr)); }
inline PoolId to_pool_id(const c10::MempoolId_t& id) { return {id.first, id.second}; }
// As PyTorch prints it: "(0, 1)".
std::string to_text(const PoolId& id);
inline c10::MempoolId_t to_mempool_id(const PoolId& id) { return {id.graph, id.handle}; }

// `max_split_size` is that of a layout in which every block may be split.
c10::CachingDeviceAllocator::DeviceStats to_device_stats(DeviceMemory& device);
// In order of address, one per contiguous backed range, marked expandable because its pages change.
// `kByClass`: small blocks in use are cut out of such a range as small segments, so that sums over
// the segments of a class are the statistics of that class.
enum class Ranges : std::uint8_t { kByClass, kWhole };
std::vector<c10::CachingDeviceAllocator::SegmentInfo> to_segments(
    const std::vector<SegmentView>& segments, c10::DeviceIndex device, Ranges ranges);
// The current settings, from PyTorch's own configuration objects.
c10::cuda::CUDACachingAllocator::AllocatorConfigInfo current_config_info();
// Rounded to the nearest byte, so that a fraction computed as bytes / total gives these bytes again.
// PyTorch's allocator truncates, and then refuses some requests of exactly the cap.
std::size_t to_bytes(double fraction, std::size_t total);
// The least fraction near bytes / total that PyTorch's allocator does not truncate to fewer bytes.
double to_fraction(std::size_t bytes, std::size_t total);
// PyTorch's sentence, which programs parse, then the verdict.
std::string out_of_memory_message(const OutOfMemoryFacts& facts);

}  // namespace ferro
