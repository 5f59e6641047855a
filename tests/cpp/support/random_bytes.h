// Makes bytes like those of a fuzzer from the seeds of model tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace ferro::testing {

inline std::vector<std::uint8_t> random_bytes(unsigned seed, std::size_t count) {
  std::mt19937_64 random(seed);
  std::vector<std::uint8_t> bytes(count);
  for (std::uint8_t& byte : bytes) {
    byte = static_cast<std::uint8_t>(random());
  }
  return bytes;
}

}  // namespace ferro::testing
