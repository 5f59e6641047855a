// The name of a pool, in PyTorch's form: {0, 0} is the default pool, a first number is given by a
// graph's own capture, a second one by `graph_pool_handle()` and MemPool.
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
