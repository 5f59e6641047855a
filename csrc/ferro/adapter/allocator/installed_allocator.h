// The one allocator of the process.
#pragma once

namespace ferro {

class CudaAllocator;

// Null before the first install (switching/install.h). Valid until the process ends. Thread-safe.
CudaAllocator* installed_allocator();
// Called only by `install`.
void set_installed_allocator(CudaAllocator* allocator);

}  // namespace ferro
