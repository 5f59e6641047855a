#include "sim/memory/contents_ranges.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>

namespace ferro::sim {
namespace {

struct HostBytes : ferro_sim_contents {
  std::unique_ptr<std::byte[]> held;
};

constexpr ferro_sim_contents_kind kHostBytes = {
    [](ferro_sim_contents* self) -> const void* {
      return static_cast<HostBytes*>(self)->held.get();
    },
    [](ferro_sim_contents* self) { delete static_cast<HostBytes*>(self); },
};

}  // namespace

ContentsRef copy_bytes(const void* source, std::size_t bytes) {
  auto* const contents = new HostBytes;
  contents->kind = &kHostBytes;
  contents->references = 0;
  contents->origin = {0, FERRO_SIM_KNOWN, 0, 0};
  contents->held = std::make_unique_for_overwrite<std::byte[]>(bytes);
  std::memcpy(contents->held.get(), source, bytes);
  return ContentsRef(contents);
}

ContentsRanges::Ranges::const_iterator ContentsRanges::first_ending_after(
    std::uint64_t begin) const {
  auto at = ranges_.upper_bound(begin);
  if (at != ranges_.begin() && std::prev(at)->second.end > begin) {
    --at;
  }
  return at;
}

void ContentsRanges::set(std::uint64_t begin, std::size_t bytes, ContentsRef contents,
                         std::size_t offset) {
  const std::uint64_t end = begin + bytes;
  auto next = ranges_.lower_bound(begin);
  if (next != ranges_.begin()) {
    auto& [first, before] = *std::prev(next);
    const bool continues = before.contents.get() == contents.get() &&
                           (contents.is_zeros() || before.offset + (begin - first) == offset);
    if (before.end > begin) {
      next = cut_end(std::prev(next), begin, end);
    }
    if (before.end == begin && continues) {
      next = remove_from(next, end);
      before.end = end;
      return;
    }
  }
  if (next == ranges_.end() || next->first >= end) {
    ranges_.emplace_hint(next, begin, Range{end, std::move(contents), offset});
    return;
  }
  // The first range that meets this one becomes this one, with its memory.
  auto own = next++;
  if (own->second.end > end) {
    next = ranges_.emplace_hint(next, end, own->second);
    next->second.offset += static_cast<std::size_t>(end - own->first);
  }
  if (own->first != begin) {
    auto node = ranges_.extract(own);
    node.key() = begin;
    own = ranges_.insert(next, std::move(node));
  }
  own->second.end = end;
  own->second.offset = offset;
  // The old contents are destroyed when the ranges are consistent.
  std::swap(own->second.contents, contents);
  remove_from(next, end);
}

bool ContentsRanges::holds_zeros(std::uint64_t begin, std::size_t bytes) const {
  const auto at = first_ending_after(begin);
  return at != ranges_.end() && at->first <= begin && at->second.end >= begin + bytes &&
         at->second.contents.is_zeros();
}

// Ends the range at `begin`; what it has behind `end` becomes another one. Returns the next range.
ContentsRanges::Ranges::iterator ContentsRanges::cut_end(Ranges::iterator at, std::uint64_t begin,
                                                         std::uint64_t end) {
  auto& [first, range] = *at++;
  if (range.end > end) {
    at = ranges_.emplace_hint(at, end, range);
    at->second.offset += static_cast<std::size_t>(end - first);
  }
  range.end = begin;
  return at;
}

// Removes what ranges from `at` on have before `end`. Returns the first range behind it.
ContentsRanges::Ranges::iterator ContentsRanges::remove_from(Ranges::iterator at,
                                                             std::uint64_t end) {
  while (at != ranges_.end() && at->first < end) {
    if (at->second.end > end) {
      at->second.offset += static_cast<std::size_t>(end - at->first);
      auto node = ranges_.extract(at++);
      node.key() = end;
      return ranges_.insert(at, std::move(node));
    }
    at = ranges_.erase(at);
  }
  return at;
}

void ContentsRanges::remove(std::uint64_t begin, std::size_t bytes) {
  if (bytes == 0 || ranges_.empty()) {
    return;
  }
  const std::uint64_t end = begin + bytes;
  auto next = ranges_.lower_bound(begin);
  if (next != ranges_.begin() && std::prev(next)->second.end > begin) {
    next = cut_end(std::prev(next), begin, end);
  }
  remove_from(next, end);
}

}  // namespace ferro::sim
