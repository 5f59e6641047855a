// Pools and graphs.
#include "ferro/adapter/allocator/capture_pools.h"
#include "ferro/adapter/allocator/cuda_allocator.h"
#include "ferro/adapter/torch/convert.h"
#include "ferro/adapter/torch/driver_refusals.h"
#include "ferro/adapter/torch/interpreter_lock.h"
#include "ferro/graph/checkpoint.h"

#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>

namespace ferro {
namespace {

using namespace c10::cuda::CUDACachingAllocator;  // NOLINT(google-build-using-namespace): the names
                                                  // of the interface that this file implements

// In all versions, PyTorch's captures pass a lambda of a member function of at::cuda::CUDAGraph.
// Nothing else identifies their filters.
FilterOwner owner_of(const std::function<bool(cudaStream_t)>& filter) {
  const bool of_graph = std::strstr(filter.target_type().name(), "CUDAGraph") != nullptr;
  return of_graph ? FilterOwner::kGraph : FilterOwner::kProgram;
}

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
    case CheckpointError::kBorrows:
      TORCH_CHECK(false,
                  "A capture into this pool of an exclusive group has not ended, or its end had no "
                  "memory for what it keeps: capture once more before a checkpoint is taken");
    case CheckpointError::kPagesGone:
      TORCH_CHECK(false, "The memory of the checkpointed blocks has been released since");
  }
}

}  // namespace

void CudaAllocator::beginAllocateToPool(c10::DeviceIndex index, c10::MempoolId_t id,
                                        std::function<bool(cudaStream_t)> filter) {
  // `begin` may wait for another thread, which needs the GIL to end its capture.
  const WithoutInterpreterLock unlocked;
  Device& owner = device(index);
  refuse_if_sealed(to_pool_id(id));
  auto accepts = [filter](StreamId stream) {
    return filter(reinterpret_cast<cudaStream_t>(stream));
  };
  const StreamId current = to_stream_id(c10::cuda::getCurrentCUDAStream(index).stream());
  const FilterOwner whose = owner_of(filter);
  // A pool belongs to the allocator that gave it its first memory.
  if (makes_in_previous(owner, to_pool_id(id))) {
    move_pool_to_previous(owner, index, id);
  }
  const bool previous = is_previous_pool(owner, index, id, IfUnknown::kCreated);
  const bool goes_on = owner.router.is_handed_over(to_pool_id(id));
  const PoolHold hold = previous ? PoolHold::kElsewhere : PoolHold::kHere;
  const bool begun = with_torch_errors(
      [&] { return owner.router.begin(to_pool_id(id), std::move(accepts), current, hold, whose); });
  follow_released(owner);  // `begin` releases abandoned captures
  TORCH_CHECK(begun, "beginAllocateToPool: already recording to mempool_id");
  if (previous) {
    start_previous();
    try {
      reopen_in_previous(index, id, whose == FilterOwner::kGraph ? 1 : 0);
      previous_.allocator().beginAllocateToPool(index, id, std::move(filter));
    } catch (...) {
      owner.router.end(to_pool_id(id));
      throw;
    }
  }
  announce_captures(owner, index);
  if (whose == FilterOwner::kGraph) {
    try {
      host_pools_.hold(to_pool_id(id));
      if (!previous && !goes_on) {
        check_sharing(
            with_torch_errors([&] { return owner.graphs.begin_capture(to_pool_id(id)); }));
      }
    } catch (const c10::Error&) {
      owner.router.end(to_pool_id(id), EndOfCapture::kFailed);
      follow_released(owner);
      announce_captures(owner, index);
      throw;
    }
  }
}

// The previous allocator asserts that a pool which it knows has a holder.
void CudaAllocator::reopen_in_previous(c10::DeviceIndex index, c10::MempoolId_t id, int own) {
  if (previous_.pool_use_count(index, id) == 0 && captures() == own) {
    previous_.empty_cache();
  }
  TORCH_CHECK(previous_.pool_use_count(index, id) != 0, "The graph pool '",
              pool_registry().name_of(to_pool_id(id)), "' (", id.first, ", ", id.second,
              ") has no graph left, but memory of it is in use or a capture runs: PyTorch's "
              "allocator, which serves it, cannot use it again before that. Free this memory and "
              "end the other captures first, or use another pool.");
}

void CudaAllocator::endAllocateToPool(c10::DeviceIndex index, c10::MempoolId_t id) {
  if (is_in_forked_child()) {
    return;
  }
  Device& owner = device(index);
  if (owner.router.hand_over(to_pool_id(id))) {
    if (is_previous_pool(owner, index, id)) {
      previous_.allocator().endAllocateToPool(index, id);
    }
    return;
  }
  const EndOfCapture how =
      capture_has_just_failed() ? EndOfCapture::kFailed : EndOfCapture::kSucceeded;
  // If this throws, the graph object regards its capture as not ended, and the diversion is removed
  // like that of a failed capture.
  owner.router.note_capture_over(to_pool_id(id));
  check_sharing(with_torch_errors([&] {
    return owner.graphs.end_capture(to_pool_id(id), how == EndOfCapture::kSucceeded
                                                        ? GraphMemory::Outcome::kSucceeded
                                                        : GraphMemory::Outcome::kFailed);
  }));
  const bool ended = owner.router.end(to_pool_id(id), how);
  announce_captures(owner, index);
  if (is_previous_pool(owner, index, id)) {
    previous_.allocator().endAllocateToPool(index, id);
    follow_released(owner);
    return;
  }
  TORCH_CHECK(ended, "endAllocatePool: not currently recording to mempool_id");
  follow_released(owner);
}

void CudaAllocator::check_sharing(SharingResult result) {
  TORCH_CHECK(result != SharingResult::kAsleep,
              "The memory of this graph's exclusive group is asleep (ferro_alloc.sleep). Call "
              "ferro_alloc.wake() before the capture.");
  TORCH_CHECK_WITH(
      OutOfMemoryError, result != SharingResult::kOutOfMemory,
      "CUDA out of memory. What the capture left alive needs pages that no other graph "
      "of its exclusive group uses, and there are no pages. Free memory and capture again.");
}

namespace {

const char* text_of(SharingResult result) {
  constexpr std::array kTexts = {"",          "no memory", "capturing", "member",
                                 "no member", "asleep",    "busy"};
  return kTexts[static_cast<std::size_t>(result)];
}

}  // namespace

std::string CudaAllocator::join_scratch(std::uint64_t group, const PoolId& pool) {
  SharingResult result = SharingResult::kOk;
  for (c10::DeviceIndex i = 0; i < device_count(); ++i) {
    if (is_previous_pool(device(i), i, to_mempool_id(pool), IfUnknown::kCreated)) {
      return "native";
    }
  }
  for (c10::DeviceIndex i = 0; i < device_count() && result == SharingResult::kOk; ++i) {
    result = device(i).graphs.may_join(group, pool);
  }
  // The pool joins on all devices or on none, because the replays of a refused pool are not
  // ordered. `is_in_group` reports a device that the pool could not leave.
  c10::DeviceIndex joined = 0;
  const auto leave = [&] {
    while (joined > 0) {
      --joined;
      try {
        static_cast<void>(device(joined).graphs.leave(pool));
      } catch (const DriverError&) {  // NOLINT(bugprone-empty-catch): it is still a member there
      }
    }
  };
  try {
    for (; joined < device_count() && result == SharingResult::kOk; ++joined) {
      result = with_torch_errors([&] { return device(joined).graphs.join(group, pool); });
    }
  } catch (...) {
    leave();
    throw;
  }
  if (result != SharingResult::kOk) {
    leave();
  }
  return text_of(result);
}

std::string CudaAllocator::leave_scratch(const PoolId& pool) {
  SharingResult result = SharingResult::kOk;
  for (c10::DeviceIndex i = 0; i < device_count() && result == SharingResult::kOk; ++i) {
    const SharingResult left = with_torch_errors([&] { return device(i).graphs.leave(pool); });
    // After a failed join the pool may be a member on some devices only.
    result = left == SharingResult::kNoMember ? SharingResult::kOk : left;
  }
  return text_of(result);
}

bool CudaAllocator::is_in_group(std::uint64_t group, const PoolId& pool) const {
  for (c10::DeviceIndex i = 0; i < device_count(); ++i) {
    if (device(i).graphs.group_of(pool) == group) {
      return true;
    }
  }
  return false;
}

void CudaAllocator::expect_checkpoints(const PoolId& pool) {
  for (c10::DeviceIndex i = 0; i < device_count(); ++i) {
    // If this fails, the pool becomes a tree's at its first checkpoint.
    static_cast<void>(device(i).graphs.expect_checkpoints(pool));
  }
}

bool CudaAllocator::is_of_tree(const PoolId& pool) const {
  bool is_of_tree = false;
  for (c10::DeviceIndex i = 0; i < device_count(); ++i) {
    is_of_tree = is_of_tree || device(i).graphs.is_of_tree(pool);
  }
  return is_of_tree;
}

GroupBytes CudaAllocator::scratch_bytes(std::uint64_t group) const {
  GroupBytes bytes;
  for (c10::DeviceIndex i = 0; i < device_count(); ++i) {
    bytes.add(device(i).graphs.bytes_of(group));
  }
  return bytes;
}

GroupBytes CudaAllocator::scratch_bytes_if_joined(std::span<const PoolId> pools) const {
  GroupBytes bytes;
  for (c10::DeviceIndex i = 0; i < device_count(); ++i) {
    bytes.add(device(i).graphs.bytes_if_joined(pools));
  }
  return bytes;
}

void CudaAllocator::markCaptureBegin(c10::DeviceIndex index) {
  device(index).router.mark_capture_begin();
  if (previous_.is_in_use()) {
    mark_capture_begin(previous_.allocator(), index);
  }
}

void CudaAllocator::markCaptureEnd(c10::DeviceIndex index) {
  device(index).router.mark_capture_end();
  if (previous_.is_in_use()) {
    mark_capture_end(previous_.allocator(), index);
  }
}

void CudaAllocator::releasePool(c10::DeviceIndex index, c10::MempoolId_t id) {
  if (is_in_forked_child()) {
    return;
  }
  Device& owner = device(index);
  if (is_previous_pool(owner, index, id)) {
    previous_.allocator().releasePool(index, id);
  } else {
    const bool released = owner.core.pools().release(to_pool_id(id));
    TORCH_CHECK(released, "ferro_alloc: releasePool: pool (", id.first, ", ", id.second,
                ") is unknown or not held");
  }
  on_release(to_pool_id(id));
}

bool CudaAllocator::holds_pool(const PoolId& id) const {
  for (c10::DeviceIndex i = 0; i < device_count(); ++i) {
    if (device(i).core.pools().use_count(id) > 0 ||
        previous_.pool_use_count(i, to_mempool_id(id)) > 0) {
      return true;
    }
  }
  return false;
}

void CudaAllocator::release_failed_captures() {
  for (c10::DeviceIndex i = 0; i < device_count(); ++i) {
    with_torch_errors([&] { device(i).router.release_failed_captures(); });
    follow_released(device(i));
  }
}

void CudaAllocator::follow_released(Device& owner) {
  const auto index = static_cast<c10::DeviceIndex>(owner.core.driver().device());
  announce_captures(owner, index);
  for (const PoolRouter::Released& each : owner.router.take_released()) {
    if (each.hold == PoolHold::kElsewhere) {
      release_in_previous(index, to_mempool_id(each.pool), each.is_ended);
    } else {
      with_torch_errors([&] {
        static_cast<void>(owner.graphs.end_capture(each.pool, GraphMemory::Outcome::kFailed));
      });
    }
    HostPools::settle_failed_capture(each.pool, each.is_ended);
    on_release(each.pool);
  }
}

// Else the previous allocator would divert to the pool permanently and never release pool memory.
void CudaAllocator::release_in_previous(c10::DeviceIndex index, c10::MempoolId_t id,
                                        bool is_ended) const {
  if (!is_ended) {
    previous_.allocator().endAllocateToPool(index, id);
  }
  previous_.allocator().releasePool(index, id);
}

void CudaAllocator::on_release(const PoolId& id) {
  if (holds_pool(id)) {
    return;
  }
  {
    const MutexLock lock(init_mutex_);
    previous_pools_.erase(id);
  }
  for (c10::DeviceIndex i = 0; i < device_count(); ++i) {
    device(i).graphs.on_last_release(id);
  }
  pool_registry().on_release(id);
  if (!pool_registry().knows(id)) {
    host_pools_.release(id);
  }
}

void CudaAllocator::empty_idle_pool(const PoolId& id) {
  if (is_in_forked_child() || holds_pool(id)) {
    return;
  }
  for (c10::DeviceIndex i = 0; i < device_count(); ++i) {
    try {
      device(i).core.empty_idle_pool(id);
    } catch (const DriverError& refusal) {  // the caller is a destructor
      TORCH_WARN(refusal.what());
    }
  }
}

int CudaAllocator::getPoolUseCount(c10::DeviceIndex index, c10::MempoolId_t id) {
  if (is_in_forked_child()) {
    return 1;  // the destructor of a MemPool accepts no other number
  }
  Device& owner = device(index);
  if (is_previous_pool(owner, index, id)) {
    return previous_.allocator().getPoolUseCount(index, id);
  }
  const int count = owner.core.pools().use_count(to_pool_id(id));
  TORCH_CHECK(count >= 0, "ferro_alloc: getPoolUseCount: pool (", id.first, ", ", id.second,
              ") is unknown");
  return count;
}

void CudaAllocator::createOrIncrefPool(c10::DeviceIndex index, c10::MempoolId_t id,
                                       std::shared_ptr<CUDAAllocator> allocator) {
  Device& owner = device(index);
  const bool exists = owner.core.pools().use_count(to_pool_id(id)) >= 0;
  TORCH_CHECK(allocator == nullptr || !exists, "ferro_alloc: createOrIncrefPool: pool (", id.first,
              ", ", id.second, ") exists already and cannot be given an allocator");
  if (allocator != nullptr || is_previous_pool(owner, index, id, IfUnknown::kCreated)) {
    start_previous();
    if (allocator != nullptr) {
      const MutexLock lock(init_mutex_);
      previous_pools_[to_pool_id(id)] = PreviousPool::kWithAllocator;
    }
    previous_.allocator().createOrIncrefPool(index, id, std::move(allocator));
    return;
  }
  owner.core.pools().hold(to_pool_id(id));
}

void CudaAllocator::setUseOnOOM(c10::DeviceIndex index, c10::MempoolId_t id, bool use) {
  if (is_in_forked_child()) {
    return;  // the destructor of a MemPool calls it
  }
  Device& owner = device(index);
  if (is_previous_pool(owner, index, id)) {
    set_use_on_oom_in_previous(index, id, use);
    return;
  }
  owner.core.pools().set_use_on_oom(to_pool_id(id), use);
}

void CudaAllocator::setNoSplit(c10::DeviceIndex index, c10::MempoolId_t id) {
  Device& owner = device(index);
  move_pool_to_previous(owner, index, id);
  if (owner.core.pools().use_count(to_pool_id(id)) >= 0) {
    TORCH_WARN("setNoSplit: pool (", id.first, ", ", id.second,
               ") has memory already, whose blocks are split");
    return;
  }
  start_previous();
  previous_.allocator().setNoSplit(index, id);
  const MutexLock lock(init_mutex_);
  previous_pools_.try_emplace(to_pool_id(id), PreviousPool::kUnsplit);
}

bool CudaAllocator::checkPoolLiveAllocations(c10::DeviceIndex index, c10::MempoolId_t id,
                                             const std::unordered_set<void*>& expected) {
  Device& owner = device(index);
  if (is_previous_pool(owner, index, id)) {
    return previous_.allocator().checkPoolLiveAllocations(index, id, expected);
  }
  DeviceMemory& core = owner.core;
  TORCH_CHECK(core.pools().use_count(to_pool_id(id)) >= 0, "Could not find pool of id");
  const std::vector<BlockView> live = core.report().live_blocks(to_pool_id(id));
  return live.size() == expected.size() &&
         std::ranges::all_of(live, [&expected](const BlockView& block) {
           return expected.contains(to_void_ptr(block.ptr));
         });
}

std::shared_ptr<AllocatorState> CudaAllocator::getCheckpointState(c10::DeviceIndex index,
                                                                  c10::MempoolId_t id) {
  Device& owner = device(index);
  if (is_previous_pool(owner, index, id)) {
    return previous_.allocator().getCheckpointState(index, id);
  }
  auto state = std::make_shared<CheckpointState>();
  check(with_torch_errors(
      [&] { return take_checkpoint(owner.graphs, to_pool_id(id), &state->checkpoint); }));
  return state;
}

CheckpointDelta CudaAllocator::setCheckpointPoolState(c10::DeviceIndex index,
                                                      std::shared_ptr<AllocatorState> state) {
  const auto* ours = dynamic_cast<const CheckpointState*>(state.get());
  CheckpointDelta delta;
  if (ours == nullptr && previous_.is_in_use()) {
    delta = previous_.allocator().setCheckpointPoolState(index, std::move(state));
    for (c10::DataPtr& data : delta.dataptrs_allocd) {
      void* ptr = data.release_context();
      data = c10::DataPtr(ptr, ptr, raw_deleter(), data.device());
    }
    return delta;
  }
  TORCH_CHECK(ours != nullptr, "Expected a checkpoint that ferro_alloc made");
  CheckpointChange change;
  check(with_torch_errors(
      [&] { return restore_checkpoint(device(index).graphs, ours->checkpoint, &change); }));
  if (watched_blocks_.is_on()) {
    watched_blocks_.on_restore(change.freed, change.allocated, ours->checkpoint.pool);
  }
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
  for (const SegmentView& segment : device(index).core.report().segments(nullptr)) {
    if (segment.stream != StreamId{0}) {
      sizes.emplace_back(reinterpret_cast<cudaStream_t>(segment.stream), false, segment.size);
    }
  }
  if (previous_.is_in_use()) {
    std::ranges::move(previous_.allocator().getExpandableSegmentSizes(index),
                      std::back_inserter(sizes));
  }
  return sizes;
}

}  // namespace ferro
