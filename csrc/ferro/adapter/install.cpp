#include "ferro/adapter/install.h"

#include <c10/core/Allocator.h>
#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDAFunctions.h>

#include <atomic>
#include <stdexcept>

namespace ferro {
namespace {

std::atomic<CudaAllocator*> the_allocator{nullptr};
Mutex install_mutex;

}  // namespace

CudaAllocator* installed_allocator() { return the_allocator.load(std::memory_order_acquire); }

bool is_installed() {
  CudaAllocator* ours = installed_allocator();
  return ours != nullptr && c10::cuda::CUDACachingAllocator::get() == ours;
}

bool device_memory_in_use() {
  auto* current = c10::cuda::CUDACachingAllocator::get();
  if (!current->initialized()) {
    return false;
  }
  const auto all = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  for (c10::DeviceIndex i = 0; i < c10::cuda::device_count(); ++i) {
    const auto stats = current->getDeviceStats(i);
    if (stats.reserved_bytes[all].current != 0 || stats.active_bytes[all].current != 0) {
      return true;
    }
  }
  return false;
}

void install(const AllocatorConfig& config) {
  const MutexLock lock(install_mutex);
  if (is_installed()) {
    return;
  }
  const LoadedCudaApi& loaded = load_cuda_api();
  if (loaded.api == nullptr) {
    throw std::runtime_error("ferro_alloc.install() found " + loaded.why + ".");
  }
  if (device_memory_in_use()) {
    throw std::runtime_error(
        "ferro_alloc.install() came after CUDA memory was allocated; call it before the first CUDA "
        "tensor is made, or start the program with `python -m ferro_alloc run`.");
  }
  // A setting `backend:native` is compared with the name of the allocator in place when PyTorch
  // first parses its settings; let it do that before the name changes.
  c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig::instance();

  CudaAllocator* ours = installed_allocator();
  if (ours == nullptr) {
    // Never destroyed: tensors and other libraries keep pointers to it until the process ends.
    ours = new CudaAllocator(*loaded.api, config);
    the_allocator.store(ours, std::memory_order_release);
  }
  if (c10::cuda::CUDACachingAllocator::get()->initialized()) {
    ours->init(c10::cuda::device_count());
  }
  // Two registrations: the one that tensors ask, and the one behind torch.accelerator. Priority 1
  // goes before PyTorch's own 0.
  c10::cuda::CUDACachingAllocator::allocator.store(ours);
  c10::SetAllocator(c10::kCUDA, ours, 1);
}

}  // namespace ferro
