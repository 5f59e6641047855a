// Driver functions by name and CUDA version.
#pragma once

namespace ferro::sim {

// The function that a program compiled against `cuda_version` (12030, 13000) means by `name`, or
// null. Works in the shared library, which exports its functions; a static link exports no names.
void* find_proc_address(const char* name, int cuda_version);

}  // namespace ferro::sim
