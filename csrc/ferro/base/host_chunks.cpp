#include "ferro/base/host_chunks.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <sys/mman.h>

namespace ferro {
namespace {

constexpr std::size_t kCacheLine = 64;
constexpr std::size_t kManyChunks = 2;

void* map(std::size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

std::byte* map_huge() {
  constexpr std::size_t kHuge = HostChunks::kHuge;
  auto* const memory = static_cast<std::byte*>(map(2 * kHuge));
  if (memory == nullptr) {
    return nullptr;
  }
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  const std::size_t before = align_up(begin, kHuge) - begin;
  if (before != 0) {
    munmap(memory, before);
  }
  munmap(memory + before + kHuge, kHuge - before);
  // If the system refuses, the chunk consists of small pages.
  madvise(memory + before, kHuge, MADV_HUGEPAGE);
  return memory + before;
}

std::byte* allocate_small() {
  void* const memory = std::aligned_alloc(kCacheLine, HostChunks::kSmall);
  return memory == nullptr ? nullptr
                           : static_cast<std::byte*>(std::memset(memory, 0, HostChunks::kSmall));
}

}  // namespace

std::span<std::byte> HostChunks::add() {
  chunks_.reserve(chunks_.size() + 1);
  const std::size_t bytes = bytes_ < kManyChunks * kHuge ? kSmall : kHuge;
  std::byte* const memory = bytes == kSmall ? allocate_small() : map_huge();
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  bytes_ += bytes;
  return chunks_.emplace_back(memory, bytes);
}

HostChunks::~HostChunks() {
  for (const std::span<std::byte> chunk : chunks_) {
    if (chunk.size() == kSmall) {
      std::free(chunk.data());
    } else {
      munmap(chunk.data(), chunk.size());
    }
  }
}

}  // namespace ferro
