#include "sim/memory/plain_addresses.h"

#include "ferro/base/bytes.h"

#include <algorithm>

namespace ferro::sim {
namespace {

constexpr std::size_t kStep = 32 * kMiB;

// The addresses of a context: what remains below and above the code of its libraries.
constexpr std::size_t kContext = 512 * kMiB;
constexpr std::size_t kBelowCode = 412 * kMiB;
constexpr std::size_t kAboveCode = 20 * kMiB;

}  // namespace

std::map<std::uint64_t, PlainAddresses::Range>::iterator PlainAddresses::range_of(
    std::uint64_t at) {
  auto range = ranges_.upper_bound(at);
  if (range == ranges_.begin()) {
    return ranges_.end();
  }
  --range;
  return at - range->first < range->second.bytes ? range : ranges_.end();
}

std::optional<std::uint64_t> PlainAddresses::add_range(int device, std::size_t bytes,
                                                       bool is_first) {
  const auto begin = gaps_.take_last(bytes, kStep);
  if (begin) {
    ranges_.emplace(*begin, Range{device, bytes, 0, is_first});
  }
  return begin;
}

std::optional<std::uint64_t> PlainAddresses::take(int device, std::size_t bytes) {
  if (!free_.contains(device)) {
    const auto context = add_range(device, kContext, true);
    if (!context) {
      return std::nullopt;
    }
    free_[device].add(*context, kBelowCode);
    free_[device].add(*context + kContext - kAboveCode, kAboveCode);
  }
  FreeRanges& free = free_[device];
  std::optional<std::uint64_t> at = free.take_first(bytes);
  if (!at) {
    const std::size_t whole = align_up(bytes, kStep);
    if (const auto range = add_range(device, whole, false)) {
      free.add(*range, whole);
      at = free.take_first(bytes);
    }
  }
  if (at) {
    for_each_range(*at, bytes, [](auto range, std::size_t part) { range->second.used += part; });
  }
  return at;
}

template <typename Visit>
void PlainAddresses::for_each_range(std::uint64_t at, std::size_t bytes, const Visit& visit) {
  for (auto range = range_of(at); bytes > 0;) {
    const auto visited = range++;
    const std::size_t rest = visited->first + visited->second.bytes - at;
    const std::size_t part = std::min(bytes, rest);
    visit(visited, part);
    at += part;
    bytes -= part;
  }
}

bool PlainAddresses::put(std::uint64_t at, std::size_t bytes) {
  const auto found = range_of(at);
  if (found == ranges_.end()) {
    return false;
  }
  FreeRanges& free = free_[found->second.device];
  free.add(at, bytes);
  for_each_range(at, bytes, [&](auto of, std::size_t part) {
    Range& range = of->second;
    range.used -= part;
    if (range.used == 0 && !range.is_first) {
      free.remove(of->first, range.bytes);
      gaps_.add(of->first, range.bytes);
      ranges_.erase(of);
    }
  });
  return true;
}

}  // namespace ferro::sim
