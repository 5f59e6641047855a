#include "ferro/adapter/sharing/ipc_receiver.h"

#include "ferro/adapter/sharing/descriptor_server.h"
#include "ferro/adapter/sharing/ipc_handle.h"
#include "ferro/adapter/torch/convert.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/Exception.h>

#include <cstring>
#include <functional>
#include <stdexcept>
#include <unistd.h>

namespace ferro {
namespace {

// Descriptors that are closed at the end of the scope.
class Descriptors {
 public:
  explicit Descriptors(std::vector<int> all) : all_(std::move(all)) {}
  ~Descriptors() {
    for (const int descriptor : all_) {
      close(descriptor);
    }
  }
  Descriptors(const Descriptors&) = delete;
  Descriptors& operator=(const Descriptors&) = delete;
  const int& operator[](std::size_t i) const { return all_[i]; }

 private:
  std::vector<int> all_;
};

// Copies of the descriptors of a handle's units.
std::vector<int> receive(const IpcHandle& handle, PeerProcesses& peers) {
  std::vector<int> numbers;
  std::vector<std::uint64_t> ids;
  for (const IpcUnit& unit : handle.units) {
    numbers.push_back(unit.descriptor);
    ids.push_back(unit.id);
  }
  std::string why;
  try {
    return peers.take(handle.from, numbers);
  } catch (const std::runtime_error& error) {
    why = error.what();
  }
  TORCH_CHECK(!handle.socket.empty(), "Memory of process ", handle.from.process,
              " cannot be opened here: ", why,
              ". Allow this process to trace the other one (CAP_SYS_PTRACE, "
              "kernel.yama.ptrace_scope=0), or share from a process that runs ferro_alloc.");
  try {
    return receive_descriptors(handle.socket, ids);
  } catch (const std::runtime_error& error) {
    TORCH_CHECK(false, "Memory of process ", handle.from.process, " cannot be opened here: ", why,
                "; and over its socket: ", error.what(),
                ". Both processes must run in one network namespace under one user.");
  }
}

DevicePtr map(const IpcHandle& handle, DeviceMemory& core, PeerProcesses& peers) {
  const bool fabric = handle.kind == IpcKind::kFabric;
  const Descriptors descriptors(fabric ? std::vector<int>() : receive(handle, peers));
  std::vector<ForeignUnit> units;
  for (const std::string& shared : handle.fabric_handles) {
    units.push_back({ForeignKind::kFabric, shared.data(), handle.segment_bytes});
  }
  for (std::size_t i = 0; i < handle.units.size(); ++i) {
    units.push_back({ForeignKind::kDescriptor, &descriptors[i], handle.units[i].bytes});
  }
  const DevicePtr base = core.imports().open(units);
  TORCH_CHECK_WITH(OutOfMemoryError, base != kNull,
                   "CUDA out of memory. There is no room to map memory of another process.");
  return base;
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
  const MutexLock lock(mutex_);
  if (const auto found = open_.find(key); found != open_.end()) {
    if (std::shared_ptr<void> known = found->second.lock()) {
      return known;
    }
  }
  const IpcHandle handle = decode_or_throw(text);
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
    const DevicePtr mapped = map(handle, core, peers_);
    base = to_void_ptr(mapped);
    close = [mapped, &core] { core.imports().close(mapped); };
  }
  std::shared_ptr<void> opened(base, [this, key, close](void*) {
    forget(key);
    close();
  });
  open_[key] = opened;
  return opened;
}

// Unless the string was opened again since.
void IpcReceiver::forget(const std::string& key) {
  const MutexLock lock(mutex_);
  if (const auto found = open_.find(key); found != open_.end() && found->second.expired()) {
    open_.erase(found);
  }
}

}  // namespace ferro
