// Pools, graphs and snapshots, and the calls that are not there yet.
#include "ferro/adapter/convert.h"
#include "ferro/adapter/cuda_allocator.h"
#include "ferro/graph/checkpoint.h"

#include <c10/cuda/CUDAStream.h>

#include <algorithm>

namespace ferro {
namespace {

using namespace c10::cuda::CUDACachingAllocator;  // NOLINT(google-build-using-namespace): the names
                                                  // of the interface that this file implements

struct CheckpointState : AllocatorState {
  PoolCheckpoint checkpoint;
};

void check(CheckpointError error) {
  switch (error) {
    case CheckpointError::kNone:
      return;
    case CheckpointError::kUnknownPool:
      TORCH_CHECK(false, "Could not find pool of id");
    case CheckpointError::kUnheldPool:
      TORCH_CHECK(false, "Not expected to checkpoint freeable graph");
    case CheckpointError::kPendingFrees:
      TORCH_CHECK(false, "Events should have synchronized when checkpointing block");
    case CheckpointError::kPagesGone:
      TORCH_CHECK(false, "The memory of the checkpointed blocks was given back since");
  }
}

[[noreturn]] void not_there_yet(const char* call, const char* instead) {
  TORCH_CHECK(false, "ferro_alloc does not support ", call, " yet. ", instead);
}

}  // namespace

void CudaAllocator::beginAllocateToPool(c10::DeviceIndex index, c10::MempoolId_t id,
                                        std::function<bool(cudaStream_t)> filter) {
  Device& owner = device(index);
  auto accepts = [filter = std::move(filter)](StreamId stream) {
    return filter(reinterpret_cast<cudaStream_t>(stream));
  };
  const StreamId current = to_stream_id(c10::cuda::getCurrentCUDAStream(index).stream());
  TORCH_CHECK(owner.diversions.begin(to_pool_id(id), std::move(accepts), current),
              "beginAllocateToPool: already recording to mempool_id");
}

void CudaAllocator::endAllocateToPool(c10::DeviceIndex index, c10::MempoolId_t id) {
  TORCH_CHECK(device(index).diversions.end(to_pool_id(id)),
              "endAllocatePool: not currently recording to mempool_id");
}

void CudaAllocator::releasePool(c10::DeviceIndex index, c10::MempoolId_t id) {
  const bool released = device(index).core.release_pool(to_pool_id(id));
  TORCH_INTERNAL_ASSERT(released, "releasePool: pool (", id.first, ", ", id.second,
                        ") is unknown or held by nobody");
}

int CudaAllocator::getPoolUseCount(c10::DeviceIndex index, c10::MempoolId_t id) {
  const int count = device(index).core.pool_use_count(to_pool_id(id));
  TORCH_INTERNAL_ASSERT(count >= 0, "getPoolUseCount: pool (", id.first, ", ", id.second,
                        ") is unknown");
  return count;
}

void CudaAllocator::createOrIncrefPool(c10::DeviceIndex index, c10::MempoolId_t id,
                                       std::shared_ptr<CUDAAllocator> allocator) {
  if (allocator != nullptr) {
    not_there_yet("MemPool with an allocator of its own",
                  "Use torch.cuda.MemPool() without one, or run without ferro_alloc.");
  }
  device(index).core.hold_pool(to_pool_id(id));
}

void CudaAllocator::setUseOnOOM(c10::DeviceIndex index, c10::MempoolId_t id, bool use) {
  device(index).core.set_use_on_oom(to_pool_id(id), use);
}

void CudaAllocator::setNoSplit(c10::DeviceIndex index, c10::MempoolId_t id) {
  device(index).core.set_no_split(to_pool_id(id));
}

bool CudaAllocator::checkPoolLiveAllocations(c10::DeviceIndex index, c10::MempoolId_t id,
                                             const std::unordered_set<void*>& expected) {
  DeviceMemory& core = device(index).core;
  TORCH_CHECK(core.pool_use_count(to_pool_id(id)) >= 0, "Could not find pool of id");
  std::size_t live = 0;
  for (Heap* heap : core.heaps_of(to_pool_id(id))) {
    for (const BlockView& block : heap->live_blocks()) {
      if (!expected.contains(to_void_ptr(block.ptr))) {
        return false;
      }
      ++live;
    }
  }
  return live == expected.size();
}

std::shared_ptr<AllocatorState> CudaAllocator::getCheckpointState(c10::DeviceIndex index,
                                                                  c10::MempoolId_t id) {
  auto state = std::make_shared<CheckpointState>();
  check(take_checkpoint(device(index).core, to_pool_id(id), &state->checkpoint));
  return state;
}

CheckpointDelta CudaAllocator::setCheckpointPoolState(c10::DeviceIndex index,
                                                      std::shared_ptr<AllocatorState> state) {
  const auto* ours = dynamic_cast<const CheckpointState*>(state.get());
  TORCH_CHECK(ours != nullptr, "Expected a checkpoint that ferro_alloc made");
  CheckpointChange change;
  check(restore_checkpoint(device(index).core, ours->checkpoint, &change));
  CheckpointDelta delta;
  for (const BlockView& block : change.freed) {
    delta.ptrs_freed.push_back(to_void_ptr(block.ptr));
  }
  for (const BlockView& block : change.allocated) {
    void* ptr = to_void_ptr(block.ptr);
    delta.dataptrs_allocd.emplace_back(ptr, ptr, raw_deleter(), c10::Device(c10::kCUDA, index));
  }
  return delta;
}

std::vector<StreamSegmentSize> CudaAllocator::getExpandableSegmentSizes(c10::DeviceIndex index) {
  std::vector<StreamSegmentSize> sizes;
  for (const SegmentView& segment : device(index).core.segments(nullptr)) {
    if (segment.stream != StreamId{0}) {
      sizes.emplace_back(reinterpret_cast<cudaStream_t>(segment.stream), false, segment.size);
    }
  }
  return sizes;
}

void CudaAllocator::enable(bool value) {
  if (!value) {
    not_there_yet("caching_allocator_enable(False)", "Leave caching on.");
  }
}

}  // namespace ferro
