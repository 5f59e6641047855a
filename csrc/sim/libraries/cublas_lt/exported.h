// For sources that define the functions of a library by their binary interface, not by its headers:
// `Handle` is the library's, and has a `stream`.
#pragma once

#include "sim/libraries/cublas_lt/blas_operation.h"

#include <new>
#include <utility>

#define FERRO_SIM_EXPORT extern "C" __attribute__((visibility("default")))

namespace ferro::sim {

// Those of cuSPARSE and cuSOLVER.
enum Status : int {
  kSuccess = 0,
  kAllocFailed = 2,
  kInvalidValue = 3,
  kExecutionFailed = 6,
};

template <typename Type, typename... Fields>
int create(Type** out, Fields&&... fields) {
  if (out == nullptr) return kInvalidValue;
  *out = new (std::nothrow) Type{std::forward<Fields>(fields)...};
  return *out != nullptr ? kSuccess : kAllocFailed;
}

inline int run(CUstream stream) {
  return enqueue_operation(stream) == CUDA_SUCCESS ? kSuccess : kExecutionFailed;
}

}  // namespace ferro::sim

// Settings that change no size.
#define FERRO_SIM_IGNORED(name) \
  FERRO_SIM_EXPORT int name() { return ferro::sim::kSuccess; }

#define FERRO_SIM_CREATED(name, Type) \
  FERRO_SIM_EXPORT int name(Type** out) { return ferro::sim::create(out); }

#define FERRO_SIM_DESTROYED(name, Type)   \
  FERRO_SIM_EXPORT int name(Type* made) { \
    delete made;                          \
    return ferro::sim::kSuccess;          \
  }

#define FERRO_SIM_STREAM(set, get)                                   \
  FERRO_SIM_EXPORT int set(Handle* handle, CUstream stream) {        \
    handle->stream = stream;                                         \
    return ferro::sim::kSuccess;                                     \
  }                                                                  \
  FERRO_SIM_EXPORT int get(const Handle* handle, CUstream* stream) { \
    *stream = handle->stream;                                        \
    return ferro::sim::kSuccess;                                     \
  }

// A function that computes.
#define FERRO_SIM_OPERATION(name) \
  FERRO_SIM_EXPORT int name(const Handle* handle) { return ferro::sim::run(handle->stream); }
