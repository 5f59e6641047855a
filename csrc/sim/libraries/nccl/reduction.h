// The arithmetic of collectives, for all types of NCCL.
//
// Pure functions. Types of less than 32 bits are summed as float and rounded once, integers wrap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nccl.h>
#include <span>
#include <string_view>

namespace ferro::sim::nccl {

// 0 for an unknown type.
std::size_t bytes_of(int type);
std::string_view name_of(int type);

// The factor of a rank's contribution: a value of `type`, here or on the device.
struct Scaling {
  int type = ncclFloat32;
  std::uint64_t address = 0;  // on the device, unless 0
  std::byte value[8] = {};
};

// Multiplies `count` values in place by `scaling.value`, which the caller has read from the device.
void scale(int type, std::byte* values, std::size_t count, const Scaling& scaling);

// Reduces element by element. `reduction` is one of NCCL's five; the sources are those of all
// ranks, in order of rank.
void reduce(int type, int reduction, std::span<const std::byte* const> sources, std::size_t count,
            std::byte* out);

}  // namespace ferro::sim::nccl
