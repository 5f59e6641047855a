#include "sim/memory/origins.h"

#include <algorithm>
#include <cstring>

namespace ferro::sim {
namespace {

constexpr ferro_sim_contents_kind kOrigin = {
    [](ferro_sim_contents*) -> const void* { return nullptr; },
    [](ferro_sim_contents* self) { delete self; },
};

}  // namespace

ContentsRef make_origin(const ferro_sim_origin& origin) {
  auto* const contents = new ferro_sim_contents;
  contents->kind = &kOrigin;
  contents->references = 0;
  contents->origin = origin;
  return ContentsRef(contents);
}

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
