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

namespace ferro::sim {
namespace {

constexpr std::size_t kOffsetsPerByte = 8;
constexpr std::size_t kHostPage = 4 * kKiB;
constexpr std::size_t kChunk = 2 * kMiB;
// Smaller ranges are cleared by writing zeros, which is cheaper than giving pages back.
constexpr std::size_t kClearByPages = 64 * kKiB;

}  // namespace

PhysicalMemory::PhysicalMemory(std::size_t capacity, bool backed)
    : capacity_(capacity), length_(align_up(capacity * kOffsetsPerByte, kChunk)) {
  free_.emplace(0, length_);
  if (!backed) {
    return;
  }
  written_.resize(length_ / kChunk);
  file_ = memfd_create("ferro_sim_device", MFD_CLOEXEC);
  FERRO_CHECK(file_ >= 0, "no memory file: " + std::string(std::strerror(errno)));
  FERRO_CHECK(ftruncate(file_, static_cast<off_t>(length_)) == 0);
  void* mapped =
      mmap(nullptr, length_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file_, 0);
  FERRO_CHECK(mapped != MAP_FAILED, std::string(std::strerror(errno)));
  bytes_ = static_cast<std::byte*>(mapped);
}

std::unique_ptr<PhysicalMemory> PhysicalMemory::shared(int file, std::size_t bytes, bool backed) {
  std::unique_ptr<PhysicalMemory> memory(new PhysicalMemory(Shared{}, bytes));
  if (backed) {
    memory->written_.assign(align_up(bytes, kChunk) / kChunk, true);
    void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    FERRO_CHECK(mapped != MAP_FAILED, std::string(std::strerror(errno)));
    memory->bytes_ = static_cast<std::byte*>(mapped);
  }
  return memory;
}

PhysicalMemory::~PhysicalMemory() {
  if (bytes_ != nullptr) {
    munmap(bytes_, length_);
  }
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
  clear(offset, bytes);
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

template <typename Visit>
void PhysicalMemory::for_each_chunk(std::size_t offset, std::size_t bytes,
                                    const Visit& visit) const {
  while (bytes > 0) {
    const std::size_t chunk = offset / kChunk;
    const std::size_t piece = std::min(bytes, (chunk + 1) * kChunk - offset);
    visit(offset, piece, written_[chunk]);
    offset += piece;
    bytes -= piece;
  }
}

std::byte* PhysicalMemory::begin_write(std::size_t offset, std::size_t bytes) {
  for (std::size_t chunk = offset / kChunk; chunk * kChunk < offset + bytes; ++chunk) {
    written_[chunk] = true;
  }
  return bytes_ + offset;
}

void PhysicalMemory::read(std::size_t offset, void* destination, std::size_t bytes) const {
  if (bytes_ == nullptr) {
    std::memset(destination, 0, bytes);
    return;
  }
  auto* to = static_cast<std::byte*>(destination);
  for_each_chunk(offset, bytes, [&](std::size_t at, std::size_t piece, bool written) {
    if (written) {
      std::memcpy(to, bytes_ + at, piece);
    } else {
      std::memset(to, 0, piece);
    }
    to += piece;
  });
}

void PhysicalMemory::write(std::size_t offset, const void* source, std::size_t bytes) {
  if (bytes_ != nullptr && bytes > 0) {
    std::memcpy(begin_write(offset, bytes), source, bytes);
  }
}

void PhysicalMemory::fill(std::size_t offset, std::uint64_t value, std::size_t width,
                          std::size_t bytes) {
  if (bytes_ == nullptr || bytes == 0) {
    return;
  }
  std::byte element[sizeof(value)];
  std::memcpy(element, &value, sizeof(element));
  const bool uniform =
      std::all_of(element, element + width, [&](std::byte b) { return b == element[0]; });
  if (uniform && element[0] == std::byte{0}) {
    clear(offset, bytes);
    return;
  }
  std::byte* to = begin_write(offset, bytes);
  if (uniform) {
    std::memset(to, std::to_integer<int>(element[0]), bytes);
    return;
  }
  for (std::size_t done = 0; done < bytes; done += width) {
    std::memcpy(to + done, element, width);
  }
}

void PhysicalMemory::copy(std::size_t to, const PhysicalMemory& source, std::size_t from,
                          std::size_t bytes) {
  if (bytes_ == nullptr) {
    return;
  }
  if (source.bytes_ == nullptr) {
    clear(to, bytes);
    return;
  }
  source.for_each_chunk(from, bytes, [&](std::size_t at, std::size_t piece, bool written) {
    if (written) {
      std::memmove(begin_write(to, piece), source.bytes_ + at, piece);
    } else {
      clear(to, piece);
    }
    to += piece;
  });
}

void PhysicalMemory::clear(std::size_t offset, std::size_t bytes) {
  if (bytes_ == nullptr) {
    return;
  }
  for_each_chunk(offset, bytes, [&](std::size_t at, std::size_t piece, bool written) {
    if (!written) {
      return;
    }
    const std::size_t begin = align_up(at, kHostPage);
    const std::size_t end = align_down(at + piece, kHostPage);
    if (piece < kClearByPages || file_ < 0) {
      std::memset(bytes_ + at, 0, piece);
      return;
    }
    std::memset(bytes_ + at, 0, begin - at);
    std::memset(bytes_ + end, 0, at + piece - end);
    const int result = fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                 static_cast<off_t>(begin), static_cast<off_t>(end - begin));
    FERRO_CHECK(result == 0, "simulated memory cannot be cleared");
    if (piece == kChunk) {
      written_[at / kChunk] = false;
    }
  });
}

std::size_t PhysicalMemory::host_bytes() const {
  struct stat status = {};
  if (file_ < 0 || fstat(file_, &status) != 0) {
    return 0;
  }
  return static_cast<std::size_t>(status.st_blocks) * 512;
}

}  // namespace ferro::sim
