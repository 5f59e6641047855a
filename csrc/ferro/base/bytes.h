// Byte arithmetic. Every `std::size_t` below is a number of bytes.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

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
// The quotient rounded up, and the next multiple, of numbers that are not negative. Any positive
// divisor.
template <std::integral Number>
constexpr Number ceil_div(Number value, std::type_identity_t<Number> divisor) {
  return value / divisor + (value % divisor != 0 ? 1 : 0);
}
template <std::integral Number>
constexpr Number round_up(Number value, std::type_identity_t<Number> step) {
  return ceil_div(value, step) * step;
}

}  // namespace ferro
