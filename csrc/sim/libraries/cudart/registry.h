// The kernels and device variables that programs registered, by the address of the host's stand-in.
//
// Thread-safe. Entries are never removed: programs unregister from static destructors, when other
// threads may still launch.
#pragma once

#include <cuda.h>

#include <cstddef>

namespace ferro::sim {

// The dynamic shared memory that every kernel may use without setting an attribute.
inline constexpr int kDefaultDynamicShared = 48 * 1024;

// Registers a fat binary, which must stay valid forever, and returns its handle.
void** register_image(const void* binary);
// Registers a kernel of such an image, or a function of the driver. `name` must stay valid forever.
void register_kernel(const void* stand_in, const char* name, void** image);
void register_kernel(const void* stand_in, const char* name, CUfunction function);

// INVALID_HANDLE for an unregistered kernel, NO_BINARY_FOR_GPU when its image has no code for this
// card.
CUresult find_function(const void* stand_in, CUfunction* out);
// Null for an unregistered kernel.
const char* kernel_name(const void* stand_in);
int max_dynamic_shared(const void* stand_in);
void set_max_dynamic_shared(const void* stand_in, int bytes);

void register_variable(const void* stand_in, std::size_t bytes);
// The variable on the current device, whose memory is allocated at the first use; NOT_FOUND for an
// unregistered one. Either pointer may be null.
CUresult find_variable(const void* stand_in, CUdeviceptr* address, std::size_t* bytes);

}  // namespace ferro::sim
