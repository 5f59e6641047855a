// Sleep: memory by its tags, on one device.
#include "ferro/adapter/allocator/capture_pools.h"
#include "ferro/adapter/allocator/cuda_allocator.h"
#include "ferro/adapter/torch/convert.h"
#include "ferro/adapter/torch/driver_refusals.h"
#include "ferro/adapter/torch/workspaces.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>

namespace ferro {

namespace {

// Of the seed and of the offset of a random generator for graphs. They are known by it alone.
constexpr std::size_t kGeneratorState = sizeof(std::int64_t);

std::set<BlockTag> numbers_of(const CudaAllocator::Tags& tags) {
  std::set<BlockTag> numbers;
  for (const std::string& name : tags) {
    numbers.insert(tag_names().find(name));
  }
  numbers.erase(BlockTag{0});
  return numbers;
}

}  // namespace

// What is awake computes. It needs PyTorch's own tensors, whatever their tag: workspaces, and the
// seed and offset of a generator, which every capture and replay writes. Therefore they stay awake
// with any memory that does, and wake with any that wakes.
SleepFilter CudaAllocator::filter_of(const Tags* tags, IfOfPyTorch own) {
  if (tags == nullptr) {
    return {[](const SleepFilter::InUse&) { return true; }, [](const PoolId&) { return true; },
            SleepFilter::Free::kToo};
  }
  return {[own, wanted = numbers_of(*tags),
           workspaces = addresses_of_workspaces()](const SleepFilter::InUse& block) {
            const bool computes =
                block.pool == kDefaultPool &&
                (block.requested == kGeneratorState || workspaces.contains(block.ptr));
            return computes ? own == IfOfPyTorch::kWanted : wanted.contains(block.tag);
          },
          [](const PoolId&) { return false; }};
}

SleepOutcome CudaAllocator::sleep(c10::DeviceIndex index, const Tags* tags,
                                  Sleeper::Contents contents, const Tags& except,
                                  Sleeper::Want want) {
  release_failed_captures();
  if (tags == nullptr) {
    empty_previous_cache();
  }
  SleepFilter which = filter_of(tags, IfOfPyTorch::kUnwanted);
  if (!except.empty()) {
    const bool keeps = contents == Sleeper::Contents::kKeep;
    contents = Sleeper::Contents::kKeep;
    which.keeps = [keeps, except = numbers_of(except)](const SleepFilter::InUse& block) {
      return except.contains(block.tag) != keeps;
    };
  }
  return with_torch_errors([&] { return device(index).core.sleep(which, contents, want); });
}

SleepOutcome CudaAllocator::wake(c10::DeviceIndex index, const Tags* tags) {
  return with_torch_errors(
      [&] { return device(index).core.wake(filter_of(tags, IfOfPyTorch::kWanted)); });
}

bool CudaAllocator::is_asleep(DevicePtr ptr) const {
  Span* span = addresses_.find(ptr);
  return span != nullptr && span->heap()->is_asleep(*span, ptr);
}

void CudaAllocator::check_capture(c10::DeviceIndex index, const PoolId& pool) const {
  refuse_if_sealed(pool);
  DeviceMemory& core = device(index).core;
  check_sharing(core.is_scratch_asleep(pool) ? SharingResult::kAsleep : SharingResult::kOk);
  const auto may_be_state = [](const BlockView& block) {
    return block.is_asleep && block.requested == kGeneratorState;
  };
  TORCH_CHECK(core.sleep_view().asleep_bytes == 0 ||
                  std::ranges::none_of(core.report().live_blocks(kDefaultPool), may_be_state),
              "The state of PyTorch's random generator, which every capture writes, may be asleep "
              "(ferro_alloc.sleep). Call ferro_alloc.wake() before the capture.");
}

}  // namespace ferro
