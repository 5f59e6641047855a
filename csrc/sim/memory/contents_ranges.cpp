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
  if (next != ranges_.end() && next->first == begin && next->second.end == end) {
    next->second.offset = offset;
    // The old contents are destroyed when the ranges are consistent.
    std::swap(next->second.contents, contents);
    return;
  }
  const bool meets_next = next != ranges_.end() && next->first < end;
  if (meets_next || (next != ranges_.begin() && std::prev(next)->second.end > begin)) {
    remove(begin, bytes);
    next = ranges_.lower_bound(begin);
  }
  if (next != ranges_.begin()) {
    auto& [first, before] = *std::prev(next);
    if (before.end == begin && before.contents.get() == contents.get() &&
        (contents.is_zeros() || before.offset + (begin - first) == offset)) {
      before.end = end;
      return;
    }
  }
  ranges_.emplace_hint(next, begin, Range{end, std::move(contents), offset});
}

void ContentsRanges::remove(std::uint64_t begin, std::size_t bytes) {
  if (bytes == 0 || ranges_.empty()) {
    return;
  }
  const std::uint64_t end = begin + bytes;
  auto at = ranges_.upper_bound(begin);
  if (at != ranges_.begin() && std::prev(at)->second.end > begin) {
    --at;
  }
  while (at != ranges_.end() && at->first < end) {
    const std::uint64_t first = at->first;
    // Kept until the ranges are consistent again: a destructor may run.
    Range old = std::move(at->second);
    at = ranges_.erase(at);
    if (first < begin) {
      ranges_.emplace_hint(at, first, Range{begin, old.contents, old.offset});
    }
    if (old.end > end) {
      const std::size_t skipped = static_cast<std::size_t>(end - first);
      at = ranges_.emplace_hint(at, end, Range{old.end, old.contents, old.offset + skipped});
      break;
    }
  }
}

}  // namespace ferro::sim
