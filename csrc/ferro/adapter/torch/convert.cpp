#include "ferro/adapter/torch/convert.h"

#include "ferro/adapter/torch/process_memory.h"
#include "ferro/core/policy/report.h"

#include <c10/cuda/CUDAAllocatorConfig.h>

#include <cmath>

namespace ferro {
namespace {

using c10::CachingAllocator::AcceleratorAllocatorConfig;
using c10::CachingAllocator::format_size;
using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::CachingAllocator::StatType;
using c10::CachingDeviceAllocator::SegmentInfo;

Stat to_stat(const StatValue& value) {
  Stat stat;
  stat.current = value.current;
  stat.peak = value.peak;
  stat.allocated = value.increased;
  stat.freed = value.decreased;
  return stat;
}

StatArray to_stat_array(const std::array<StatValue, kStatClasses>& values) {
  StatArray array;
  array[kAggregate] = to_stat(values[kAll]);
  array[static_cast<std::size_t>(StatType::SMALL_POOL)] = to_stat(values[kSmall]);
  array[static_cast<std::size_t>(StatType::LARGE_POOL)] = to_stat(values[kLarge]);
  return array;
}

bool is_active(const BlockView& view) {
  return view.state == BlockState::kLive || view.state == BlockState::kPending;
}

bool is_small_in_use(const BlockView& view) {
  return is_active(view) && HeapStats::class_of(view.size) == kSmall;
}

SegmentInfo empty_segment(const SegmentView& segment, c10::DeviceIndex device,
                          std::uint64_t address, bool large) {
  SegmentInfo info;
  info.device = device;
  info.registration_counter = static_cast<std::int32_t>(segment.span_number);
  info.address = address;
  info.stream = reinterpret_cast<void*>(segment.stream);
  info.is_large = large;
  info.is_expandable = true;
  info.owner_private_pool_id = to_mempool_id(segment.pool);
  info.context_when_allocated = std::static_pointer_cast<c10::GatheredContext>(segment.context);
  return info;
}

void add_block(const BlockView& view, SegmentInfo& info) {
  c10::CachingDeviceAllocator::BlockInfo& block = info.blocks.emplace_back();
  block.size = view.size;
  block.requested_size = view.requested;
  block.allocated = view.state == BlockState::kLive;
  block.active = is_active(view);
  block.context_when_allocated = std::static_pointer_cast<c10::GatheredContext>(view.context);
  info.total_size += view.size;
  info.requested_size += block.active ? view.requested : 0;
  info.allocated_size += block.allocated ? view.size : 0;
  info.active_size += block.active ? view.size : 0;
}

}  // namespace

std::string to_text(const PoolId& id) {
  return "(" + std::to_string(id.graph) + ", " + std::to_string(id.handle) + ")";
}

c10::CachingDeviceAllocator::DeviceStats to_device_stats(DeviceMemory& device) {
  const StatTable table = device.stats().read();
  const DeviceCounters counters = device.report().counters();
  c10::CachingDeviceAllocator::DeviceStats stats;
  stats.allocation = to_stat_array(table[kBlocks]);
  stats.allocated_bytes = to_stat_array(table[kBytes]);
  stats.active = to_stat_array(table[kActiveBlocks]);
  stats.active_bytes = to_stat_array(table[kActiveBytes]);
  stats.requested_bytes = to_stat_array(table[kRequested]);
  stats.reserved_bytes = to_stat_array(device.report().reserved());
  stats.num_alloc_retries = static_cast<std::int64_t>(counters.retries);
  stats.num_ooms = static_cast<std::int64_t>(counters.out_of_memory);
  stats.num_sync_all_streams = static_cast<std::int64_t>(counters.synchronisations);
  set_oom_rejections(stats, static_cast<std::int64_t>(counters.rejected));
  for (const auto& [id, bytes] : device.report().reserved_by_pool()) {
    set_reserved_bytes_of_pool(stats, to_mempool_id(id), to_stat_array(bytes));
  }
  stats.num_device_alloc = static_cast<std::int64_t>(counters.pages_created);
  stats.num_device_free = static_cast<std::int64_t>(counters.pages_released);
  stats.max_split_size = -1;  // every block may be split
  return stats;
}

std::vector<SegmentInfo> to_segments(const std::vector<SegmentView>& segments,
                                     c10::DeviceIndex device, Ranges ranges) {
  std::vector<SegmentInfo> infos;
  infos.reserve(segments.size());
  for (const SegmentView& segment : segments) {
    const bool is_small = segment.kind == HeapKind::kSmallPages;
    const bool cut = !is_small && ranges == Ranges::kByClass;
    bool open = false;
    for (const BlockView& view : segment.blocks) {
      const bool large = cut ? !is_small_in_use(view) : !is_small;
      if (!open || large != infos.back().is_large) {
        infos.push_back(empty_segment(segment, device, address_of(view.ptr), large));
        open = true;
      }
      add_block(view, infos.back());
    }
  }
  return infos;
}

c10::cuda::CUDACachingAllocator::AllocatorConfigInfo current_config_info() {
  using Config = c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig;
  c10::cuda::CUDACachingAllocator::AllocatorConfigInfo info{};
  info.garbage_collection_threshold = AcceleratorAllocatorConfig::garbage_collection_threshold();
  info.max_split_size = AcceleratorAllocatorConfig::max_split_size();
  info.pinned_num_register_threads = Config::pinned_num_register_threads();
  info.expandable_segments = AcceleratorAllocatorConfig::use_expandable_segments();
  info.release_lock_on_malloc = Config::release_lock_on_cudamalloc();
  info.pinned_use_host_register = Config::pinned_use_cuda_host_register();
  info.graph_capture_record_stream_reuse = Config::graph_capture_record_stream_reuse();
  info.last_allocator_settings = AcceleratorAllocatorConfig::last_allocator_settings();
  set_pinned_settings(info);
  info.roundup_power2_divisions = AcceleratorAllocatorConfig::roundup_power2_divisions();
  return info;
}

std::string out_of_memory_message(const OutOfMemoryFacts& facts) {
  std::string text = "CUDA out of memory. Tried to allocate " + format_size(facts.request) +
                     ". GPU " + std::to_string(facts.device) + " has a total capacity of " +
                     format_size(facts.capacity) + " of which " + format_size(facts.device_free) +
                     " is free. " + process_memory_lines(facts.device);
  if (facts.limit) {
    text += format_size(*facts.limit) + " allowed; ";
  }
  const std::size_t private_bytes = facts.live_private + facts.free_private;
  const std::size_t allocated =
      facts.live + facts.pending + facts.free_private + facts.previous_live;
  const std::size_t held = facts.held + facts.previous_held;
  text += "Of the allocated memory " + format_size(allocated) + " is allocated by PyTorch, ";
  if (private_bytes > 0) {
    text +=
        "with " + format_size(private_bytes) + " allocated in private pools (e.g., CUDA Graphs), ";
  }
  text += "and " + format_size(held > allocated ? held - allocated : 0) +
          " is reserved by PyTorch but unallocated. ";
  return text + explain(facts);
}

std::size_t to_bytes(double fraction, std::size_t total) {
  return static_cast<std::size_t>(std::llround(fraction * static_cast<double>(total)));
}

double to_fraction(std::size_t bytes, std::size_t total) {
  const auto whole = static_cast<double>(total);
  double fraction = static_cast<double>(bytes) / whole;
  while (static_cast<std::size_t>(fraction * whole) < bytes) {
    fraction = std::nextafter(fraction, 2.0);
  }
  return fraction;
}

}  // namespace ferro
