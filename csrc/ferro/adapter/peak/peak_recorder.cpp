#include "ferro/adapter/peak/peak_recorder.h"

#include "ferro/adapter/history/tags.h"
#include "ferro/adapter/torch/workspaces.h"
#include "ferro/core/types/block.h"

#include <ATen/core/grad_mode.h>
#include <c10/cuda/CUDAStream.h>

#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <tuple>
#include <utility>

namespace ferro {
namespace {

using TraceEntry = c10::CachingDeviceAllocator::TraceEntry;

using Sums = std::map<std::tuple<BlockKind, std::uint32_t, BlockTag>, BlockSum>;

void count(Sums& sums, BlockKind kind, const LiveBlock& block) {
  BlockSum& sum =
      sums.try_emplace({kind, block.line, block.tag}, BlockSum{kind, block.line, block.tag, 0, 0})
          .first->second;
  sum.bytes += block.bytes;
  sum.count += 1;
}

struct State {
  std::mutex mutex;
  std::map<c10::DeviceIndex, LiveBlocks> devices;
  std::map<c10::DeviceIndex, std::deque<std::pair<std::size_t, BlockKind>>> freed;
  std::size_t max_freed = 0;  // of each device
  std::set<c10::MempoolId_t> graph_pools;
  c10::cuda::CUDACachingAllocator::CUDAAllocator* attached = nullptr;
  std::size_t grown_to = 0;
  std::atomic<bool (*)()> in_backward{nullptr};
  std::atomic<bool> on{false};
  std::atomic<bool> has_grown{false};
  std::atomic<std::uint32_t> phase{0};
};

// Never destroyed, because trackers may run until the process ends.
State& state() {
  static State* const only = new State;
  return *only;
}

bool is_capturing(void* stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status) == cudaSuccess &&
         status == cudaStreamCaptureStatusActive;
}

// `gone` may be null.
void keep_kind(State& all, const TraceEntry& entry, const std::shared_ptr<LiveBlock>& gone) {
  if (gone == nullptr || all.max_freed == 0) {
    return;
  }
  auto& freed = all.freed[entry.device_];
  freed.emplace_back(entry.addr_, gone->kind(all.graph_pools.contains(gone->pool)));
  if (freed.size() > all.max_freed) {
    freed.pop_front();
  }
}

void add(State& all, const TraceEntry& entry) {
  LiveBlock block;
  block.bytes = align_up(entry.size_, kBlockAlignment);
  if (const auto* context = dynamic_cast<const RequestContext*>(entry.context_.get())) {
    block.line = context->line;
  }
  block.phase = all.phase.load();
  block.made = entry.time_.approx_t_;
  block.tag = tag_names().tag_of(entry.user_metadata_);
  block.pool = entry.mempool_;
  block.made_in_backward = all.in_backward.load()();
  block.made_with_gradients = at::GradMode::is_enabled();
  if (block.pool != c10::MempoolId_t{0, 0} && is_capturing(entry.stream_)) {
    all.graph_pools.insert(block.pool);
  }
  LiveBlocks& blocks = all.devices[entry.device_];
  keep_kind(all, entry, blocks.add(entry.addr_, std::move(block)));
  if (blocks.live_bytes() > all.grown_to + all.grown_to / 10) {
    all.grown_to = blocks.live_bytes();
    all.has_grown.store(true);
  }
}

void follow(const TraceEntry& entry) {
  State& all = state();
  if (!all.on.load()) {
    return;
  }
  const std::lock_guard guard(all.mutex);
  if (entry.action_ == TraceEntry::ALLOC) {
    add(all, entry);
  } else if (entry.action_ == TraceEntry::FREE_REQUESTED) {
    keep_kind(all, entry,
              all.devices[entry.device_].remove(entry.addr_, entry.time_.approx_t_,
                                                all.phase.load(), all.in_backward.load()()));
  }
}

}  // namespace

void PeakRecorder::start(c10::cuda::CUDACachingAllocator::CreateContextFn context,
                         bool (*in_backward)(), std::size_t max_entries) {
  State& all = state();
  {
    const std::lock_guard guard(all.mutex);
    all.max_freed = max_entries > 1 ? max_entries : 0;
  }
  all.in_backward.store(in_backward);
  all.on.store(true);
  c10::cuda::CUDACachingAllocator::CUDAAllocator* const now =
      c10::cuda::CUDACachingAllocator::get();
  if (std::exchange(all.attached, now) != now) {
    // A recording that the program began before CUDA's first use stays.
    if (!now->isHistoryEnabled()) {
      // The allocator gathers contexts only while it records a history, even if none is read.
      c10::cuda::CUDACachingAllocator::recordHistory(
          true, context, max_entries, c10::CachingDeviceAllocator::RecordContext::ALLOC, true, {});
    }
    c10::cuda::CUDACachingAllocator::attachAllocatorTraceTracker(follow);
  }
}

void PeakRecorder::stop() { state().on.store(false); }

void PeakRecorder::begin_phase() { state().phase.fetch_add(1); }

void PeakRecorder::declare(c10::DeviceIndex device, const std::vector<std::size_t>& addresses,
                           BlockKind kind) {
  State& all = state();
  const std::lock_guard guard(all.mutex);
  LiveBlocks& blocks = all.devices[device];
  for (const std::size_t address : addresses) {
    blocks.declare(address, kind);
  }
}

void PeakRecorder::declare_libraries() {
  std::vector<std::pair<c10::DeviceIndex, std::size_t>> found;
  for_each_workspace([&](const c10::DataPtr& data) {
    found.emplace_back(data.device().index(), reinterpret_cast<std::size_t>(data.get()));
  });
  State& all = state();
  const std::lock_guard guard(all.mutex);
  for (const auto& [device, address] : found) {
    all.devices[device].declare(address, BlockKind::kLibraries);
  }
}

bool PeakRecorder::take_growth() { return state().has_grown.exchange(false); }

std::size_t PeakRecorder::peak_bytes(c10::DeviceIndex device) {
  State& all = state();
  const std::lock_guard guard(all.mutex);
  return all.devices[device].peak_bytes();
}

std::size_t PeakRecorder::live_bytes(c10::DeviceIndex device) {
  State& all = state();
  const std::lock_guard guard(all.mutex);
  return all.devices[device].live_bytes();
}

std::vector<BlockSum> PeakRecorder::sums(c10::DeviceIndex device, bool at_peak) {
  State& all = state();
  const std::lock_guard guard(all.mutex);
  Sums found;
  const auto add = [&](const LiveBlock& block) {
    count(found, block.kind(all.graph_pools.contains(block.pool)), block);
  };
  LiveBlocks& blocks = all.devices[device];
  if (at_peak) {
    for (const auto& block : blocks.at_peak()) {
      add(*block);
    }
  } else {
    for (const auto& [address, block] : blocks.live()) {
      add(*block);
    }
  }
  std::vector<BlockSum> sums;
  for (const auto& [key, sum] : found) {
    sums.push_back(sum);
  }
  return sums;
}

std::vector<std::pair<std::size_t, BlockKind>> PeakRecorder::kinds(c10::DeviceIndex device) {
  State& all = state();
  const std::lock_guard guard(all.mutex);
  const auto& freed = all.freed[device];
  std::vector<std::pair<std::size_t, BlockKind>> found(freed.begin(), freed.end());
  for (const auto& [address, block] : all.devices[device].live()) {
    found.emplace_back(address, block->kind(all.graph_pools.contains(block->pool)));
  }
  return found;
}

}  // namespace ferro
