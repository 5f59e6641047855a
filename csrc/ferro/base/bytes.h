// Byte arithmetic. Every `std::size_t` below is a number of bytes.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace ferro {

inline constexpr std::size_t kKiB = std::size_t{1} << 10;
inline constexpr std::size_t kMiB = std::size_t{1} << 20;
inline constexpr std::size_t kGiB = std::size_t{1} << 30;
inline constexpr std::size_t kTiB = std::size_t{1} << 40;

// `alignment` is a power of two; the result of `align_up` must be representable.
constexpr std::size_t align_down(std::size_t value, std::size_t alignment) {
  return value & ~(alignment - 1);
}
constexpr std::size_t align_up(std::size_t value, std::size_t alignment) {
  return align_down(value + alignment - 1, alignment);
}
constexpr bool is_aligned(std::size_t value, std::size_t alignment) {
  return (value & (alignment - 1)) == 0;
}
// Quotient rounded up, for any positive divisor.
constexpr std::size_t ceil_div(std::size_t value, std::size_t divisor) {
  return value / divisor + (value % divisor != 0 ? 1 : 0);
}

}  // namespace ferro
