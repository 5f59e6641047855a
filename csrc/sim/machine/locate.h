// What the control functions share: memory by address, and texts for C.
#pragma once

#include "sim/machine/machine.h"

#include <string>
#include <vector>

namespace ferro::sim {

// Appends the pieces of physical memory behind a range, whatever the access rights; false when a
// byte of it is not mapped. Guarded by the machine's lock.
bool locate(Machine& machine, CUdeviceptr at, std::size_t bytes, std::vector<Segment>& segments);

// Writes at most `size` bytes of the text, its end included; gives the length of the whole.
std::size_t copy_text(const std::string& text, char* buffer, std::size_t size);

}  // namespace ferro::sim
