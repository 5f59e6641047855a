// Memory shared with other processes and other devices.
#include "ferro/adapter/allocator/cuda_allocator.h"
#include "ferro/adapter/sharing/ipc_handle.h"
#include "ferro/adapter/torch/convert.h"
#include "ferro/adapter/torch/driver_refusals.h"
#include "ferro/adapter/torch/interpreter_lock.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <stdexcept>
#include <sys/resource.h>

namespace ferro {
namespace {

using c10::cuda::CUDACachingAllocator::ShareableHandle;

// Of the descriptors that a process may have, a block may take half.
std::size_t most_descriptors() {
  rlimit limit{};
  const bool known = getrlimit(RLIMIT_NOFILE, &limit) == 0;
  return std::max<std::size_t>(known ? limit.rlim_cur / 2 : 0, kMaxExportUnits);
}

constexpr const char* kTooManyHandles =
    "This block lies on more memory handles than half of the file descriptors that this process "
    "may open (ulimit -n). They cannot be exchanged for one handle now: ";
constexpr const char* kWhatToDo =
    " Raise ulimit -n, or allocate what is shared in a torch.cuda.MemPool(no_split=True).";

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
    case ExportResult::kCapturing:
      TORCH_CHECK(false, kTooManyHandles, "a CUDA graph is captured. Share it before the capture.");
    case ExportResult::kBusy:
      TORCH_CHECK(false, kTooManyHandles, "GPU ", device, " has work that does not end.",
                  kWhatToDo);
    case ExportResult::kKept:
      TORCH_CHECK(false, kTooManyHandles,
                  "other processes or libraries know them, or the program pinned them.", kWhatToDo);
    case ExportResult::kOutOfMemory:
      TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. ", kTooManyHandles,
                       "there is no room for a copy on GPU ", device,
                       ". Share it before the memory is full.");
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
  // Who watches the memory may have registered it.
  ExportRules rules{most_descriptors(), ExportResult::kOk};
  if (this->device(device).history.has_trackers()) {
    rules.exchange = ExportResult::kKept;
  }
  const ExportResult result = with_torch_errors([&] {
    {
      const WithoutInterpreterLock others_go_on;
      rules = core_of(device)->await_exchange(*span, address, rules);
    }
    return core_of(device)->export_block(*span, address, rules, &range);
  });
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
  try {
    handle.server = descriptor_server_.address();
  } catch (const std::runtime_error&) {
    // Without a socket the memory can still be opened where the kernel allows pidfd_getfd.
  }
  for (const SharedUnit& unit : range.units) {
    handle.units.push_back({unit.bytes, unit.descriptor, unit.id});
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
      case DuplicateResult::kRetired:
        break;
    }
  }
  return DescriptorStatus::kGivenBack;
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
  with_torch_errors([&] { device(peer).core.add_peer(index); });
  if (previous_.is_in_use()) {
    previous_.allocator().enablePeerAccess(index, peer);
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
