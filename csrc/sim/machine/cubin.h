// The parameters of the kernels of a cubin, as its sections `.nv.info.<kernel>` list them, or of
// PTX.
#pragma once

#include "sim/machine/image.h"

#include <cstddef>
#include <string>
#include <unordered_map>
#include <vector>

namespace ferro::sim {

struct Parameter {
  std::size_t offset = 0;  // among all parameters of the kernel
  std::size_t bytes = 0;
};
using Parameters = std::vector<Parameter>;  // in their order

// By the mangled names of kernels; those whose parameters are unknown are left out. Empty for
// anything else, and for compressed code without libzstd.so.1, which decompresses it.
std::unordered_map<std::string, Parameters> read_parameters(const Code& code);

}  // namespace ferro::sim
