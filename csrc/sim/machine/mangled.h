// What the mangled name of a kernel tells about its parameters.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace ferro::sim {

// For each of the kernel's `count` parameters: is it a pointer to constant objects that are no
// pointers? All false if the name is not mangled, or its parameters are not told apart.
std::vector<bool> pointers_to_constants(const std::string& mangled, std::size_t count);

}  // namespace ferro::sim
