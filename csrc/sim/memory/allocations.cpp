#include "sim/memory/allocations.h"

#include "sim/memory/find_range.h"

#include <algorithm>

namespace ferro::sim {
namespace {

constexpr std::size_t kSmallLimit = kMiB;
constexpr std::size_t kSmallAlignment = 512;

}  // namespace

Allocations::Allocations(AddressSpace& space, PhysicalMemory& memory, int device)
    : space_(space), memory_(memory), device_(device) {
  access_[static_cast<std::size_t>(device)] = Access::kReadWrite;
}

void Allocations::add_live(CUdeviceptr at, const Block& block) {
  live_.emplace(at, block);
  bytes_ += block.bytes;
  peak_bytes_ = std::max(peak_bytes_, bytes_);
}

std::optional<CUdeviceptr> Allocations::take_pages(std::size_t bytes) {
  const auto offset = memory_.allocate(bytes);
  if (!offset) {
    return std::nullopt;
  }
  auto pages = std::make_shared<Pages>(memory_, device_, *offset, bytes);
  const auto base = space_.reserve_plain(bytes, device_);
  if (!base) {
    return std::nullopt;
  }
  space_.map_plain(*base, std::move(pages), access_);
  return base;
}

void Allocations::release_pages(CUdeviceptr base, std::size_t bytes) {
  space_.unmap_plain(base);
  space_.unreserve(base, bytes);
}

std::optional<CUdeviceptr> Allocations::allocate(std::size_t bytes) {
  if (bytes > kSmallLimit) {
    const std::size_t rounded = align_up(bytes, kGranularity);
    if (rounded < bytes) {
      return std::nullopt;
    }
    const auto base = take_pages(rounded);
    if (base) {
      add_live(*base, Block{bytes, rounded, 0});
    }
    return base;
  }
  const std::size_t rounded = align_up(bytes, kSmallAlignment);
  auto range = free_.begin();
  while (range != free_.end() && range->second < rounded) {
    ++range;
  }
  if (range == free_.end()) {
    const auto chunk = take_pages(kGranularity);
    if (!chunk) {
      return std::nullopt;
    }
    chunk_blocks_.emplace(*chunk, 0);
    range = free_.emplace(*chunk, kGranularity).first;
  }
  const auto [at, available] = *range;
  free_.erase(range);
  if (available > rounded) {
    free_.emplace(at + rounded, available - rounded);
  }
  const CUdeviceptr chunk = align_down(at, kGranularity);
  ++chunk_blocks_.at(chunk);
  add_live(at, Block{bytes, rounded, chunk});
  return at;
}

bool Allocations::free(CUdeviceptr at) {
  const auto found = live_.find(at);
  if (found == live_.end()) {
    return false;
  }
  const Block block = found->second;
  live_.erase(found);
  bytes_ -= block.bytes;
  if (block.chunk == 0) {
    release_pages(at, block.rounded);
    return true;
  }
  const CUdeviceptr chunk_end = block.chunk + kGranularity;
  if (--chunk_blocks_.at(block.chunk) == 0) {
    free_.erase(free_.lower_bound(block.chunk), free_.lower_bound(chunk_end));
    chunk_blocks_.erase(block.chunk);
    release_pages(block.chunk, kGranularity);
    return true;
  }
  // Neighbours merge only within a chunk, because chunks are released one by one.
  auto range = free_.emplace(at, block.rounded).first;
  const auto next = std::next(range);
  if (next != free_.end() && next->first == at + block.rounded && next->first < chunk_end) {
    range->second += next->second;
    free_.erase(next);
  }
  if (range != free_.begin()) {
    const auto previous = std::prev(range);
    if (previous->first >= block.chunk && previous->first + previous->second == at) {
      previous->second += range->second;
      free_.erase(range);
    }
  }
  return true;
}

std::optional<Allocations::Range> Allocations::find(CUdeviceptr at) const {
  const auto found = find_range(live_, at, [](const Block& block) { return block.bytes; });
  return found == live_.end() ? std::nullopt
                              : std::optional(Range{found->first, found->second.bytes});
}

void Allocations::set_peer_access(int peer, bool allowed) {
  const Access access = allowed ? Access::kReadWrite : Access::kNone;
  access_[static_cast<std::size_t>(peer)] = access;
  space_.set_plain_access(device_, peer, access);
}

}  // namespace ferro::sim
