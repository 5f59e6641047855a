#include "sim/physical_memory.h"

#include "ferro/base/bytes.h"
#include "ferro/base/check.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

namespace ferro::sim {
namespace {

constexpr std::size_t kOffsetsPerByte = 8;
constexpr std::size_t kHostPage = 4 * kKiB;
constexpr std::size_t kBounceBytes = kMiB;

}  // namespace

PhysicalMemory::PhysicalMemory(std::size_t capacity, bool backed) : capacity_(capacity) {
  const std::size_t length = capacity * kOffsetsPerByte;
  free_.emplace(0, length);
  if (backed) {
    file_ = memfd_create("ferro_sim_device", MFD_CLOEXEC);
    FERRO_CHECK(file_ >= 0, "no memory file: " + std::string(std::strerror(errno)));
    FERRO_CHECK(ftruncate(file_, static_cast<off_t>(length)) == 0);
  }
}

PhysicalMemory::~PhysicalMemory() {
  if (file_ >= 0) {
    close(file_);
  }
}

std::optional<std::size_t> PhysicalMemory::allocate(std::size_t bytes) {
  if (bytes > capacity_ - std::min(allocated_, capacity_)) {
    return std::nullopt;
  }
  for (auto range = free_.begin(); range != free_.end(); ++range) {
    const auto [offset, size] = *range;
    if (size < bytes) {
      continue;
    }
    free_.erase(range);
    if (size > bytes) {
      free_.emplace(offset + bytes, size - bytes);
    }
    add(bytes);
    return offset;
  }
  return std::nullopt;
}

void PhysicalMemory::free(std::size_t offset, std::size_t bytes) {
  allocated_ -= bytes;
  punch(offset, bytes);
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && next->first == offset + bytes) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    auto previous = std::prev(next);
    if (previous->first + previous->second == offset) {
      previous->second += bytes;
      return;
    }
  }
  free_.emplace_hint(next, offset, bytes);
}

void PhysicalMemory::read(std::size_t offset, void* destination, std::size_t bytes) const {
  if (file_ < 0) {
    std::memset(destination, 0, bytes);
    return;
  }
  auto* to = static_cast<std::byte*>(destination);
  while (bytes > 0) {
    const ssize_t n = pread(file_, to, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) {
      continue;
    }
    FERRO_CHECK(n > 0, "simulated memory cannot be read");
    to += n;
    offset += static_cast<std::size_t>(n);
    bytes -= static_cast<std::size_t>(n);
  }
}

void PhysicalMemory::write(std::size_t offset, const void* source, std::size_t bytes) {
  if (file_ < 0) {
    return;
  }
  const auto* from = static_cast<const std::byte*>(source);
  while (bytes > 0) {
    const ssize_t n = pwrite(file_, from, bytes, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) {
      continue;
    }
    FERRO_CHECK(n > 0, "simulated memory cannot be written");
    from += n;
    offset += static_cast<std::size_t>(n);
    bytes -= static_cast<std::size_t>(n);
  }
}

void PhysicalMemory::fill(std::size_t offset, std::uint32_t value, std::size_t width,
                          std::size_t bytes) {
  if (file_ < 0 || bytes == 0) {
    return;
  }
  std::byte element[4];
  std::memcpy(element, &value, sizeof(element));
  const bool zero =
      std::all_of(element, element + width, [](std::byte b) { return b == std::byte{0}; });
  if (zero && bytes >= kHostPage) {
    const std::size_t begin = align_up(offset, kHostPage);
    const std::size_t end = align_down(offset + bytes, kHostPage);
    if (begin < end) {
      const std::vector<std::byte> zeros(kHostPage);
      write(offset, zeros.data(), begin - offset);
      punch(begin, end - begin);
      write(end, zeros.data(), offset + bytes - end);
      return;
    }
  }
  std::vector<std::byte> pattern(std::min(bytes, kBounceBytes));
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    pattern[i] = element[i % width];
  }
  for (std::size_t done = 0; done < bytes; done += pattern.size()) {
    write(offset + done, pattern.data(), std::min(pattern.size(), bytes - done));
  }
}

void PhysicalMemory::copy(std::size_t to, const PhysicalMemory& source, std::size_t from,
                          std::size_t bytes) {
  if (file_ < 0) {
    return;
  }
  std::vector<std::byte> bounce(std::min(bytes, kBounceBytes));
  // Overlapping copies are undefined on a GPU; here the source is read piece by piece.
  for (std::size_t done = 0; done < bytes; done += bounce.size()) {
    const std::size_t piece = std::min(bounce.size(), bytes - done);
    if (piece >= kHostPage && source.is_hole(from + done, piece)) {
      fill(to + done, 0, 1, piece);
      continue;
    }
    source.read(from + done, bounce.data(), piece);
    write(to + done, bounce.data(), piece);
  }
}

std::size_t PhysicalMemory::host_bytes() const {
  struct stat status = {};
  if (file_ < 0 || fstat(file_, &status) != 0) {
    return 0;
  }
  return static_cast<std::size_t>(status.st_blocks) * 512;
}

void PhysicalMemory::punch(std::size_t offset, std::size_t bytes) {
  if (file_ >= 0) {
    const int result = fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                 static_cast<off_t>(offset), static_cast<off_t>(bytes));
    FERRO_CHECK(result == 0, "simulated memory cannot be cleared");
  }
}

bool PhysicalMemory::is_hole(std::size_t offset, std::size_t bytes) const {
  const off_t data = lseek(file_, static_cast<off_t>(offset), SEEK_DATA);
  return data < 0 || static_cast<std::size_t>(data) >= offset + bytes;
}

}  // namespace ferro::sim
