// Chooses the tag of a request, the first of these that there is:
//   1. the tag of the thread;
//   2. that of the thread that started this work: PyTorch carries it to autograd's threads, from
//      the call of backward(), and to those of at::launch (at::ThreadLocalState);
//   3. while a node of a backward pass runs in the thread, the tag of the forward code that made it;
//   4. the tag of the pool that serves the request.
//
// Thread-safe. May be called under the lock of a heap, because it takes neither the GIL nor a lock
// that is held while another is taken.
#pragma once

#include "ferro/core/types/observer.h"
#include "ferro/core/types/pool_id.h"

#include <cstddef>
#include <cstdint>

namespace ferro {

// Begins a tag of this thread; 0 ends it. Nodes of autograd that the thread makes from now on
// belong to it. The last kMaxTagChanges changes of the process are known.
void set_tag_of_thread(BlockTag tag);
inline constexpr std::size_t kMaxTagChanges = 65'536;

// Later requests that the pool serves get the tag; 0 removes it. It stays until then, because no
// other pool gets the id.
void set_tag_of_pool(const PoolId& pool, BlockTag tag);

BlockTag tag_of_request(const PoolId& pool);

// The place of an autograd node in the forward code: PyTorch's number of the thread that made the
// node, and the node's number there, which ascends.
struct ForwardPlace {
  std::uint64_t thread = 0;
  std::uint64_t number = 0;
};
// The Python module sets the function, which asks PyTorch for the node that runs in this thread. It
// leaves the place unchanged for a node that belongs to no forward code. False: there is no node.
using FindForwardPlace = bool (*)(ForwardPlace* place);
void set_find_forward_place(FindForwardPlace find);

}  // namespace ferro
