// Who uses a GPU's memory, for the message of an allocation that failed.
#pragma once

#include <string>

namespace ferro {

// PyTorch's words: "Process 12 has 1.00 GiB memory in use. " for each process, with its own words
// for this one. From NVML, which is loaded when this is called first; empty without it.
std::string process_memory_lines(int device);

}  // namespace ferro
