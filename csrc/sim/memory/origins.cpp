#include "sim/memory/origins.h"

#include <algorithm>
#include <cstring>

namespace ferro::sim {

std::uint64_t hash_of(std::span<const std::uint64_t> words) {
  const auto bytes = std::as_bytes(words);
  return hash_of_sample(bytes.data(), bytes.size(), bytes.size());
}

std::uint64_t hash_of_sample(const std::byte* sample, std::size_t bytes, std::size_t of_bytes) {
  std::uint64_t hash = 0x9e3779b97f4a7c15 ^ of_bytes;
  for (std::size_t i = 0; i < bytes; i += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, sample + i, std::min(sizeof word, bytes - i));
    hash = (hash ^ word) * 0xbf58476d1ce4e5b9;
    hash ^= hash >> 32;
  }
  return std::max<std::uint64_t>(hash, 1);
}

}  // namespace ferro::sim
