// Matrix products of cuBLAS. Each becomes an operation on its handle's stream, with the sizes that
// determine its duration. Batched solvers tell the host that they accept their arguments. The other
// functions that compute are in stubs.cpp.
//
// They are declared here by their binary interface, not by cublas_api.h: the variants of a function
// for all element types have the same one.
#include "sim/libraries/cublas/handle.h"
#include "sim/libraries/cublas_lt/exported.h"

#include <cstdint>

namespace {

using ferro::sim::BlasHandle;
using ferro::sim::Precision;

// CUBLAS_STATUS_SUCCESS and CUBLAS_STATUS_EXECUTION_FAILED.
int status(CUresult result) { return result == CUDA_SUCCESS ? 0 : 13; }

int product(const BlasHandle* handle, std::int64_t m, std::int64_t n, std::int64_t k,
            std::int64_t batch, Precision precision, const void* a, const void* b,
            const void* out) {
  return status(ferro::sim::enqueue_product(handle->stream, {m, n, k, batch, precision},
                                            {a, b, out, handle->workspace}));
}

Precision precision_of(int type) {
  return ferro::sim::precision_of(static_cast<cudaDataType>(type));
}

}  // namespace

#define FERRO_SIM_PRODUCT(name, precision)                                                        \
  FERRO_SIM_EXPORT int name(const BlasHandle* handle, int, int, int m, int n, int k, const void*, \
                            const void* a, int, const void* b, int, const void*, void* c) {       \
    return product(handle, m, n, k, 1, Precision::precision, a, b, c);                            \
  }
FERRO_SIM_PRODUCT(cublasSgemm_v2, kSingle)
FERRO_SIM_PRODUCT(cublasDgemm_v2, kDouble)
FERRO_SIM_PRODUCT(cublasCgemm_v2, kSingle)
FERRO_SIM_PRODUCT(cublasZgemm_v2, kDouble)
FERRO_SIM_PRODUCT(cublasHgemm, kHalf)

#define FERRO_SIM_TYPED(name)                                                                     \
  FERRO_SIM_EXPORT int name(const BlasHandle* handle, int, int, int m, int n, int k, const void*, \
                            const void* a, int type, int, const void* b, int, int, const void*,   \
                            void* c) {                                                            \
    return product(handle, m, n, k, 1, precision_of(type), a, b, c);                              \
  }
FERRO_SIM_TYPED(cublasSgemmEx)
FERRO_SIM_TYPED(cublasGemmEx)

#define FERRO_SIM_BATCHED(name, precision)                                                        \
  FERRO_SIM_EXPORT int name(const BlasHandle* handle, int, int, int m, int n, int k, const void*, \
                            const void* a, int, const void* b, int, const void*, void* c, int,    \
                            int batch) {                                                          \
    return product(handle, m, n, k, batch, Precision::precision, a, b, c);                        \
  }
FERRO_SIM_BATCHED(cublasHgemmBatched, kHalf)
FERRO_SIM_BATCHED(cublasSgemmBatched, kSingle)
FERRO_SIM_BATCHED(cublasDgemmBatched, kDouble)
FERRO_SIM_BATCHED(cublasCgemmBatched, kSingle)
FERRO_SIM_BATCHED(cublasZgemmBatched, kDouble)

#define FERRO_SIM_STRIDED(name, precision)                                                        \
  FERRO_SIM_EXPORT int name(const BlasHandle* handle, int, int, int m, int n, int k, const void*, \
                            const void* a, int, long long, const void* b, int, long long,         \
                            const void*, void* c, int, long long, int batch) {                    \
    return product(handle, m, n, k, batch, Precision::precision, a, b, c);                        \
  }
FERRO_SIM_STRIDED(cublasHgemmStridedBatched, kHalf)
FERRO_SIM_STRIDED(cublasSgemmStridedBatched, kSingle)
FERRO_SIM_STRIDED(cublasDgemmStridedBatched, kDouble)
FERRO_SIM_STRIDED(cublasCgemmStridedBatched, kSingle)
FERRO_SIM_STRIDED(cublasZgemmStridedBatched, kDouble)

FERRO_SIM_EXPORT int cublasGemmStridedBatchedEx(const BlasHandle* handle, int, int, int m, int n,
                                                int k, const void*, const void* a, int type, int,
                                                long long, const void* b, int, int, long long,
                                                const void*, void* c, int, int, long long,
                                                int batch) {
  return product(handle, m, n, k, batch, precision_of(type), a, b, c);
}

#define FERRO_SIM_QR(name)                                                                     \
  FERRO_SIM_EXPORT int name(const BlasHandle* handle, int, int, const void*, int, const void*, \
                            int* info, int) {                                                  \
    *info = 0;                                                                                 \
    return status(ferro::sim::enqueue_operation(handle->stream));                              \
  }
FERRO_SIM_QR(cublasSgeqrfBatched)
FERRO_SIM_QR(cublasDgeqrfBatched)
FERRO_SIM_QR(cublasCgeqrfBatched)
FERRO_SIM_QR(cublasZgeqrfBatched)

#define FERRO_SIM_LEAST_SQUARES(name)                                                       \
  FERRO_SIM_EXPORT int name(const BlasHandle* handle, int, int, int, int, const void*, int, \
                            const void*, int, int* info, const void*, int) {                \
    *info = 0;                                                                              \
    return status(ferro::sim::enqueue_operation(handle->stream));                           \
  }
FERRO_SIM_LEAST_SQUARES(cublasSgelsBatched)
FERRO_SIM_LEAST_SQUARES(cublasDgelsBatched)
FERRO_SIM_LEAST_SQUARES(cublasCgelsBatched)
FERRO_SIM_LEAST_SQUARES(cublasZgelsBatched)

#define FERRO_SIM_LU_SOLVE(name)                                                       \
  FERRO_SIM_EXPORT int name(const BlasHandle* handle, int, int, int, const void*, int, \
                            const void*, const void*, int, int* info, int) {           \
    *info = 0;                                                                         \
    return status(ferro::sim::enqueue_operation(handle->stream));                      \
  }
FERRO_SIM_LU_SOLVE(cublasSgetrsBatched)
FERRO_SIM_LU_SOLVE(cublasDgetrsBatched)
FERRO_SIM_LU_SOLVE(cublasCgetrsBatched)
FERRO_SIM_LU_SOLVE(cublasZgetrsBatched)
