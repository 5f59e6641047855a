// Puts the allocator in PyTorch's place.
#pragma once

#include "ferro/adapter/cuda_allocator.h"

#include <string>

namespace ferro {

// Makes ferro_alloc the allocator of this process. Does nothing when it is already. Initialises
// CUDA neither itself nor through PyTorch. Throws std::runtime_error with one sentence when it
// can't, and then nothing changed.
void install(const AllocatorConfig& config);

// Null before the first install. Valid until the process ends.
CudaAllocator* installed_allocator();
// Is it the one that PyTorch uses now?
bool is_installed();

// Has PyTorch's current allocator handed out or kept device memory?
bool device_memory_in_use();

}  // namespace ferro
