// The sizes of the work areas of cuFFT's plans, in bytes. Pure functions.
//
// Which kernels cuFFT chooses is not documented. 9,804 plans were made on an H200 (cuFFT 12.0), and
// measured.inc has their sizes. A plan of other batches has the buffers of the nearest one; the
// others follow a rule: large transforms in one dimension take a buffer of the data, those of
// lengths with a prime factor above 127 two of Bluestein's algorithm, and real ones a complex copy.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace ferro::sim {

enum class Transform : std::uint8_t { kComplex, kFromReal, kToReal };

struct FourierPlan {
  Transform transform = Transform::kComplex;
  std::uint8_t element = 8;  // bytes of a complex number: 4, 8 or 16
  bool is_apart = false;     // elements or batches at other distances than in one block
  // As many as it has dimensions; the others are 0.
  std::array<std::int64_t, 3> sizes{};
  std::int64_t batch = 1;

  auto operator<=>(const FourierPlan&) const = default;
};

struct FourierWorkspace {
  std::size_t bytes = 0;
  bool is_measured = false;
};

FourierWorkspace workspace_of(const FourierPlan& plan);

// Bytes of the tables that the driver keeps for a plan.
std::size_t table_bytes(const FourierPlan& plan);

}  // namespace ferro::sim
