// Takes the place of the runtime's cudaMalloc and cudaFree when a program preloads it, and counts.
#include <atomic>
#include <cstddef>
#include <dlfcn.h>

namespace {

std::atomic<int> allocations{0};
std::atomic<int> releases{0};

template <typename Function>
Function real(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" int cudaMalloc(void** out, std::size_t bytes) {
  ++allocations;
  return real<int (*)(void**, std::size_t)>("cudaMalloc")(out, bytes);
}

extern "C" int cudaFree(void* base) {
  ++releases;
  return real<int (*)(void*)>("cudaFree")(base);
}

extern "C" int preloaded_allocations() { return allocations; }
extern "C" int preloaded_releases() { return releases; }
#ifdef SAVER
extern "C" void tms_pause() {}
#endif
