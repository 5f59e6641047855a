#include "sim/memory/free_ranges.h"

#include "ferro/base/bytes.h"

#include <algorithm>

namespace ferro::sim {

void FreeRanges::insert(std::uint64_t begin, std::size_t bytes) {
  if (bytes > 0) {
    by_begin_.emplace(begin, bytes);
    by_size_.emplace(bytes, begin);
  }
}

FreeRanges::ByBegin::iterator FreeRanges::erase(ByBegin::iterator range) {
  by_size_.erase({range->second, range->first});
  return by_begin_.erase(range);
}

FreeRanges::ByBegin::iterator FreeRanges::cut(ByBegin::iterator range, std::uint64_t begin,
                                              std::uint64_t end) {
  const auto [old_begin, old_bytes] = *range;
  const auto next = erase(range);
  insert(old_begin, begin - old_begin);
  insert(end, old_begin + old_bytes - end);
  return next;
}

void FreeRanges::add(std::uint64_t begin, std::size_t bytes) {
  auto next = by_begin_.lower_bound(begin);
  if (next != by_begin_.end() && next->first == begin + bytes) {
    bytes += next->second;
    next = erase(next);
  }
  if (next != by_begin_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == begin) {
      begin = previous->first;
      bytes += previous->second;
      erase(previous);
    }
  }
  insert(begin, bytes);
}

std::optional<std::uint64_t> FreeRanges::take(std::size_t bytes, std::size_t alignment) {
  for (auto fit = by_size_.lower_bound({bytes, 0}); fit != by_size_.end(); ++fit) {
    const auto [size, begin] = *fit;
    const std::uint64_t at = align_up(begin, alignment);
    if (at - begin <= size - bytes) {
      cut(by_begin_.find(begin), at, at + bytes);
      return at;
    }
  }
  return std::nullopt;
}

std::optional<std::uint64_t> FreeRanges::take_first(std::size_t bytes) {
  for (auto range = by_begin_.begin(); range != by_begin_.end(); ++range) {
    if (range->second >= bytes) {
      const std::uint64_t at = range->first;
      cut(range, at, at + bytes);
      return at;
    }
  }
  return std::nullopt;
}

std::optional<std::uint64_t> FreeRanges::take_last(std::size_t bytes, std::size_t alignment) {
  for (auto range = by_begin_.end(); range != by_begin_.begin();) {
    --range;
    if (range->second < bytes) {
      continue;
    }
    const std::uint64_t at = align_down(range->first + range->second - bytes, alignment);
    if (at >= range->first) {
      cut(range, at, at + bytes);
      return at;
    }
  }
  return std::nullopt;
}

void FreeRanges::remove(std::uint64_t begin, std::size_t bytes) {
  const std::uint64_t end = begin + bytes;
  auto range = by_begin_.upper_bound(begin);
  if (range != by_begin_.begin()) {
    --range;
  }
  while (range != by_begin_.end() && range->first < end) {
    const std::uint64_t from = std::max(begin, range->first);
    const std::uint64_t to = std::min<std::uint64_t>(end, range->first + range->second);
    range = from < to ? cut(range, from, to) : std::next(range);
  }
}

}  // namespace ferro::sim
