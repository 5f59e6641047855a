// Puts the allocator in PyTorch's place, and takes it out again.
#pragma once

#include "ferro/adapter/allocator/cuda_allocator.h"
#include "ferro/adapter/allocator/installed_allocator.h"

#include <string>

namespace ferro {

// Makes ferro_alloc the allocator of this process, at any time but during a graph capture. Does
// nothing when it is already. Initialises CUDA neither itself nor through PyTorch. Throws
// std::runtime_error with one sentence when it can't, and then nothing changed. Installed again
// after CUDA was used, it refuses another size of a page, another layout and another answer about
// the thread that unmaps; all other settings change.
void install(const Settings& config);

// New requests go to the allocator that was there before; what ferro_alloc handed out stays its
// own. Does nothing when it is not installed. Throws std::runtime_error during a graph capture.
void uninstall();

// Is it the one that PyTorch's requests go to now?
bool is_installed();
// Do PyTorch's requests reach a cache, whosever it is? Else each is a cudaMalloc.
bool is_caching();
// Is it in PyTorch's place, serving or not? Once CUDA was used, it stays there.
bool is_in_place();

}  // namespace ferro
