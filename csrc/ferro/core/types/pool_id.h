// The identity of a pool, in PyTorch's form: {0, 0} is the default pool; a graph's own capture
// assigns the first number, `graph_pool_handle()` and MemPool the second.
#pragma once

#include <compare>
#include <cstdint>

namespace ferro {

struct PoolId {
  std::uint64_t graph = 0;
  std::uint64_t handle = 0;

  friend auto operator<=>(const PoolId&, const PoolId&) = default;
};

inline constexpr PoolId kDefaultPool{};

}  // namespace ferro
