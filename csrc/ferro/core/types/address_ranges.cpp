#include "ferro/core/types/address_ranges.h"

namespace ferro {

void AddressRanges::add(DevicePtr ptr, std::size_t bytes) {
  std::uint64_t begin = address_of(ptr);
  std::uint64_t end = begin + bytes;
  auto next = ends_.upper_bound(begin);
  if (next != ends_.begin() && std::prev(next)->second >= begin) {
    --next;
  }
  while (next != ends_.end() && next->first <= end) {
    begin = std::min(begin, next->first);
    end = std::max(end, next->second);
    next = ends_.erase(next);
  }
  ends_.emplace_hint(next, begin, end);
}

void AddressRanges::remove(DevicePtr ptr, std::size_t bytes) {
  AddressRanges inside;
  for_each_inside(ptr, bytes, [&](DevicePtr begin, std::size_t size) { inside.add(begin, size); });
  for (const auto& [begin, end] : inside.ends_) {
    auto around = std::prev(ends_.upper_bound(begin));
    const auto [first, last] = *around;
    around = ends_.erase(around);
    if (last > end) {
      around = ends_.emplace_hint(around, end, last);
    }
    if (first < begin) {
      ends_.emplace_hint(around, first, begin);
    }
  }
}

std::size_t AddressRanges::bytes() const {
  std::size_t sum = 0;
  for (const auto& [begin, end] : ends_) {
    sum += end - begin;
  }
  return sum;
}

AddressRanges AddressRanges::intersection(const AddressRanges& other) const {
  AddressRanges both;
  auto mine = ends_.begin();
  auto its = other.ends_.begin();
  while (mine != ends_.end() && its != other.ends_.end()) {
    const std::uint64_t begin = std::max(mine->first, its->first);
    const std::uint64_t end = std::min(mine->second, its->second);
    if (begin < end) {
      both.ends_.emplace_hint(both.ends_.end(), begin, end);
    }
    mine->second < its->second ? ++mine : ++its;
  }
  return both;
}

void AddressRanges::unite(const AddressRanges& other) {
  for (const auto& [begin, end] : other.ends_) {
    add(DevicePtr{begin}, end - begin);
  }
}

}  // namespace ferro
