#include "ferro/adapter/ipc_receiver.h"

#include "ferro/adapter/convert.h"
#include "ferro/adapter/descriptor_server.h"
#include "ferro/adapter/ipc_handle.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/Exception.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <sys/syscall.h>
#include <unistd.h>

// Older C libraries lack the numbers, which are the same on all architectures.
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif

namespace ferro {
namespace {

// Descriptors that are closed at the end of the scope.
class Descriptors {
 public:
  Descriptors() = default;
  ~Descriptors() { clear(); }
  Descriptors(const Descriptors&) = delete;
  Descriptors& operator=(const Descriptors&) = delete;
  void add(int descriptor) { all_.push_back(descriptor); }
  void assign(std::vector<int> descriptors) {
    clear();
    all_ = std::move(descriptors);
  }
  void clear() {
    for (const int descriptor : all_) {
      close(descriptor);
    }
    all_.clear();
  }
  const std::vector<int>& all() const { return all_; }

 private:
  std::vector<int> all_;
};

// Takes the descriptors out of the other process. False with the reason: the kernel refuses, or it
// is not that process any more.
bool take(const IpcHandle& handle, Descriptors& taken, std::string& why) {
  // A number means another process in another namespace, and later on.
  if (handle.started != 0 && start_of_process(handle.process) != handle.started) {
    why = "there is no process " + std::to_string(handle.process) + " here that shared it";
    return false;
  }
  Descriptors process;
  const auto opened = static_cast<int>(syscall(SYS_pidfd_open, handle.process, 0));
  if (opened < 0) {
    why = std::string("pidfd_open: ") + std::strerror(errno);
    return false;
  }
  process.add(opened);
  for (const IpcUnit& unit : handle.units) {
    const auto descriptor = static_cast<int>(syscall(SYS_pidfd_getfd, opened, unit.descriptor, 0));
    if (descriptor < 0) {
      why = std::string("pidfd_getfd: ") + std::strerror(errno);
      taken.clear();
      return false;
    }
    taken.add(descriptor);
  }
  return true;
}

void receive(const IpcHandle& handle, Descriptors& taken) {
  std::string why;
  if (take(handle, taken, why)) {
    return;
  }
  TORCH_CHECK(!handle.socket.empty(), "Memory of process ", handle.process,
              " cannot be opened here: ", why,
              ". Allow this process to trace the other one (CAP_SYS_PTRACE, "
              "kernel.yama.ptrace_scope=0), or share from a process that runs ferro_alloc.");
  std::vector<std::uint64_t> ids;
  for (const IpcUnit& unit : handle.units) {
    ids.push_back(unit.id);
  }
  try {
    taken.assign(receive_descriptors(handle.socket, ids));
  } catch (const std::runtime_error& error) {
    TORCH_CHECK(false, "Memory of process ", handle.process, " cannot be opened here: ", why,
                "; and over its socket: ", error.what(),
                ". Both processes must run in one network namespace under one user.");
  }
}

DevicePtr map(const IpcHandle& handle, DeviceMemory& core) {
  std::vector<ForeignUnit> units;
  Descriptors descriptors;
  if (handle.kind == IpcKind::kFabric) {
    for (const std::string& fabric : handle.fabric_handles) {
      units.push_back({ForeignKind::kFabric, fabric.data(), handle.segment_bytes});
    }
  } else {
    receive(handle, descriptors);
    for (std::size_t i = 0; i < handle.units.size(); ++i) {
      units.push_back({ForeignKind::kDescriptor, &descriptors.all()[i], handle.units[i].bytes});
    }
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
    const DevicePtr mapped = map(handle, core);
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
