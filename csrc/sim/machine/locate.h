// Shared by the control functions: lookup of memory by address, and text for C.
#pragma once

#include "sim/machine/machine.h"

#include <string>
#include <vector>

namespace ferro::sim {

// Appends the pieces of physical memory behind a range, regardless of access rights; false if a
// byte is not mapped. Guarded by the machine's lock.
bool locate(Machine& machine, CUdeviceptr at, std::size_t bytes, std::vector<Segment>& segments);

// Writes at most `size` bytes, including the terminator; returns the length of the whole text.
std::size_t copy_text(const std::string& text, char* buffer, std::size_t size);

}  // namespace ferro::sim
