#include "sim/memory/byte_ranges.h"

#include <iterator>
#include <utility>
#include <vector>

namespace ferro::sim {

ByteRanges::Ends::const_iterator ByteRanges::first_ending_after(std::uint64_t begin) const {
  auto at = ends_.upper_bound(begin);
  if (at != ends_.begin() && std::prev(at)->second > begin) {
    --at;
  }
  return at;
}

void ByteRanges::add(std::uint64_t begin, std::size_t bytes) {
  if (bytes == 0) {
    return;
  }
  std::uint64_t end = begin + bytes;
  if (is_in_last(begin, end)) {
    return;
  }
  auto at = ends_.upper_bound(begin);
  if (at != ends_.begin() && std::prev(at)->second >= begin) {
    --at;
    begin = at->first;
    if (at->second >= end) {
      last_begin_ = begin;
      last_end_ = at->second;
      return;
    }
  }
  while (at != ends_.end() && at->first <= end) {
    end = std::max(end, at->second);
    at = ends_.erase(at);
  }
  ends_.emplace_hint(at, begin, end);
  last_begin_ = begin;
  last_end_ = end;
}

void ByteRanges::remove(std::uint64_t begin, std::size_t bytes) {
  if (bytes == 0 || ends_.empty()) {
    return;
  }
  const std::uint64_t end = begin + bytes;
  if (begin < last_end_ && end > last_begin_) {
    last_begin_ = last_end_ = 0;
  }
  auto at = first_ending_after(begin);
  while (at != ends_.end() && at->first < end) {
    const auto [first, last] = *at;
    at = ends_.erase(at);
    if (first < begin) {
      ends_.emplace_hint(at, first, begin);
    }
    if (last > end) {
      at = ends_.emplace_hint(at, end, last);
      break;
    }
  }
}

bool ByteRanges::overlaps(std::uint64_t begin, std::size_t bytes) const {
  if (bytes == 0 || ends_.empty()) {
    return false;
  }
  const std::uint64_t end = begin + bytes;
  if (begin < last_end_ && end > last_begin_) {
    return true;
  }
  const auto at = first_ending_after(begin);
  if (at == ends_.end() || at->first >= end) {
    return false;
  }
  last_begin_ = at->first;
  last_end_ = at->second;
  return true;
}

void ByteRanges::copy(std::uint64_t to, const ByteRanges& source, std::uint64_t from,
                      std::size_t bytes) {
  std::vector<std::pair<std::uint64_t, std::size_t>> found;
  source.for_each_within(
      from, bytes, [&](std::uint64_t begin, std::size_t part) { found.emplace_back(begin, part); });
  remove(to, bytes);
  for (const auto& [begin, part] : found) {
    add(to + (begin - from), part);
  }
}

}  // namespace ferro::sim
