// Arithmetic of the types of NCCL: what collectives do to what the ranks give.
//
// Pure functions. Types of less than 32 bits are summed as float and rounded once, integers wrap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nccl.h>
#include <span>
#include <string_view>

namespace ferro::sim::nccl {

// 0 for a type that is not known.
std::size_t bytes_of(int type);
std::string_view name_of(int type);

// What a rank's contribution is multiplied by: a value of `type`, here or on the device.
struct Scaling {
  int type = ncclFloat32;
  std::uint64_t address = 0;  // on the device, unless 0
  std::byte value[8] = {};
};

// Multiplies `count` values in place by the scaling's value, which has been fetched.
void scale(int type, std::byte* values, std::size_t count, const Scaling& scaling);

// Element by element: `reduction` is one of the five of NCCL; the sources are as many as there are
// ranks, in their order.
void reduce(int type, int reduction, std::span<const std::byte* const> sources, std::size_t count,
            std::byte* out);

}  // namespace ferro::sim::nccl
