// Identities of plain bytes, derived from the bytes. Plain functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ferro::sim {

// A hash of at most `kSampledBytes` bytes, evenly spaced over a range. `read(at, to, n)` copies `n`
// bytes from the offset `at` of the range.
inline constexpr std::size_t kSampledBytes = 4096;
template <typename Read>
std::uint64_t hash_of_bytes(std::size_t bytes, const Read& read);

// Never 0, as all hashes here.
std::uint64_t hash_of(std::span<const std::uint64_t> words);
std::uint64_t hash_of_sample(const std::byte* sample, std::size_t bytes, std::size_t of_bytes);

template <typename Read>
std::uint64_t hash_of_bytes(std::size_t bytes, const Read& read) {
  constexpr std::size_t kPart = 64;
  std::byte sample[kSampledBytes];
  if (bytes <= kSampledBytes) {
    read(std::size_t{0}, sample, bytes);
    return hash_of_sample(sample, bytes, bytes);
  }
  constexpr std::size_t kParts = kSampledBytes / kPart;
  for (std::size_t i = 0; i < kParts; ++i) {
    read((bytes - kPart) * i / (kParts - 1), sample + i * kPart, kPart);
  }
  return hash_of_sample(sample, kSampledBytes, bytes);
}

}  // namespace ferro::sim
