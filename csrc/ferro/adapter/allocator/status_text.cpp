#include "ferro/adapter/allocator/status_text.h"

#include "ferro/adapter/allocator/capture_pools.h"
#include "ferro/adapter/allocator/cuda_allocator.h"
#include "ferro/adapter/torch/convert.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace ferro {
namespace {

using NativeStats = c10::CachingDeviceAllocator::DeviceStats;

// Shortens a name and puts it on one line.
std::string shown(const std::string& given) {
  std::string name = given.substr(0, 80);
  std::ranges::replace_if(
      name, [](unsigned char c) { return c < 0x20; }, ' ');
  return name;
}

std::string label_of(const PoolId& id) {
  const std::string name = pool_registry().name_of(id);
  return name.empty() ? to_text(id) : shown(name);
}

// Only our pools: a list of the previous allocator's pools requires reading its blocks.
void add_pools(DeviceMemory& core, c10::DeviceIndex device, std::string& text) {
  std::vector<std::pair<std::int64_t, PoolId>> pools;
  for (const auto& [id, reserved] : core.report().reserved_by_pool()) {
    if (reserved[kAll].current != 0) {
      pools.emplace_back(reserved[kAll].current, id);
    }
  }
  std::ranges::sort(pools, std::ranges::greater{});
  pools.resize(std::min(pools.size(), kMaxPools));
  for (const auto& [bytes, id] : pools) {
    text +=
        "pool " + std::to_string(device) + ' ' + std::to_string(bytes) + ' ' + label_of(id) + '\n';
  }
}

void add_tags(const std::vector<TagTotal>& tags, int device, std::string& text) {
  for (std::size_t i = 0; i < std::min(tags.size(), kMaxTags); ++i) {
    text += "tag " + std::to_string(device) + ' ' + std::to_string(tags[i].total.bytes) + ' ' +
            shown(tags[i].name) + '\n';
  }
}

// Sizes cover both allocators; their breakdown covers only ours.
void add_device(CudaAllocator& allocator, c10::DeviceIndex device, const NativeStats& stats,
                std::string& text) {
  DeviceMemory& core = *allocator.core_of(device);
  const c10::CachingAllocator::Stat& allocated = stats.allocated_bytes[kAggregate];
  const c10::CachingAllocator::Stat& reserved = stats.reserved_bytes[kAggregate];
  const DeviceView view = core.report().view();
  const PageStore& store = core.store();
  const auto add = [&](const char* name, auto value) {
    text += std::string(" ") + name + '=' + std::to_string(value);
  };
  text += "device " + std::to_string(device);
  text += allocator.has_pages(device) ? " pages" : " segments";
  add("allocated_bytes", allocated.current);
  add("peak_allocated_bytes", allocated.peak);
  add("active_bytes", stats.active_bytes[kAggregate].current);
  add("reserved_bytes", reserved.current);
  add("peak_reserved_bytes", reserved.peak);
  add("asleep_bytes", core.sleep_view().asleep_bytes);
  add("asleep_live_bytes", view.asleep_live_bytes);
  add("stranded_bytes", core.report().stranded_bytes());
  add("idle_bytes", store.counts().idle * store.page_bytes());
  add("blocks", stats.allocation[kAggregate].current);
  add("requests", stats.allocation[kAggregate].allocated);
  add("misses", view.misses);
  add("slowest_miss_ns", core.report().counters().slowest_nanoseconds);
  text += '\n';
  add_pools(core, device, text);
}

}  // namespace

std::string status_text(CudaAllocator& allocator) {
  std::string text = "ferro_alloc 3 " + std::to_string(static_cast<int>(allocator.serves())) + '\n';
  for (c10::DeviceIndex device = 0; device < allocator.device_count(); ++device) {
    const NativeStats stats = allocator.statistics(device);
    if (stats.allocation[kAggregate].allocated != 0 ||
        stats.reserved_bytes[kAggregate].current != 0) {
      add_device(allocator, device, stats, text);
      add_tags(allocator.tags(device), device, text);
    }
  }
  return text;
}

}  // namespace ferro
