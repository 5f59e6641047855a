// Kernels from outside of the program's operators, of which nothing tells what they write: custom
// kernels of extensions, of NVRTC, of Inductor's C++ code.
//
// Such a kernel may write to each block of memory that one of its arguments points into, and to each
// block whose address the memory of these contains. Afterwards the blocks are unknown and keep their
// bytes. An address counts wherever it lies aligned in an argument: also within a structure. Through
// pointers to constants, by the kernel's mangled name, it only reads. If the layout of its arguments
// is unknown, all device memory becomes unknown.
//
// Called with the machine locked.
#pragma once

#include "ferro/base/bytes.h"
#include "sim/machine/modules.h"
#include "sim/streams/work.h"

#include <cstddef>
#include <cstdint>

namespace ferro::sim {

class Machine;

// The addresses in the first bytes of a block count, as many as lists of addresses have. Those that
// operators or kernels computed are not known.
inline constexpr std::size_t kFollowedBytes = 64 * kKiB;

// Finds the block of the program's allocator that contains an address. False: it has none there.
using FindBlock = int (*)(std::uint64_t address, std::uint64_t* begin, std::size_t* bytes);
// Null, as at first: there is no such allocator, and a block is an allocation of the driver.
void set_block_finder(FindBlock find);

// What a launch reaches. `arguments` and `extra` are those of cuLaunchKernel; one of them may be null,
// and so may be `function`. With `only_memory` the caller knows what the kernel writes through its
// arguments, so only blocks whose addresses lie in memory count.
KernelReach reach_of(Machine& machine, Function* function, void* const* arguments,
                     void* const* extra, bool only_memory);
// Makes it unknown now. The identity of what is unknown follows from the kernel and from the earlier
// contents of what it reaches. Returns the bytes.
std::vector<UnknownBytes> forget_reach(Machine& machine, const KernelReach& reach);
// The driver has allocated this variable of a program's code. Its bytes are unknown, because images
// are not loaded, and each such kernel may write to it.
void add_variable(Machine& machine, CUdeviceptr at);
// Makes all device memory unknown.
void forget_everything(Machine& machine);

}  // namespace ferro::sim
