// Installs ferro_alloc as PyTorch's CUDA allocator, and uninstalls it.
#pragma once

#include "ferro/adapter/allocator/cuda_allocator.h"
#include "ferro/adapter/allocator/installed_allocator.h"

#include <string>

namespace ferro {

// Makes ferro_alloc the allocator of this process, at any time except during a graph capture. No-op
// if it is installed. Does not initialise CUDA, not even through PyTorch. On failure throws
// std::runtime_error with one sentence and changes nothing. Installed again
// after CUDA was used, it refuses another size of a page, another layout and another answer about
// the order of graphs; all other settings change.
void install(const Settings& config);

// Sends new requests to the previous allocator; ferro_alloc keeps the blocks that it handed out.
// No-op if it is not installed. Throws std::runtime_error during a graph capture.
void uninstall();

// Whether PyTorch's requests now go to ferro_alloc.
bool is_installed();
// Whether PyTorch's requests reach a cache of any allocator. Otherwise each is a cudaMalloc.
bool is_caching();
// Whether ferro_alloc is registered in PyTorch, serving or not. It stays so once CUDA was used.
bool is_in_place();

}  // namespace ferro
