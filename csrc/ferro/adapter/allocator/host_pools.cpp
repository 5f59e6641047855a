#include "ferro/adapter/allocator/host_pools.h"

#include "ferro/adapter/torch/convert.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>

namespace ferro {
namespace {

at::HostAllocator& host_allocator() { return *at::getHostAllocator(at::kCUDA); }

}  // namespace

void HostPools::hold(const PoolId& id) {
  const MutexLock lock(mutex_);
  if (held_.contains(id)) {
    return;
  }
  const c10::MempoolId_t pool = to_mempool_id(id);
  const auto nothing = [](c10::Stream) { return false; };
  try {
    host_allocator().begin_allocate_to_pool(pool, nothing);
  } catch (const c10::Error&) {
    const c10::cuda::CUDAStreamCaptureModeGuard beside_captures(cudaStreamCaptureModeRelaxed);
    host_allocator().empty_cache();
    host_allocator().begin_allocate_to_pool(pool, nothing);
  }
  host_allocator().end_allocate_to_pool(pool);
  held_.insert(id);
}

void HostPools::release(const PoolId& id) {
  const MutexLock lock(mutex_);
  if (held_.erase(id) != 0) {
    host_allocator().release_pool(to_mempool_id(id));
  }
}

void HostPools::settle_failed_capture(const PoolId& id, bool is_ended) {
  if (!is_ended || !kHostCapturesEndWithTheDevices) {
    try {
      host_allocator().end_allocate_to_pool(to_mempool_id(id));
    } catch (const c10::Error&) {
      return;  // it never began there, or PyTorch has ended it
    }
  }
  host_allocator().release_pool(to_mempool_id(id));
}

}  // namespace ferro
