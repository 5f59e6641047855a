#include "values/blocks.h"

#include <c10/cuda/CUDACachingAllocator.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <iterator>
#include <map>
#include <mutex>

namespace ferro::values {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;
using TraceEntry = c10::CachingDeviceAllocator::TraceEntry;

// Sizes of blocks are multiples of it.
constexpr std::size_t kRounding = 512;

struct Known {
  std::mutex mutex;
  std::map<std::uint64_t, std::size_t> blocks;  // bytes by address; they do not overlap
  std::atomic<allocator::CUDAAllocator*> followed = nullptr;
};

// Never destroyed, because trackers may run until the process ends.
Known& known() {
  static Known* const instance = new Known;
  return *instance;
}

using Blocks = std::map<std::uint64_t, std::size_t>;

Blocks::iterator first_ending_after(Blocks& blocks, std::uint64_t address) {
  const auto next = blocks.upper_bound(address);
  if (next != blocks.begin()) {
    const auto before = std::prev(next);
    if (address < before->first + before->second) {
      return before;
    }
  }
  return next;
}

void remove(Blocks& blocks, std::uint64_t begin, std::size_t bytes) {
  for (auto at = first_ending_after(blocks, begin);
       at != blocks.end() && at->first < begin + bytes;) {
    at = blocks.erase(at);
  }
}

// Called under the allocator's lock, which the allocator may hold while it calls the driver.
void follow(const TraceEntry& entry) {
  const bool begins = entry.action_ == TraceEntry::ALLOC;
  if (!begins && entry.action_ != TraceEntry::SEGMENT_FREE &&
      entry.action_ != TraceEntry::SEGMENT_UNMAP) {
    return;
  }
  const auto address = static_cast<std::uint64_t>(entry.addr_);
  Known& all = known();
  const std::lock_guard lock(all.mutex);
  remove(all.blocks, address, entry.size_);
  if (begins && entry.size_ > 0) {
    all.blocks[address] = entry.size_;
  }
}

// What was allocated before the tracker. Later blocks in these addresses are newer.
void add_earlier(const allocator::SnapshotInfo& snapshot) {
  Known& all = known();
  const std::lock_guard lock(all.mutex);
  for (const auto& segment : snapshot.segments) {
    auto address = static_cast<std::uint64_t>(segment.address);
    for (const auto& block : segment.blocks) {
      const std::size_t bytes = block.requested_size != 0 ? block.requested_size : block.size;
      const auto next = first_ending_after(all.blocks, address);
      if ((block.allocated || block.active) &&
          (next == all.blocks.end() || next->first >= address + bytes)) {
        all.blocks[address] = bytes;
      }
      address += block.size;
    }
  }
}

}  // namespace

void follow_blocks() {
  allocator::CUDAAllocator* const now = allocator::get();
  std::atomic<allocator::CUDAAllocator*>& followed = known().followed;
  // Before its first use the allocator has no devices to which a tracker could be attached.
  if (followed.load(std::memory_order_relaxed) == now || now == nullptr || !now->initialized() ||
      followed.exchange(now) == now) {
    return;
  }
  try {
    now->attachAllocatorTraceTracker(follow);
    add_earlier(now->snapshot({0, 0}, false));
  } catch (const std::exception&) {
    // It has no trackers. The driver's allocations stand for its blocks.
  }
}

bool find_block(std::uint64_t address, std::uint64_t* begin, std::size_t* bytes) {
  Known& all = known();
  const std::lock_guard lock(all.mutex);
  auto found = first_ending_after(all.blocks, address);
  if (found == all.blocks.end() || found->first > address) {
    // Also behind the end, where iterators of the block end.
    if (found == all.blocks.begin()) {
      return false;
    }
    --found;
    if (address - found->first > (found->second + kRounding - 1) / kRounding * kRounding) {
      return false;
    }
  }
  *begin = found->first;
  *bytes = found->second;
  return true;
}

}  // namespace ferro::values
