// Device memory that a library takes from the driver for itself, besides the workspaces that its
// caller gives it: kernels, tables, handles. It has no address, since nothing reads it.
//
// The sizes are those by which the free memory of an H200 fell. Not thread-safe.
#pragma once

#include "ferro/base/bytes.h"
#include "sim/libraries/cuda/thread_context.h"

#include <cuda.h>

#include <cstddef>
#include <utility>

namespace ferro::sim {

class LibraryMemory {
 public:
  LibraryMemory() = default;
  ~LibraryMemory() {
    if (handle_ != 0) cuMemRelease(handle_);
  }
  LibraryMemory(LibraryMemory&& other) noexcept : handle_(std::exchange(other.handle_, 0)) {}
  LibraryMemory& operator=(LibraryMemory&&) = delete;

  // Takes whole pages of the current device, which hold `bytes`, once. False: there are not as many.
  bool take(std::size_t bytes) {
    constexpr std::size_t kPage = 2 << 20;
    if (handle_ != 0 || bytes == 0) return true;
    ensure_context();
    CUdevice device = 0;
    if (cuCtxGetDevice(&device) != CUDA_SUCCESS) return false;
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    return cuMemCreate(&handle_, align_up(bytes, kPage), &properties, 0) == CUDA_SUCCESS;
  }

 private:
  CUmemGenericAllocationHandle handle_ = 0;
};

}  // namespace ferro::sim
