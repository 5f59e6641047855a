// cuSOLVER for dense matrices. Each function that computes becomes an operation on its handle's stream.
// Declared by its binary interface, not by its headers: the variants of a function for all element
// types have the same one.
#include "ferro/base/bytes.h"
#include "sim/libraries/cublas_lt/exported.h"
#include "sim/libraries/cuda/derived_workspaces.h"
#include "sim/libraries/cuda/library_memory.h"
#include "sim/libraries/cusolver/workspaces.h"

#include <cstdint>
#include <library_types.h>
#include <limits>

namespace {

using ferro::sim::kAllocFailed;
using ferro::sim::kInvalidValue;
using ferro::sim::kSuccess;
using ferro::sim::SolverWorkspace;

// A handle has one of cuBLAS, and a workspace for it.
constexpr std::size_t kHandleBytes = 96 << 20;
constexpr int kUpper = 1;            // CUBLAS_FILL_MODE_UPPER
constexpr std::size_t kFixed = 128;  // bytes of a workspace beside the elements

struct Handle {
  CUstream stream = nullptr;
  ferro::sim::LibraryMemory memory;
};

// Of settings that change no size.
struct Settings {};

int element_of(int type) {
  return static_cast<int>(ferro::sim::bytes_of(static_cast<cudaDataType>(type)));
}

void note(const SolverWorkspace& workspace, int element) {
  if (!workspace.is_measured) {
    ferro_sim_note_derived_workspace(static_cast<std::uint64_t>(workspace.elements * element));
  }
}

// A number of elements. Those of more than 2^31 are refused.
int answer(const SolverWorkspace& workspace, int element, int* elements) {
  if (workspace.elements > std::numeric_limits<int>::max()) return kInvalidValue;
  note(workspace, element);
  *elements = static_cast<int>(workspace.elements);
  return kSuccess;
}

// Bytes.
int answer(const SolverWorkspace& workspace, int element, std::size_t* device, std::size_t* host) {
  note(workspace, element);
  *device = static_cast<std::size_t>(workspace.elements) * static_cast<std::size_t>(element);
  *host = 0;
  return kSuccess;
}

}  // namespace

FERRO_SIM_EXPORT int cusolverDnCreate(Handle** handle) {
  if (const int status = ferro::sim::create(handle)) return status;
  if ((*handle)->memory.take(kHandleBytes)) return kSuccess;
  delete *handle;
  *handle = nullptr;
  return kAllocFailed;
}

FERRO_SIM_DESTROYED(cusolverDnDestroy, Handle)
FERRO_SIM_STREAM(cusolverDnSetStream, cusolverDnGetStream)

FERRO_SIM_EXPORT int cusolverGetVersion(int* version) {
  *version = 12004;
  return kSuccess;
}

#define FERRO_SIM_SETTINGS(create_name, destroy_name) \
  FERRO_SIM_CREATED(create_name, Settings)            \
  FERRO_SIM_DESTROYED(destroy_name, Settings)
FERRO_SIM_SETTINGS(cusolverDnCreateParams, cusolverDnDestroyParams)
FERRO_SIM_SETTINGS(cusolverDnCreateGesvdjInfo, cusolverDnDestroyGesvdjInfo)
FERRO_SIM_SETTINGS(cusolverDnCreateSyevjInfo, cusolverDnDestroySyevjInfo)

FERRO_SIM_IGNORED(cusolverDnXgesvdjSetMaxSweeps)
FERRO_SIM_IGNORED(cusolverDnXgesvdjSetSortEig)
FERRO_SIM_IGNORED(cusolverDnXgesvdjSetTolerance)
FERRO_SIM_IGNORED(cusolverDnXsyevjSetMaxSweeps)
FERRO_SIM_IGNORED(cusolverDnXsyevjSetSortEig)
FERRO_SIM_IGNORED(cusolverDnXsyevjSetTolerance)

// The functions of one element type, whose names have some letters for real or complex numbers.
#define FERRO_SIM_OF_TYPE(T, symmetric, generate, multiply, element)                               \
  FERRO_SIM_EXPORT int cusolverDn##T##potrf_bufferSize(const Handle*, int uplo, int n,             \
                                                       const void*, int, int* out) {               \
    return answer(ferro::sim::cholesky_workspace(n, uplo == kUpper, element), element, out);       \
  }                                                                                                \
  FERRO_SIM_EXPORT int cusolverDn##T##sytrf_bufferSize(const Handle*, int n, const void*, int,     \
                                                       int* out) {                                 \
    return answer(ferro::sim::symmetric_workspace(n, element), element, out);                      \
  }                                                                                                \
  FERRO_SIM_EXPORT int cusolverDn##T##getrf_bufferSize(const Handle*, int m, int n, const void*,   \
                                                       int, int* out) {                            \
    return answer(ferro::sim::lu_workspace(m, n, element), element, out);                          \
  }                                                                                                \
  FERRO_SIM_EXPORT int cusolverDn##T##geqrf_bufferSize(const Handle*, int m, int n, const void*,   \
                                                       int, int* out) {                            \
    return answer(ferro::sim::qr_workspace(m, n), element, out);                                   \
  }                                                                                                \
  FERRO_SIM_EXPORT int cusolverDn##T##generate##_bufferSize(                                       \
      const Handle*, int m, int n, int k, const void*, int, const void*, int* out) {               \
    return answer(ferro::sim::q_workspace(m, n, k), element, out);                                 \
  }                                                                                                \
  FERRO_SIM_EXPORT int cusolverDn##T##multiply##_bufferSize(                                       \
      const Handle*, int side, int, int m, int n, int k, const void*, int, const void*,            \
      const void*, int, int* out) {                                                                \
    return answer(ferro::sim::q_product_workspace(side == 1, m, n, k), element, out);              \
  }                                                                                                \
  FERRO_SIM_EXPORT int cusolverDn##T##gesvd_bufferSize(const Handle*, int m, int n, int* out) {    \
    return answer(ferro::sim::svd_workspace(m, n), element, out);                                  \
  }                                                                                                \
  FERRO_SIM_EXPORT int cusolverDn##T##gesvdj_bufferSize(                                           \
      const Handle*, int, int thin, int m, int n, const void*, int, const void*, const void*, int, \
      const void*, int, int* out, const void*) {                                                   \
    return answer(ferro::sim::jacobi_svd_workspace(m, n, thin != 0), element, out);                \
  }                                                                                                \
  FERRO_SIM_EXPORT int cusolverDn##T##gesvdjBatched_bufferSize(                                    \
      const Handle*, int, int, int, const void*, int, const void*, const void*, int, const void*,  \
      int, int* out, const void*, int) {                                                           \
    *out = 992;                                                                                    \
    return kSuccess;                                                                               \
  }                                                                                                \
  FERRO_SIM_EXPORT int cusolverDn##T##gesvdaStridedBatched_bufferSize(                             \
      const Handle*, int, int, int m, int n, const void*, int, long long, const void*, long long,  \
      const void*, int, long long, const void*, int, long long, int* out, int batch) {             \
    return answer(ferro::sim::approximate_svd_workspace(m, n, batch), element, out);               \
  }                                                                                                \
  FERRO_SIM_EXPORT int cusolverDn##T##symmetric##evd_bufferSize(                                   \
      const Handle*, int, int, int n, const void*, int, const void*, int* out) {                   \
    return answer(ferro::sim::eigen_workspace(n), element, out);                                   \
  }                                                                                                \
  FERRO_SIM_EXPORT int cusolverDn##T##symmetric##evj_bufferSize(                                   \
      const Handle*, int, int, int n, const void*, int, const void*, int* out, const void*) {      \
    return answer(ferro::sim::jacobi_eigen_workspace(n), element, out);                            \
  }                                                                                                \
  FERRO_SIM_EXPORT int cusolverDn##T##symmetric##evjBatched_bufferSize(                            \
      const Handle*, int, int, int n, const void*, int, const void*, int* out, const void*,        \
      int batch) {                                                                                 \
    return answer(ferro::sim::jacobi_eigen_workspace(n, batch), element, out);                     \
  }                                                                                                \
  FERRO_SIM_OPERATION(cusolverDn##T##potrf)                                                        \
  FERRO_SIM_OPERATION(cusolverDn##T##potrs)                                                        \
  FERRO_SIM_OPERATION(cusolverDn##T##potri)                                                        \
  FERRO_SIM_OPERATION(cusolverDn##T##potrfBatched)                                                 \
  FERRO_SIM_OPERATION(cusolverDn##T##potrsBatched)                                                 \
  FERRO_SIM_OPERATION(cusolverDn##T##sytrf)                                                        \
  FERRO_SIM_OPERATION(cusolverDn##T##getrf)                                                        \
  FERRO_SIM_OPERATION(cusolverDn##T##getrs)                                                        \
  FERRO_SIM_OPERATION(cusolverDn##T##geqrf)                                                        \
  FERRO_SIM_OPERATION(cusolverDn##T##generate)                                                     \
  FERRO_SIM_OPERATION(cusolverDn##T##multiply)                                                     \
  FERRO_SIM_OPERATION(cusolverDn##T##gesvd)                                                        \
  FERRO_SIM_OPERATION(cusolverDn##T##gesvdj)                                                       \
  FERRO_SIM_OPERATION(cusolverDn##T##gesvdjBatched)                                                \
  FERRO_SIM_OPERATION(cusolverDn##T##gesvdaStridedBatched)                                         \
  FERRO_SIM_OPERATION(cusolverDn##T##symmetric##evd)                                               \
  FERRO_SIM_OPERATION(cusolverDn##T##symmetric##evj)                                               \
  FERRO_SIM_OPERATION(cusolverDn##T##symmetric##evjBatched)

FERRO_SIM_OF_TYPE(S, sy, orgqr, ormqr, 4)
FERRO_SIM_OF_TYPE(D, sy, orgqr, ormqr, 8)
FERRO_SIM_OF_TYPE(C, he, ungqr, unmqr, 8)
FERRO_SIM_OF_TYPE(Z, he, ungqr, unmqr, 16)

FERRO_SIM_EXPORT int cusolverDnXpotrf_bufferSize(const Handle*, const void*, int uplo,
                                                 std::int64_t n, int type, const void*,
                                                 std::int64_t, int, std::size_t* device,
                                                 std::size_t* host) {
  const int element = element_of(type);
  return answer(ferro::sim::cholesky_workspace(n, uplo == kUpper, element), element, device, host);
}

FERRO_SIM_EXPORT int cusolverDnXgeqrf_bufferSize(const Handle*, const void*, std::int64_t m,
                                                 std::int64_t n, int type, const void*,
                                                 std::int64_t, int, const void*, int,
                                                 std::size_t* device, std::size_t* host) {
  const int status = answer(ferro::sim::qr_workspace(m, n), element_of(type), device, host);
  *device += kFixed;
  return status;
}

FERRO_SIM_EXPORT int cusolverDnXsyevd_bufferSize(const Handle*, const void*, int, int,
                                                 std::int64_t n, int type, const void*,
                                                 std::int64_t, int, const void*, int,
                                                 std::size_t* device, std::size_t* host) {
  const int status = answer(ferro::sim::eigen_workspace(n), element_of(type), device, host);
  *device += kFixed;
  return status;
}

FERRO_SIM_EXPORT int cusolverDnXsyevBatched_bufferSize(const Handle*, const void*, int, int,
                                                       std::int64_t n, int type, const void*,
                                                       std::int64_t, int, const void*, int,
                                                       std::size_t* device, std::size_t* host,
                                                       std::int64_t batch) {
  const int status = answer(ferro::sim::eigen_workspace(n, batch), element_of(type), device, host);
  *device += 2 * kFixed;
  return status;
}

FERRO_SIM_EXPORT int cusolverDnXgeev_bufferSize(const Handle*, const void*, int, int,
                                                std::int64_t n, int type, const void*, std::int64_t,
                                                int, const void*, int, const void*, std::int64_t,
                                                int, const void*, std::int64_t, int,
                                                std::size_t* device, std::size_t* host) {
  const int status = answer(ferro::sim::general_eigen_workspace(n), element_of(type), device, host);
  *device = ferro::align_up(*device, 512);
  return status;
}

FERRO_SIM_EXPORT int cusolverDnXsytrs_bufferSize(const Handle*, int, std::int64_t, std::int64_t,
                                                 int, const void*, std::int64_t,
                                                 const std::int64_t*, int, void*, std::int64_t,
                                                 std::size_t* device, std::size_t* host) {
  *device = *host = 0;
  return kSuccess;
}

FERRO_SIM_OPERATION(cusolverDnXpotrf)
FERRO_SIM_OPERATION(cusolverDnXpotrs)
FERRO_SIM_OPERATION(cusolverDnXgeqrf)
FERRO_SIM_OPERATION(cusolverDnXsyevd)
FERRO_SIM_OPERATION(cusolverDnXsyevBatched)
FERRO_SIM_OPERATION(cusolverDnXgeev)
FERRO_SIM_OPERATION(cusolverDnXsytrs)
