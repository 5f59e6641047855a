// Numbers about one device, for tools.
#pragma once

#include "ferro/adapter/allocator/cuda_allocator.h"

#include <cstddef>

namespace ferro {

// Bytes of the block that a request for `bytes` gets, by the current settings. 0 for 0.
std::size_t round_size(std::size_t bytes);

// Bytes taken from the driver for a block of `bytes` if no memory is free, by the current and the
// given settings; with pages, for the block that a request for `bytes` gets. Needs no device.
std::size_t allocation_size(std::size_t bytes, Layout layout, std::size_t page_bytes);

// Bytes that a request for `bytes` on the current stream would take from the driver now.
std::size_t bytes_from_driver(DeviceMemory& device, std::size_t bytes);

}  // namespace ferro
