#include "sim/memory/plain_addresses.h"

#include "ferro/base/bytes.h"

#include <iterator>

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

bool PlainAddresses::add_range(int device, std::size_t bytes) {
  bytes = align_up(bytes, kStep);
  const auto begin = gaps_.take_last(bytes, kStep);
  if (!begin) {
    return false;
  }
  ranges_.emplace(*begin, Range{device, bytes, 0, false});
  free_[device].add(*begin, bytes);
  return true;
}

bool PlainAddresses::add_first_range(int device) {
  const auto begin = gaps_.take_last(kContext, kStep);
  if (!begin) {
    return false;
  }
  ranges_.emplace(*begin, Range{device, kContext, 0, true});
  FreeRanges& free = free_[device];
  free.add(*begin, kBelowCode);
  free.add(*begin + kContext - kAboveCode, kAboveCode);
  return true;
}

std::optional<std::uint64_t> PlainAddresses::take(int device, std::size_t bytes) {
  if (!free_.contains(device) && !add_first_range(device)) {
    return std::nullopt;
  }
  std::optional<std::uint64_t> at = free_[device].take_first(bytes);
  if (!at && add_range(device, bytes)) {
    at = free_[device].take_first(bytes);
  }
  if (at) {
    range_of(*at)->second.used += bytes;
  }
  return at;
}

bool PlainAddresses::put(std::uint64_t at, std::size_t bytes) {
  const auto found = range_of(at);
  if (found == ranges_.end()) {
    return false;
  }
  Range& range = found->second;
  FreeRanges& free = free_[range.device];
  free.add(at, bytes);
  range.used -= bytes;
  if (range.used == 0 && !range.is_first) {
    free.remove(found->first, range.bytes);
    gaps_.add(found->first, range.bytes);
    ranges_.erase(found);
  }
  return true;
}

}  // namespace ferro::sim
