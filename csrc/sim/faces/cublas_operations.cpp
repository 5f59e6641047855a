// Matrix products of cuBLAS. Each becomes an operation of its handle's stream that knows its sizes,
// because its time depends on them; the other functions that compute are in cublas_stubs.cpp.
//
// They are declared here by their machine-level shape, not by cublas_api.h: all element types of
// one function share a shape.
#include "sim/faces/blas_handle.h"
#include "sim/faces/blas_operation.h"

#include <cstdint>

namespace {

using ferro::sim::BlasHandle;

// CUBLAS_STATUS_SUCCESS and CUBLAS_STATUS_EXECUTION_FAILED.
int status(CUresult result) { return result == CUDA_SUCCESS ? 0 : 13; }

int product(const BlasHandle* handle, std::int64_t m, std::int64_t n, std::int64_t k,
            std::int64_t batch) {
  return status(ferro::sim::enqueue_product(handle->stream, m, n, k, batch));
}

}  // namespace

#define FERRO_SIM_EXPORT extern "C" __attribute__((visibility("default")))

// The parameters up to k are the same in every product.
#define FERRO_SIM_PRODUCT(name)                                                        \
  FERRO_SIM_EXPORT int name(const BlasHandle* handle, int, int, int m, int n, int k) { \
    return product(handle, m, n, k, 1);                                                \
  }
FERRO_SIM_PRODUCT(cublasSgemm_v2)
FERRO_SIM_PRODUCT(cublasDgemm_v2)
FERRO_SIM_PRODUCT(cublasCgemm_v2)
FERRO_SIM_PRODUCT(cublasZgemm_v2)
FERRO_SIM_PRODUCT(cublasHgemm)
FERRO_SIM_PRODUCT(cublasSgemmEx)
FERRO_SIM_PRODUCT(cublasGemmEx)

#define FERRO_SIM_BATCHED(name)                                                                   \
  FERRO_SIM_EXPORT int name(const BlasHandle* handle, int, int, int m, int n, int k, const void*, \
                            const void*, int, const void*, int, const void*, void*, int,          \
                            int batch) {                                                          \
    return product(handle, m, n, k, batch);                                                       \
  }
FERRO_SIM_BATCHED(cublasHgemmBatched)
FERRO_SIM_BATCHED(cublasSgemmBatched)
FERRO_SIM_BATCHED(cublasDgemmBatched)
FERRO_SIM_BATCHED(cublasCgemmBatched)
FERRO_SIM_BATCHED(cublasZgemmBatched)

#define FERRO_SIM_STRIDED(name)                                                                    \
  FERRO_SIM_EXPORT int name(const BlasHandle* handle, int, int, int m, int n, int k, const void*,  \
                            const void*, int, long long, const void*, int, long long, const void*, \
                            void*, int, long long, int batch) {                                    \
    return product(handle, m, n, k, batch);                                                        \
  }
FERRO_SIM_STRIDED(cublasHgemmStridedBatched)
FERRO_SIM_STRIDED(cublasSgemmStridedBatched)
FERRO_SIM_STRIDED(cublasDgemmStridedBatched)
FERRO_SIM_STRIDED(cublasCgemmStridedBatched)
FERRO_SIM_STRIDED(cublasZgemmStridedBatched)

FERRO_SIM_EXPORT int cublasGemmStridedBatchedEx(const BlasHandle* handle, int, int, int m, int n,
                                                int k, const void*, const void*, int, int,
                                                long long, const void*, int, int, long long,
                                                const void*, void*, int, int, long long,
                                                int batch) {
  return product(handle, m, n, k, batch);
}
