#include "ferro/adapter/allocator/device_view.h"

#include "ferro/adapter/allocator/block_size.h"
#include "ferro/adapter/torch/convert.h"
#include "ferro/adapter/torch/expandable_setting.h"
#include "ferro/adapter/torch/torch_compat.h"
#include "ferro/core/policy/segment_policy.h"

#include <c10/cuda/CUDAStream.h>

namespace ferro {

std::size_t round_size(std::size_t bytes) {
  return bytes == 0 ? 0 : block_size(bytes, roundup_divisions());
}

std::size_t allocation_size(std::size_t bytes, Layout layout, std::size_t page_bytes) {
  if (bytes == 0) {
    return 0;
  }
  return layout == Layout::kSegments ? segment_bytes(round_size(bytes), current_segment_rules())
                                     : align_up(round_size(bytes), page_bytes);
}

std::size_t bytes_from_driver(DeviceMemory& device, std::size_t bytes) {
  if (bytes == 0) {
    return 0;
  }
  const auto index = static_cast<c10::DeviceIndex>(device.driver().device());
  const StreamId stream = to_stream_id(c10::cuda::getCurrentCUDAStream(index).stream());
  return device.report().bytes_from_driver(
      stream, {.size = round_size(bytes), .requested = bytes, .plain = !memory_is_expandable()});
}

}  // namespace ferro
