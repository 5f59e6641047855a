#include "ferro/adapter/ipc/ipc_receiver.h"

#include "ferro/adapter/ipc/descriptor_client.h"
#include "ferro/adapter/ipc/ipc_handle.h"
#include "ferro/adapter/torch/convert.h"
#include "ferro/adapter/torch/interpreter_lock.h"
#include "ferro/driver/error.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/Exception.h>

#include <cstring>
#include <functional>
#include <stdexcept>
#include <unistd.h>

namespace ferro {
namespace {

void import_all(const IpcHandle& handle, PeerProcesses& peers, ForeignHandles& handles) {
  for (const std::string& shared : handle.fabric_handles) {
    handles.import(ForeignKind::kFabric, shared.data(), handle.segment_bytes);
  }
  if (handle.kind != IpcKind::kDescriptors) {
    return;
  }
  try {
    const WithoutInterpreterLock unlocked;
    receive_descriptors(handle, peers, [&](const IpcUnit& unit, const FileDescriptor& shared) {
      handles.import(ForeignKind::kDescriptor, &shared.get(), unit.bytes);
    });
  } catch (const DriverError&) {
    throw;
  } catch (const std::runtime_error& error) {
    TORCH_CHECK(false, "Memory of process ", handle.from.process,
                " cannot be opened here: ", error.what(), ".");
  }
}

IpcHandle decode_or_throw(const std::string& text) {
  try {
    return decode(text);
  } catch (const std::invalid_argument& error) {
    TORCH_CHECK(false, error.what());
  }
}

}  // namespace

std::shared_ptr<void> IpcReceiver::open(const std::string& text, int device, DeviceMemory& core) {
  const std::string key = std::to_string(device) + ":" + text;
  {
    const MutexLock lock(mutex_);
    if (std::shared_ptr<void> known = find(key)) {
      return known;
    }
  }
  const IpcHandle handle = decode_or_throw(text);
  // Without the lock, because the other process may be stopped.
  ForeignHandles handles(core.driver());
  import_all(handle, peers_, handles);
  const MutexLock lock(mutex_);
  if (std::shared_ptr<void> known = find(key)) {
    return known;
  }
  void* base = nullptr;
  std::function<void()> close;
  if (handle.kind == IpcKind::kCudaMalloc) {
    cudaIpcMemHandle_t cuda_handle;
    std::memcpy(&cuda_handle, handle.cuda_handle.data(), sizeof(cuda_handle));
    C10_CUDA_CHECK(cudaIpcOpenMemHandle(&base, cuda_handle, cudaIpcMemLazyEnablePeerAccess));
    close = [base, device] {
      const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
      C10_CUDA_CHECK_WARN(cudaIpcCloseMemHandle(base));
    };
  } else {
    const DevicePtr mapped = core.imports().open(handles);
    TORCH_CHECK_WITH(OutOfMemoryError, mapped != kNull,
                     "CUDA out of memory: memory of another process cannot be mapped.");
    base = to_void_ptr(mapped);
    close = [mapped, &core] { core.imports().close(mapped); };
  }
  std::shared_ptr<void> opened(base, [this, key, close, process = getpid()](void*) {
    if (getpid() != process) {
      return;  // a child of fork(), where the driver does not work
    }
    forget(key);
    close();
  });
  open_[key] = opened;
  return opened;
}

std::shared_ptr<void> IpcReceiver::find(const std::string& key) {
  const auto found = open_.find(key);
  return found == open_.end() ? nullptr : found->second.lock();
}

// No-op if the string was opened again since.
void IpcReceiver::forget(const std::string& key) {
  const MutexLock lock(mutex_);
  if (const auto found = open_.find(key); found != open_.end() && found->second.expired()) {
    open_.erase(found);
  }
}

}  // namespace ferro
