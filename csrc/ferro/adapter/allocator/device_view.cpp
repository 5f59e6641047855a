#include "ferro/adapter/allocator/device_view.h"

#include "ferro/adapter/allocator/block_size.h"
#include "ferro/adapter/allocator/installed_allocator.h"
#include "ferro/adapter/torch/convert.h"
#include "ferro/adapter/torch/expandable_setting.h"
#include "ferro/adapter/torch/torch_compat.h"

#include <c10/cuda/CUDAStream.h>

#include <algorithm>

namespace ferro {
namespace {

using c10::CachingAllocator::AcceleratorAllocatorConfig;

// Bytes of a new segment of PyTorch's own allocator for a block of `size` bytes: requests up to 1
// MiB come from segments of 2 MiB, larger ones below 10 MiB from segments of 20 MiB by default, and
// all others from one of their own size in multiples of 2 MiB (c10/cuda/CUDACachingAllocator.cpp).
std::size_t native_segment_bytes(std::size_t size) {
  if (!is_large(size)) {
    return 2 * kMiB;
  }
  return size < 10 * kMiB ? AcceleratorAllocatorConfig::large_segment_size()
                          : align_up(size, 2 * kMiB);
}

// Whether that allocator has a free block for it, on this stream, outside pools. O(its blocks).
bool native_has_block(c10::cuda::CUDACachingAllocator::CUDAAllocator& native,
                      c10::DeviceIndex device, cudaStream_t stream, std::size_t size) {
  const std::size_t max_split = AcceleratorAllocatorConfig::max_split_size();
  const std::size_t most =
      size < max_split ? max_split - 1
                       : size + AcceleratorAllocatorConfig::max_non_split_rounding_size() - 1;
  const auto info = native.snapshot({0, 0}, false);
  return std::ranges::any_of(info.segments, [&](const auto& segment) {
    return segment.device == device && segment.stream == stream &&
           segment.is_large == is_large(size) &&
           segment.owner_private_pool_id == c10::MempoolId_t{0, 0} &&
           std::ranges::any_of(segment.blocks, [&](const auto& block) {
             return !block.allocated && !block.active && block.size >= size && block.size <= most;
           });
  });
}

}  // namespace

std::size_t round_size(std::size_t bytes) {
  return bytes == 0 ? 0 : block_size(bytes, roundup_divisions());
}

std::size_t allocation_size(std::size_t bytes, Layout layout, std::size_t page_bytes) {
  return layout == Layout::kSegments
             ? native_segment_bytes(bytes)
             : align_up(round_size(std::max<std::size_t>(bytes, 1)), page_bytes);
}

std::size_t bytes_from_driver(DeviceMemory& device, std::size_t bytes) {
  if (bytes == 0) {
    return 0;
  }
  const auto index = static_cast<c10::DeviceIndex>(device.driver().device());
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(index).stream();
  const std::size_t size = round_size(bytes);
  CudaAllocator& allocator = *installed_allocator();
  if (!allocator.is_paged(index)) {
    return allocator.has_previous() && native_has_block(allocator.previous(), index, stream, size)
               ? 0
               : native_segment_bytes(size);
  }
  return device.report().bytes_from_driver(to_stream_id(stream),
                                           {.size = size, .requested = bytes});
}

}  // namespace ferro
