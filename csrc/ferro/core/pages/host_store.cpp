#include "ferro/core/pages/host_store.h"

#include "ferro/base/bytes.h"
#include "ferro/base/check.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>
#include <sys/mman.h>
#include <system_error>
#include <thread>

namespace ferro {
namespace {

constexpr std::size_t kHugePage = 2 * kMiB;

// The number after `key` in a file of lines "key number"; without a key, the first one of the file.
std::optional<std::size_t> number_in(const char* path, const std::string& key) {
  std::ifstream file(path);
  std::string word;
  while (file >> word) {
    if (key.empty() || word == key) {
      std::size_t number = 0;
      if (key.empty() ? word != "max" && (number = std::stoull(word), true)
                      : static_cast<bool>(file >> number)) {
        return number;
      }
      return std::nullopt;
    }
  }
  return std::nullopt;
}

// Populates the pages with several threads: one clears 2.5 to 5 GiB/s.
void touch(std::byte* begin, std::size_t bytes) {
  constexpr std::size_t kMostThreads = 16;
  constexpr std::size_t kLeast = 64 * kMiB;  // for one more thread
  const std::size_t cores = std::max(std::thread::hardware_concurrency(), 1U);
  const std::size_t count =
      std::clamp(bytes / kLeast, std::size_t{1}, std::min(cores, kMostThreads));
  const std::size_t share = align_up(ceil_div(bytes, count), kHugePage);
  const auto populate = [](std::byte* from, std::size_t length) {
    constexpr std::size_t kSmallPage = 4096;
    for (std::size_t at = 0; at < length; at += kSmallPage) {
      *static_cast<volatile std::byte*>(from + at) = std::byte{0};
    }
  };
  std::vector<std::jthread> helpers;
  std::size_t at = share;
  try {
    for (; at < bytes; at += share) {
      helpers.emplace_back(populate, begin + at, std::min(share, bytes - at));
    }
  } catch (const std::system_error&) {
    populate(begin + at, bytes - at);  // no more threads
  }
  populate(begin, std::min(share, bytes));
}

}  // namespace

std::optional<std::size_t> available_host_bytes() {
  std::optional<std::size_t> available = number_in("/proc/meminfo", "MemAvailable:");
  if (available) {
    *available *= kKiB;
  }
  const auto limit = number_in("/sys/fs/cgroup/memory.max", "");
  const auto used = number_in("/sys/fs/cgroup/memory.current", "");
  if (limit && used) {
    // The group's cache of files is given up before the limit refuses memory.
    const std::size_t cache = number_in("/sys/fs/cgroup/memory.stat", "inactive_file").value_or(0);
    const std::size_t taken = *used - std::min(*used, cache);
    const std::size_t left = *limit - std::min(*limit, taken);
    available = std::min(available.value_or(left), left);
  }
  return available;
}

std::optional<HostStore::Segment> HostStore::make_segment(std::size_t bytes) {
  bytes = align_up(bytes, kHugePage);
  // Beyond this the system would end a process instead of refusing memory.
  if (const auto available = available_host_bytes(); available && *available < bytes) {
    return std::nullopt;
  }
  // With room to begin at a huge page.
  const std::size_t reserved = bytes + kHugePage;
  void* base = mmap(nullptr, reserved, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) {
    return std::nullopt;
  }
  auto* first = static_cast<std::byte*>(base);
  auto* begin =
      reinterpret_cast<std::byte*>(align_up(reinterpret_cast<std::uintptr_t>(base), kHugePage));
  const auto before = static_cast<std::size_t>(begin - first);
  if (before != 0) {
    munmap(first, before);
  }
  munmap(begin + bytes, reserved - before - bytes);
  madvise(begin, bytes, MADV_HUGEPAGE);
  madvise(begin, bytes, MADV_DONTFORK);
  touch(begin, bytes);
  return Segment{begin, bytes, false, {{0, bytes}}};
}

bool HostStore::add_segment(std::size_t bytes, std::size_t more) {
  std::optional<Segment> segment = next_.valid() ? next_.get() : make_segment(bytes);
  if (!segment) {
    return false;
  }
  more = bytes + more - std::min(bytes + more, segment->bytes);
  if (more != 0) {
    try {
      next_ = std::async(std::launch::async, make_segment, std::min(more, kLargestSegment));
    } catch (const std::system_error&) {  // NOLINT(bugprone-empty-catch): it is made when needed
    }
  }
  segments_.push_back(std::move(*segment));
  Segment& added = segments_.back();
  held_bytes_ += added.bytes;
  added.is_locked = driver_.lock_host_memory(added.begin, added.bytes);
  locked_bytes_ += added.is_locked ? added.bytes : 0;
  return true;
}

bool HostStore::take(std::size_t bytes, std::size_t more, std::vector<Piece>& out) {
  while (held_bytes_ - used_bytes_ < bytes) {
    const std::size_t missing = bytes - (held_bytes_ - used_bytes_) + more;
    const std::size_t now = std::min(missing, kLargestSegment);
    if (!add_segment(now, missing - now)) {
      return false;
    }
  }
  used_bytes_ += bytes;
  for (Segment& segment : segments_) {
    while (bytes != 0 && !segment.free.empty()) {
      const auto first = segment.free.begin();
      const auto [offset, length] = *first;
      const std::size_t part = std::min(length, bytes);
      segment.free.erase(first);
      if (part < length) {
        segment.free[offset + part] = length - part;
      }
      out.push_back({segment.begin + offset, part});
      bytes -= part;
    }
  }
  FERRO_CHECK(bytes == 0);
  return true;
}

void HostStore::put(std::span<const Piece> pieces) {
  for (const Piece& piece : pieces) {
    const auto segment = std::ranges::find_if(segments_, [&](const Segment& each) {
      return piece.begin >= each.begin && piece.begin < each.begin + each.bytes;
    });
    FERRO_CHECK(segment != segments_.end());
    auto offset = static_cast<std::size_t>(piece.begin - segment->begin);
    std::size_t length = piece.bytes;
    auto next = segment->free.upper_bound(offset);
    if (next != segment->free.end() && next->first == offset + length) {
      length += next->second;
      next = segment->free.erase(next);
    }
    if (next != segment->free.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == offset) {
        offset = before->first;
        length += before->second;
      }
    }
    segment->free[offset] = length;
    used_bytes_ -= piece.bytes;
  }
}

void HostStore::release(Segment& segment) {
  if (segment.is_locked) {
    driver_.unlock_host_memory(segment.begin);
    locked_bytes_ -= segment.bytes;
  }
  munmap(segment.begin, segment.bytes);
  held_bytes_ -= segment.bytes;
}

std::size_t HostStore::trim() {
  // Of a sleep that failed.
  if (next_.valid()) {
    if (const std::optional<Segment> unused = next_.get()) {
      munmap(unused->begin, unused->bytes);
    }
  }
  const std::size_t before = held_bytes_;
  std::erase_if(segments_, [this](Segment& segment) {
    const bool is_unused =
        segment.free.size() == 1 && segment.free.begin()->second == segment.bytes;
    if (is_unused) {
      release(segment);
    }
    return is_unused;
  });
  return before - held_bytes_;
}

}  // namespace ferro
