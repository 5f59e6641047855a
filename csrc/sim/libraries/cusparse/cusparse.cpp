// cuSPARSE: descriptors, products, sums, triangular solvers and sorts. Each that computes becomes an
// operation on its handle's stream. Declared by its binary interface, not by its headers.
//
// Sums and products of two sparse matrices read back the number of elements of the result, which the
// values of the operator know (`ferro_sim_answer`).
#include "sim/libraries/cublas_lt/exported.h"
#include "sim/libraries/cuda/derived_workspaces.h"
#include "sim/libraries/cusparse/workspaces.h"

#include <algorithm>
#include <cstdint>
#include <library_types.h>

namespace {

using ferro::sim::create;
using ferro::sim::kSuccess;
using ferro::sim::SparseShape;

struct Handle {
  CUstream stream = nullptr;
};

// Of a sparse or dense matrix or vector, or of the state of a function.
struct Descriptor {
  SparseShape shape;
};

// Of a product of two sparse matrices: the numbers of elements of the result, and of products.
struct ProductCounts {
  std::uint32_t elements = 0;
  std::uint32_t products = 0;  // 0: unknown, unless there are no elements
};

std::int64_t index_bytes(int type) {
  constexpr int k64 = 3;
  return type == k64 ? 8 : 4;
}

// What a kernel wrote to the buffer, in the order of the stream.
template <typename Number>
int read_back(const Handle* handle, const void* buffer, Number* number) {
  if (const int status = ferro::sim::run(handle->stream)) return status;
  const CUresult copied = cuMemcpyDtoHAsync(number, reinterpret_cast<CUdeviceptr>(buffer),
                                            sizeof *number, handle->stream);
  const bool is_there =
      copied == CUDA_SUCCESS && cuStreamSynchronize(handle->stream) == CUDA_SUCCESS;
  return is_there ? kSuccess : ferro::sim::kExecutionFailed;
}

int note_derived(std::size_t* out, std::size_t bytes) {
  ferro_sim_note_derived_workspace(bytes);
  *out = bytes;
  return kSuccess;
}

}  // namespace

FERRO_SIM_CREATED(cusparseCreate, Handle)
FERRO_SIM_DESTROYED(cusparseDestroy, Handle)
FERRO_SIM_STREAM(cusparseSetStream, cusparseGetStream)

FERRO_SIM_EXPORT int cusparseGetVersion(Handle*, int* version) {
  *version = 12603;
  return kSuccess;
}

FERRO_SIM_EXPORT const char* cusparseGetErrorString(int status) {
  return status == kSuccess ? "success" : "not supported by the simulated cuSPARSE";
}

FERRO_SIM_EXPORT const char* cusparseGetErrorName(int status) {
  return status == kSuccess ? "CUSPARSE_STATUS_SUCCESS" : "CUSPARSE_STATUS_NOT_SUPPORTED";
}

FERRO_SIM_IGNORED(cusparseSetPointerMode)
FERRO_SIM_IGNORED(cusparseSetMatType)
FERRO_SIM_IGNORED(cusparseSetMatFillMode)
FERRO_SIM_IGNORED(cusparseSetMatDiagType)
FERRO_SIM_IGNORED(cusparseSetMatIndexBase)
FERRO_SIM_IGNORED(cusparseCsrSetPointers)
FERRO_SIM_IGNORED(cusparseCsrSetStridedBatch)
FERRO_SIM_IGNORED(cusparseCooSetStridedBatch)
FERRO_SIM_IGNORED(cusparseDnMatSetStridedBatch)
FERRO_SIM_IGNORED(cusparseSpMatSetAttribute)

FERRO_SIM_CREATED(cusparseCreateMatDescr, Descriptor)
FERRO_SIM_CREATED(cusparseSpSV_createDescr, Descriptor)
FERRO_SIM_CREATED(cusparseSpSM_createDescr, Descriptor)
FERRO_SIM_CREATED(cusparseSpGEMM_createDescr, ProductCounts)

FERRO_SIM_DESTROYED(cusparseDestroyMatDescr, Descriptor)
FERRO_SIM_DESTROYED(cusparseDestroySpMat, Descriptor)
FERRO_SIM_DESTROYED(cusparseDestroyDnMat, Descriptor)
FERRO_SIM_DESTROYED(cusparseDestroyDnVec, Descriptor)
FERRO_SIM_DESTROYED(cusparseSpSV_destroyDescr, Descriptor)
FERRO_SIM_DESTROYED(cusparseSpSM_destroyDescr, Descriptor)
FERRO_SIM_DESTROYED(cusparseSpGEMM_destroyDescr, ProductCounts)

#define FERRO_SIM_COMPRESSED(name)                                                          \
  FERRO_SIM_EXPORT int name(Descriptor** out, std::int64_t rows, std::int64_t columns,      \
                            std::int64_t count, const void*, const void*, const void*, int, \
                            int index, int, cudaDataType type) {                            \
    return create(out, SparseShape{rows, columns, count, index_bytes(index), type});        \
  }
FERRO_SIM_COMPRESSED(cusparseCreateCsr)
FERRO_SIM_COMPRESSED(cusparseCreateConstCsr)
FERRO_SIM_COMPRESSED(cusparseCreateCsc)
FERRO_SIM_COMPRESSED(cusparseCreateConstCsc)

#define FERRO_SIM_COORDINATES(name)                                                               \
  FERRO_SIM_EXPORT int name(Descriptor** out, std::int64_t rows, std::int64_t columns,            \
                            std::int64_t count, const void*, const void*, const void*, int index, \
                            int, cudaDataType type) {                                             \
    return create(out, SparseShape{rows, columns, count, index_bytes(index), type});              \
  }
FERRO_SIM_COORDINATES(cusparseCreateCoo)
FERRO_SIM_COORDINATES(cusparseCreateConstCoo)

#define FERRO_SIM_DENSE(name)                                                          \
  FERRO_SIM_EXPORT int name(Descriptor** out, std::int64_t rows, std::int64_t columns, \
                            std::int64_t, const void*, cudaDataType type, int) {       \
    return create(out, SparseShape{rows, columns, rows * columns, 4, type});           \
  }
FERRO_SIM_DENSE(cusparseCreateDnMat)
FERRO_SIM_DENSE(cusparseCreateConstDnMat)

#define FERRO_SIM_VECTOR(name)                                                                     \
  FERRO_SIM_EXPORT int name(Descriptor** out, std::int64_t size, const void*, cudaDataType type) { \
    return create(out, SparseShape{size, 1, size, 4, type});                                       \
  }
FERRO_SIM_VECTOR(cusparseCreateDnVec)
FERRO_SIM_VECTOR(cusparseCreateConstDnVec)

FERRO_SIM_EXPORT int cusparseSpMatGetSize(const Descriptor* matrix, std::int64_t* rows,
                                          std::int64_t* columns, std::int64_t* count) {
  *rows = matrix->shape.rows;
  *columns = matrix->shape.columns;
  *count = matrix->shape.count;
  return kSuccess;
}

FERRO_SIM_EXPORT int cusparseSpMM_bufferSize(const Handle*, int, int, const void*,
                                             const Descriptor* matrix, const Descriptor*,
                                             const void*, const Descriptor* result, cudaDataType,
                                             int algorithm, std::size_t* bytes) {
  constexpr int kFirst = 4;  // CUSPARSE_SPMM_CSR_ALG1
  constexpr int kLastOfCoordinates = 3;
  const bool by_coordinates = algorithm > 0 && algorithm <= kLastOfCoordinates;
  *bytes = by_coordinates ? 0
                          : ferro::sim::product_buffer(matrix->shape, result->shape.columns,
                                                       algorithm == kFirst);
  return kSuccess;
}

FERRO_SIM_EXPORT int cusparseSpMV_bufferSize(const Handle*, int, const void*,
                                             const Descriptor* matrix, const Descriptor*,
                                             const void*, const Descriptor*, cudaDataType, int,
                                             std::size_t* bytes) {
  *bytes = ferro::sim::vector_buffer(matrix->shape);
  return kSuccess;
}

FERRO_SIM_EXPORT int cusparseSDDMM_bufferSize(const Handle*, int, int, const void*,
                                              const Descriptor*, const Descriptor*, const void*,
                                              const Descriptor* places, cudaDataType, int,
                                              std::size_t* bytes) {
  *bytes = ferro::sim::sampled_buffer(places->shape);
  return kSuccess;
}

FERRO_SIM_EXPORT int cusparseSpSV_bufferSize(const Handle*, int, const void*,
                                             const Descriptor* matrix, const Descriptor*,
                                             const Descriptor*, cudaDataType, int, Descriptor*,
                                             std::size_t* bytes) {
  return note_derived(bytes, ferro::sim::solver_buffer(matrix->shape, 0));
}

FERRO_SIM_EXPORT int cusparseSpSM_bufferSize(const Handle*, int, int, const void*,
                                             const Descriptor* matrix, const Descriptor*,
                                             const Descriptor* result, cudaDataType, int,
                                             Descriptor*, std::size_t* bytes) {
  return note_derived(bytes, ferro::sim::solver_buffer(matrix->shape, result->shape.columns));
}

FERRO_SIM_EXPORT int cusparseXcoosort_bufferSizeExt(const Handle*, int, int, int count, const void*,
                                                    const void*, std::size_t* bytes) {
  return note_derived(bytes, ferro::sim::sort_buffer(count, 4));
}

FERRO_SIM_EXPORT int cusparseXcsrsort_bufferSizeExt(const Handle*, int, int, int count, const void*,
                                                    const void*, std::size_t* bytes) {
  return note_derived(bytes, ferro::sim::sort_buffer(count, 5));
}

// Without a buffer it tells the size, with one it finds out the counts.
FERRO_SIM_EXPORT int cusparseSpGEMM_workEstimation(const Handle* handle, int, int, const void*,
                                                   const Descriptor* left, const Descriptor*,
                                                   const void*, const Descriptor*, cudaDataType,
                                                   int, ProductCounts* counts, std::size_t* bytes,
                                                   const void* buffer) {
  *bytes = ferro::sim::estimation_buffer(left->shape.count);
  return buffer == nullptr ? kSuccess : read_back(handle, buffer, counts);
}

FERRO_SIM_EXPORT int cusparseSpGEMM_compute(const Handle* handle, int, int, const void*,
                                            const Descriptor* left, const Descriptor* right,
                                            const void*, Descriptor* result, cudaDataType type, int,
                                            const ProductCounts* counts, std::size_t* bytes,
                                            const void* buffer) {
  if (buffer != nullptr) {
    result->shape.count = counts->elements;
    return ferro::sim::run(handle->stream);
  }
  const bool known = counts->products != 0 || counts->elements == 0;
  // Else as many as the average row gives.
  const double average = static_cast<double>(left->shape.count) *
                         static_cast<double>(right->shape.count) /
                         static_cast<double>(std::max<std::int64_t>(right->shape.rows, 1));
  const auto products = known ? std::int64_t{counts->products} : static_cast<std::int64_t>(average);
  *bytes = ferro::sim::sparse_product_buffer(result->shape.rows, products, type);
  return known ? kSuccess : note_derived(bytes, *bytes);
}

#define FERRO_SIM_SUM_BUFFER(name)                                                                \
  FERRO_SIM_EXPORT int name(const Handle*, int rows, int, const void*, const void*, int,          \
                            const void*, const void*, const void*, const void*, const void*, int, \
                            const void*, const void*, const void*, const void*, const void*,      \
                            const void*, const void*, std::size_t* bytes) {                       \
    *bytes = ferro::sim::sum_buffer(rows);                                                        \
    return kSuccess;                                                                              \
  }
FERRO_SIM_SUM_BUFFER(cusparseScsrgeam2_bufferSizeExt)
FERRO_SIM_SUM_BUFFER(cusparseDcsrgeam2_bufferSizeExt)
FERRO_SIM_SUM_BUFFER(cusparseCcsrgeam2_bufferSizeExt)
FERRO_SIM_SUM_BUFFER(cusparseZcsrgeam2_bufferSizeExt)

FERRO_SIM_EXPORT int cusparseXcsrgeam2Nnz(const Handle* handle, int, int, const void*, int,
                                          const void*, const void*, const void*, int, const void*,
                                          const void*, const void*, const void*, int* count,
                                          const void* buffer) {
  return read_back(handle, buffer, count);
}

FERRO_SIM_OPERATION(cusparseSpGEMM_copy)
FERRO_SIM_OPERATION(cusparseScsrgeam2)
FERRO_SIM_OPERATION(cusparseDcsrgeam2)
FERRO_SIM_OPERATION(cusparseCcsrgeam2)
FERRO_SIM_OPERATION(cusparseZcsrgeam2)
FERRO_SIM_OPERATION(cusparseSpMM)
FERRO_SIM_OPERATION(cusparseSpMM_preprocess)
FERRO_SIM_OPERATION(cusparseSpMV)
FERRO_SIM_OPERATION(cusparseSDDMM)
FERRO_SIM_OPERATION(cusparseSDDMM_preprocess)
FERRO_SIM_OPERATION(cusparseSpSV_analysis)
FERRO_SIM_OPERATION(cusparseSpSV_solve)
FERRO_SIM_OPERATION(cusparseSpSM_analysis)
FERRO_SIM_OPERATION(cusparseSpSM_solve)
FERRO_SIM_OPERATION(cusparseXcoo2csr)
FERRO_SIM_OPERATION(cusparseXcoosortByRow)
FERRO_SIM_OPERATION(cusparseXcsrsort)
FERRO_SIM_OPERATION(cusparseCreateIdentityPermutation)
