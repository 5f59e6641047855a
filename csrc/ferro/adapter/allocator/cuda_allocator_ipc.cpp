// Memory shared with other processes and other devices.
#include "ferro/adapter/allocator/cuda_allocator.h"
#include "ferro/adapter/ipc/ipc_handle.h"
#include "ferro/adapter/torch/convert.h"
#include "ferro/adapter/torch/driver_refusals.h"
#include "ferro/adapter/torch/interpreter_lock.h"

#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <stdexcept>

namespace ferro {
namespace {

using c10::cuda::CUDACachingAllocator::ShareableHandle;

void check(ExportResult result, DeviceId device, void* ptr) {
  switch (result) {
    case ExportResult::kOk:
      return;
    case ExportResult::kNotLive:
      TORCH_CHECK(false, "invalid device pointer: ", ptr);
    case ExportResult::kNotExportable:
      TORCH_CHECK(false, "Memory of GPU ", device,
                  " cannot be shared between processes: its driver gives no file descriptors for "
                  "it. Share a copy in host memory.");
    case ExportResult::kAsleep:
      TORCH_CHECK(false,
                  "This memory is asleep (ferro_alloc.sleep), so there is nothing to share. Call "
                  "ferro_alloc.wake() first.");
    case ExportResult::kBorrowed:
      TORCH_CHECK(false,
                  "This memory was allocated in a CUDA graph capture that has not ended, and other "
                  "memory may come behind its addresses then. Share it after the capture.");
  }
}

}  // namespace

// What another library may register or map: the pages that carry the block.
void* CudaAllocator::getBaseAllocation(void* ptr, std::size_t* size) {
  Span* span = addresses_.find(to_device_ptr(ptr));
  if (span == nullptr) {
    return previous_.allocator().getBaseAllocation(ptr, size);
  }
  const std::optional<BlockView> block = span->heap()->live_block_around(*span, to_device_ptr(ptr));
  TORCH_CHECK(block.has_value(), "invalid device pointer: ", ptr);
  const std::uint64_t begin = align_down(address_of(block->ptr), page_bytes_);
  const std::uint64_t end = align_up(address_of(block->ptr) + block->size, page_bytes_);
  if (size != nullptr) {
    *size = end - begin;
  }
  return to_void_ptr(DevicePtr{begin});
}

ShareableHandle CudaAllocator::shareIpcHandle(void* ptr) {
  const DevicePtr address = to_device_ptr(ptr);
  Span* span = addresses_.find(address);
  if (span == nullptr) {
    return previous_.allocator().shareIpcHandle(ptr);
  }
  const DeviceId device = span->heap()->device();
  SharedRange range;
  const ExportResult result =
      with_torch_errors([&] { return core_of(device)->export_block(*span, address, &range); });
  check(result, device, ptr);
  IpcHandle handle;
  describe(range, handle);
  return {static_cast<std::ptrdiff_t>(distance(range.begin, address)),
          encode(handle, IpcFormat{kIpcFormat})};
}

bool CudaAllocator::pin(void* ptr, std::size_t bytes) {
  const DevicePtr begin = to_device_ptr(ptr);
  Span* span = addresses_.find(begin);
  return span != nullptr && with_torch_errors([&] {
           return core_of(span->heap()->device())->pin(*span, begin, bytes);
         });
}

void CudaAllocator::unpin(void* ptr, std::size_t bytes) {
  const DevicePtr begin = to_device_ptr(ptr);
  if (Span* span = addresses_.find(begin)) {
    core_of(span->heap()->device())->unpin(*span, begin, bytes);
  }
}

void CudaAllocator::describe(const SharedRange& range, IpcHandle& handle) {
  handle.from = own_process();
  bool kept = true;
  for (const SharedUnit& unit : range.units) {
    handle.units.push_back({unit.bytes, unit.descriptor, unit.id});
    kept = kept && unit.descriptor >= 0;
  }
  try {
    handle.server = descriptor_server_.address();
  } catch (const std::runtime_error& error) {
    // Without a socket the memory can still be opened where the kernel allows pidfd_getfd.
    TORCH_CHECK(
        kept, "A block on ", range.units.size(),
        " memory handles cannot be shared: half of the file descriptors that this process may "
        "open (ulimit -n) do not suffice for them, and the socket that would hand them out one "
        "after the other was refused (",
        error.what(), "). Raise ulimit -n.");
  }
}

std::shared_ptr<void> CudaAllocator::getIpcDevPtr(std::string handle) {
  const c10::DeviceIndex index = current_device();
  return with_torch_errors([&] { return received_.open(handle, index, device(index).core); });
}

DescriptorStatus CudaAllocator::duplicate_export(std::uint64_t id, FileDescriptor* found) {
  for (int i = 0; i < device_count(); ++i) {
    int copy = -1;
    switch (core_of(i)->exports().duplicate(id, &copy)) {
      case DuplicateResult::kOk:
        *found = FileDescriptor(copy);
        return DescriptorStatus::kSent;
      case DuplicateResult::kNoDescriptors:
        return DescriptorStatus::kFull;
      case DuplicateResult::kRefused:
        return DescriptorStatus::kRefused;
      case DuplicateResult::kRetired:
        break;
    }
  }
  return DescriptorStatus::kReleased;
}

void CudaAllocator::enablePeerAccess(c10::DeviceIndex index, c10::DeviceIndex peer) {
  {
    const c10::cuda::CUDAGuard guard(index);
    const cudaError_t error = cudaDeviceEnablePeerAccess(peer, 0);
    if (error == cudaErrorPeerAccessAlreadyEnabled) {
      (void)cudaGetLastError();
    } else {
      C10_CUDA_CHECK(error);
    }
  }
  if (previous_.is_in_use()) {
    previous_.allocator().enablePeerAccess(index, peer);
  }
  add_peer(peer, index);
}

void CudaAllocator::add_peer(c10::DeviceIndex owner, c10::DeviceIndex user) {
  with_torch_errors([&] { device(owner).core.add_peer(user); });
  device(owner).peers[static_cast<std::size_t>(user)].store(true, std::memory_order_release);
}

// PyTorch requests the access of a pair of devices once, from the allocator that serves then. The
// runtime does not tell which pairs have access, but refuses to enable it twice.
void CudaAllocator::adopt_peers() {
  for (c10::DeviceIndex user = 0; user < device_count(); ++user) {
    for (c10::DeviceIndex owner = 0; owner < device_count(); ++owner) {
      if (user == owner || !c10::cuda::hasPrimaryContext(user) ||
          !c10::cuda::hasPrimaryContext(owner) || !at::cuda::canDeviceAccessPeer(user, owner)) {
        continue;
      }
      const c10::cuda::CUDAGuard guard(user);
      const cudaError_t error = cudaDeviceEnablePeerAccess(owner, 0);
      if (error == cudaSuccess) {
        C10_CUDA_CHECK(cudaDeviceDisablePeerAccess(owner));
        continue;
      }
      (void)cudaGetLastError();
      if (error == cudaErrorPeerAccessAlreadyEnabled) {
        add_peer(owner, user);
      }
    }
  }
}

cudaError_t CudaAllocator::memcpyAsync(void* to, int to_device, const void* from, int from_device,
                                       std::size_t bytes, cudaStream_t stream, bool peers) {
  // PyTorch calls a pair of devices peers before enablePeerAccess() has returned, and another thread
  // may copy at once. The copy is the source device's, which accesses the memory of the other.
  const auto has_access = [&] {
    return device(static_cast<c10::DeviceIndex>(to_device))
        .peers[static_cast<std::size_t>(from_device)]
        .load(std::memory_order_acquire);
  };
  if (to_device == from_device || (peers && has_access())) {
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
  }
  return cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, stream);
}

}  // namespace ferro
