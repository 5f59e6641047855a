// The kernels and device variables that programs registered, by the address of the host's stand-in.
//
// Thread-safe. Entries are never removed: programs unregister from static destructors, when other
// threads may still launch.
#pragma once

#include <cuda.h>

#include <cstddef>

namespace ferro::sim {

// Dynamic shared memory that every kernel may use without asking.
inline constexpr int kDefaultDynamicShared = 48 * 1024;

// A fat binary, which must live for ever; gives its handle.
void** register_image(const void* binary);
// A kernel of such an image, or a function that the driver made. `name` must live for ever.
void register_kernel(const void* stand_in, const char* name, void** image);
void register_kernel(const void* stand_in, const char* name, CUfunction function);

// INVALID_HANDLE for what nobody registered, NO_BINARY_FOR_GPU when its image has no code for this
// card.
CUresult find_function(const void* stand_in, CUfunction* out);
// Null for what nobody registered.
const char* kernel_name(const void* stand_in);
int max_dynamic_shared(const void* stand_in);
void set_max_dynamic_shared(const void* stand_in, int bytes);

void register_variable(const void* stand_in, std::size_t bytes);
// The variable on the current device, whose memory is allocated at the first use; NOT_FOUND for
// what nobody registered. Either pointer may be null.
CUresult find_variable(const void* stand_in, CUdeviceptr* address, std::size_t* bytes);

}  // namespace ferro::sim
