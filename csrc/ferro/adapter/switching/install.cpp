#include "ferro/adapter/switching/install.h"

#include "ferro/adapter/allocator/capture_pools.h"
#include "ferro/adapter/switching/capture_probe.h"
#include "ferro/adapter/torch/rank_messages.h"
#include "ferro/driver/cuda_api.h"

#include <c10/core/Allocator.h>
#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDAFunctions.h>

#include <new>
#include <pthread.h>
#include <stdexcept>
#include <system_error>

namespace ferro {
namespace {

using c10::cuda::CUDACachingAllocator::CUDAAllocator;

Mutex install_mutex;

// Two registrations: one for tensors, one for torch.accelerator. PyTorch ignores a registration of
// lower priority than the current one.
void register_allocator(CUDAAllocator* allocator) {
  constexpr std::uint8_t kHighestPriority = 255;
  c10::cuda::CUDACachingAllocator::allocator.store(allocator);
  c10::SetAllocator(c10::kCUDA, allocator, kHighestPriority);
}

// The child lacks the other threads of its parent, of which any may have held a lock.
void renew_in_child() {
  CudaAllocator& ours = *installed_allocator();
  if (ours.initialized()) {
    ours.renew_in_child();
    pool_registry().renew_in_child();
    new (&install_mutex) Mutex;
  }
}

bool is_in_forked_child() {
  const CudaAllocator* ours = installed_allocator();
  return ours != nullptr && ours->is_in_forked_child();
}

// Names the settings that differ but cannot change; empty if there are none.
std::string fixed_differences(const Settings& now, const Settings& wanted) {
  const auto layout = [](const Settings& config) {
    return std::string(config.layout == Layout::kSegments ? "segments" : "pages");
  };
  const auto order = [](const Settings& config) {
    return std::string(config.graph_order == GraphOrder::kAny ? "any" : "captured");
  };
  std::string text;
  const auto compare = [&](const char* name, const std::string& is, const std::string& would_be) {
    if (is != would_be) {
      text += (text.empty() ? "" : ", ") + (name + (" is " + is)) + " and not " + would_be;
    }
  };
  compare("page_size_mb", std::to_string(now.page_bytes / kMiB),
          std::to_string(wanted.page_bytes / kMiB));
  compare("layout", layout(now), layout(wanted));
  compare("graph_order", order(now), order(wanted));
  return text;
}

// Whether the allocator supports the calls that a previous allocator must support. User-made
// allocators throw in them.
bool answers(CUDAAllocator& allocator) {
  try {
    allocator.isEnabled();
    if (allocator.initialized()) {
      allocator.getDeviceStats(0);
      allocator.getMemoryFraction(0);
    }
    return true;
  } catch (const c10::Error&) {
    return false;
  }
}

}  // namespace

bool is_in_place() {
  CudaAllocator* ours = installed_allocator();
  return ours != nullptr && c10::cuda::CUDACachingAllocator::get() == ours;
}

bool is_installed() { return is_in_place() && installed_allocator()->serves(); }

bool is_caching() {
  try {
    return !caching_is_forbidden() && c10::cuda::CUDACachingAllocator::get()->isEnabled();
  } catch (const c10::Error&) {  // a user-made allocator serves requests whatever the setting
    return true;
  }
}

void install(const Settings& config) {
  if (is_in_forked_child()) {
    if (is_installed()) {
      return;
    }
    throw std::runtime_error(
        "ferro_alloc.install() came in a forked child of a process that had used CUDA: CUDA does "
        "not work there; use the 'spawn' start method.");
  }
  pool_registry().drop_unused();  // from now on the allocator reports releases
  const MutexLock lock(install_mutex);
  if (is_installed()) {
    return;
  }
  const LoadedCudaApi& loaded = load_cuda_api();
  if (loaded.api == nullptr) {
    throw std::runtime_error("ferro_alloc.install() found " + loaded.why + ".");
  }
  CUDAAllocator* current = c10::cuda::CUDACachingAllocator::get();
  CudaAllocator* ours = installed_allocator();
  const bool was_used = ours != nullptr && ours->initialized();
  if (was_used && current != ours) {
    throw std::runtime_error(
        "ferro_alloc.install() found the allocator '" + current->name() +
        "' in the place where ferro_alloc was: an allocator that was put there "
        "after it cannot be replaced.");
  }
  const std::string differences = was_used ? fixed_differences(ours->config(), config) : "";
  if (!differences.empty()) {
    throw std::runtime_error(
        "ferro_alloc.install() came with other settings than before: " + differences +
        ", which cannot change once CUDA memory was allocated; start another "
        "process for that.");
  }
  if (!was_used && !answers(*current)) {
    throw std::runtime_error(
        "ferro_alloc.install() found the allocator '" + current->name() +
        "' in PyTorch's place, which cannot tell about its memory: ferro_alloc "
        "works beside PyTorch's own allocators.");
  }
  // Otherwise the search for captures would initialise CUDA.
  if (current->initialized() && capture_is_running([&](c10::DeviceIndex device) {
        return was_used ? ours->is_diverting(device) : is_diverting(*current, device);
      })) {
    throw std::runtime_error(
        "ferro_alloc.install() came during the capture of a CUDA graph: call it before or after.");
  }
  // When PyTorch first parses its settings, it compares `backend:native` with the name of the
  // current allocator. It must do that before the name changes.
  c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig::instance();

  if (!was_used) {
    static const int registered = pthread_atfork(nullptr, nullptr, renew_in_child);
    if (registered != 0) {
      throw std::system_error(registered, std::system_category(), "pthread_atfork");
    }
    // Never destroyed: tensors and other libraries keep pointers to it until the process ends.
    ours = new CudaAllocator(*loaded.api, config, *current);
    set_installed_allocator(ours);
  } else {
    ours->adjust(config);
  }
  watch_rank_messages();
  ours->start_serving();
  register_allocator(ours);
}

void uninstall() {
  if (is_in_forked_child()) {
    return;
  }
  const MutexLock lock(install_mutex);
  if (!is_installed()) {
    return;
  }
  CudaAllocator* ours = installed_allocator();
  const auto may_capture = [ours](c10::DeviceIndex device) { return ours->is_diverting(device); };
  if (ours->initialized() && capture_is_running(may_capture)) {
    throw std::runtime_error(
        "ferro_alloc.uninstall() came during the capture of a CUDA graph: call it before or "
        "after.");
  }
  if (ours->initialized()) {
    ours->stop_serving();
  } else {
    register_allocator(&ours->previous());  // nothing was allocated yet
    ExpandableSetting::instance().restore();
  }
}

}  // namespace ferro
