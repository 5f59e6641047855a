// The parameters of the kernels of PTX text, as their declarations list them.
#pragma once

#include "sim/machine/cubin.h"

#include <string>
#include <string_view>
#include <unordered_map>

namespace ferro::sim {

// By the mangled names of kernels. A kernel with a parameter of an unknown type is left out.
std::unordered_map<std::string, Parameters> read_ptx_parameters(std::string_view text);

}  // namespace ferro::sim
