// cuBLASLt. Of the descriptors, only a matrix's sizes and type and the transposition of A are read.
// Every product has one algorithm, without a workspace.
#include "sim/libraries/cublas_lt/blas_operation.h"

#include <cublasLt.h>
#include <cuda.h>

#include <cstdint>
#include <cstring>
#include <new>

namespace {

// Lies in the first words of a cublasLtMatrixLayoutOpaque_t.
struct Layout {
  std::uint64_t rows;
  std::uint64_t columns;
  std::int32_t batch;
  cudaDataType type;
};
static_assert(sizeof(Layout) <= sizeof(cublasLtMatrixLayoutOpaque_t));

Layout read(cublasLtMatrixLayout_t opaque) {
  Layout layout{};
  std::memcpy(&layout, opaque, sizeof layout);
  return layout;
}

void write(cublasLtMatrixLayout_t opaque, const Layout& layout) {
  std::memcpy(opaque, &layout, sizeof layout);
}

template <typename Opaque>
cublasStatus_t create(Opaque** out) {
  if (out == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  *out = new (std::nothrow) Opaque{};
  return *out != nullptr ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

template <typename Opaque>
cublasStatus_t destroy(Opaque* opaque) {
  delete opaque;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t clear(void* opaque, size_t bytes) {
  std::memset(opaque, 0, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

extern "C" {

// A cublasHandle_t serves as a cublasLtHandle_t too, so handles of this library are never read.
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(new (std::nothrow) char);
  return *handle != nullptr ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete reinterpret_cast<char*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion() { return CUBLAS_VERSION; }
size_t cublasLtGetCudartVersion() { return 13000; }

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t layout, size_t bytes,
                                                 cudaDataType type, uint64_t rows, uint64_t columns,
                                                 int64_t) {
  std::memset(layout, 0, bytes);
  write(layout, {rows, columns, 1, type});
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t ld) {
  const cublasStatus_t status = create(layout);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  return cublasLtMatrixLayoutInit_internal(*layout, sizeof **layout, type, rows, columns, ld);
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return destroy(layout);
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t which,
                                                const void* value, size_t bytes) {
  if (which == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT && bytes == sizeof(std::int32_t)) {
    Layout changed = read(layout);
    std::memcpy(&changed.batch, value, sizeof changed.batch);
    write(layout, changed);
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* description, cublasComputeType_t,
                                        cudaDataType_t) {
  return create(description);
}

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t description, size_t bytes,
                                               cublasComputeType_t, cudaDataType_t) {
  return clear(description, bytes);
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) {
  return destroy(description);
}

// The first word records whether A is transposed, which determines the dimension of A that is k.
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t description,
                                              cublasLtMatmulDescAttributes_t which,
                                              const void* value, size_t bytes) {
  if (which == CUBLASLT_MATMUL_DESC_TRANSA && bytes == sizeof(std::int32_t)) {
    std::int32_t operation = CUBLAS_OP_N;
    std::memcpy(&operation, value, sizeof operation);
    description->data[0] = operation == CUBLAS_OP_N ? 0 : 1;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  return create(preference);
}

cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t preference,
                                                     size_t bytes) {
  return clear(preference, bytes);
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return destroy(preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t,
                                                    cublasLtMatmulPreferenceAttributes_t,
                                                    const void*, size_t) {
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixTransformDescCreate(cublasLtMatrixTransformDesc_t* description,
                                                 cudaDataType) {
  return create(description);
}

cublasStatus_t cublasLtMatrixTransformDescDestroy(cublasLtMatrixTransformDesc_t description) {
  return destroy(description);
}

cublasStatus_t cublasLtMatrixTransformDescSetAttribute(cublasLtMatrixTransformDesc_t,
                                                       cublasLtMatrixTransformDescAttributes_t,
                                                       const void*, size_t) {
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t, int requested,
                                              cublasLtMatmulHeuristicResult_t* results,
                                              int* found) {
  if (requested <= 0 || results == nullptr || found == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  results[0] = {};
  results[0].state = CUBLAS_STATUS_SUCCESS;
  results[0].wavesCount = 1.0F;
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t description, const void*,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t, const void*, const void*,
                              cublasLtMatrixLayout_t, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t*, void* workspace, size_t,
                              cudaStream_t stream) {
  const Layout left = read(a_layout);
  const Layout out = read(d_layout);
  const std::uint64_t k = description->data[0] != 0 ? left.rows : left.columns;
  const CUresult result = ferro::sim::enqueue_product(
      stream,
      {static_cast<std::int64_t>(out.rows), static_cast<std::int64_t>(out.columns),
       static_cast<std::int64_t>(k), out.batch, ferro::sim::precision_of(left.type)},
      {a, b, d, workspace});
  return result == CUDA_SUCCESS ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

cublasStatus_t cublasLtMatrixTransform(cublasLtHandle_t, cublasLtMatrixTransformDesc_t, const void*,
                                       const void*, cublasLtMatrixLayout_t, const void*,
                                       const void*, cublasLtMatrixLayout_t, void*,
                                       cublasLtMatrixLayout_t, cudaStream_t stream) {
  return ferro::sim::enqueue_operation(stream) == CUDA_SUCCESS ? CUBLAS_STATUS_SUCCESS
                                                               : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // extern "C"
