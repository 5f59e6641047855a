#include "sim/libraries/nccl/reduction.h"

#include <algorithm>
#include <type_traits>

namespace ferro::sim::nccl {
namespace {

// Calls `act` with a value of the type.
template <typename Act>
void with_type(int type, const Act& act) {
  switch (type) {
    case ncclInt8:
      return act(std::int8_t{});
    case ncclUint8:
      return act(std::uint8_t{});
    case ncclInt32:
      return act(std::int32_t{});
    case ncclUint32:
      return act(std::uint32_t{});
    case ncclInt64:
      return act(std::int64_t{});
    case ncclUint64:
      return act(std::uint64_t{});
    case ncclFloat16:
      return act(__half{});
    case ncclFloat32:
      return act(float{});
    case ncclFloat64:
      return act(double{});
    case ncclBfloat16:
      return act(__nv_bfloat16{});
    case ncclFloat8e4m3:
      return act(__nv_fp8_e4m3{});
    case ncclFloat8e5m2:
      return act(__nv_fp8_e5m2{});
    default:
      return;
  }
}

template <typename T>
struct Wide {
  using type = float;
};
template <>
struct Wide<double> {
  using type = double;
};
template <typename T>
requires std::is_integral_v<T>
struct Wide<T> {
  using type = T;
};

// Sums and products of integers wrap, as on a GPU.
template <typename W, typename Act>
W wrapping(W a, W b, const Act& act) {
  if constexpr (std::is_integral_v<W>) {
    return static_cast<W>(act(static_cast<std::uint64_t>(a), static_cast<std::uint64_t>(b)));
  } else {
    return act(a, b);
  }
}

template <typename W>
W combine(int reduction, W a, W b) {
  switch (reduction) {
    case ncclProd:
      return wrapping(a, b, [](auto x, auto y) { return x * y; });
    case ncclMax:
      return std::max(a, b);
    case ncclMin:
      return std::min(a, b);
    default:
      return wrapping(a, b, [](auto x, auto y) { return x + y; });
  }
}

}  // namespace

std::size_t bytes_of(int type) {
  std::size_t bytes = 0;
  with_type(type, [&](auto value) { bytes = sizeof value; });
  return bytes;
}

std::string_view name_of(int type) {
  constexpr std::string_view kNames[] = {"int8",    "uint8",    "int32",       "uint32",
                                         "int64",   "uint64",   "float16",     "float32",
                                         "float64", "bfloat16", "float8_e4m3", "float8_e5m2"};
  return bytes_of(type) == 0 ? "unknown" : kNames[type];
}

void scale(int type, std::byte* values, std::size_t count, const Scaling& scaling) {
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    using W = typename Wide<T>::type;
    auto* const at = reinterpret_cast<T*>(values);
    const W factor = static_cast<W>(*reinterpret_cast<const T*>(scaling.value));
    for (std::size_t i = 0; i < count; ++i) {
      at[i] = static_cast<T>(
          wrapping(static_cast<W>(at[i]), factor, [](auto x, auto y) { return x * y; }));
    }
  });
}

void reduce(int type, int reduction, std::span<const std::byte* const> sources, std::size_t count,
            std::byte* out) {
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    using W = typename Wide<T>::type;
    auto* const to = reinterpret_cast<T*>(out);
    for (std::size_t i = 0; i < count; ++i) {
      const auto value = [&](const std::byte* source) {
        return static_cast<W>(reinterpret_cast<const T*>(source)[i]);
      };
      W sum = value(sources.front());
      for (const std::byte* source : sources.subspan(1)) {
        sum = combine(reduction, sum, value(source));
      }
      to[i] = static_cast<T>(reduction == ncclAvg ? sum / static_cast<W>(sources.size()) : sum);
    }
  });
}

}  // namespace ferro::sim::nccl
