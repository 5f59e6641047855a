// The blocks of PyTorch's CUDA allocator, by the addresses within them.
//
// PyTorch has no function for this. So a tracker follows the allocator from the first question on,
// and programs without one pay nothing. Thread-safe. A block that was freed stays until another one
// takes its addresses.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ferro::values {

// Follows the present allocator, whose blocks are known from now on. Takes the allocator's lock, so the
// caller must not hold the machine's. Cheap if nothing has changed. Without a tracker, as with
// cudaMallocAsync, the blocks stay unknown.
void follow_blocks();
// The bytes that were requested of the block that contains the address, or ends just before it. False
// if there is none.
bool find_block(std::uint64_t address, std::uint64_t* begin, std::size_t* bytes);

}  // namespace ferro::values
