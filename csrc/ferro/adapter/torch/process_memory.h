// The processes that use a GPU's memory, for the message of a failed allocation.
#pragma once

#include <string>

namespace ferro {

// PyTorch's text: "Process 12 has 1.00 GiB memory in use. " for each process, with a separate text
// for this one. From NVML, which the first call loads; empty without it.
std::string process_memory_lines(int device);

}  // namespace ferro
