// cuBLAS: handles, settings and copies. Functions that compute are in operations.cpp.
#include "sim/libraries/cublas/handle.h"

#include <cublas_v2.h>
#include <cuda.h>

#include <cstdint>
#include <new>

namespace {

using ferro::sim::BlasHandle;

constexpr int kVersion = CUBLAS_VERSION;

BlasHandle* state(cublasHandle_t handle) { return reinterpret_cast<BlasHandle*>(handle); }

cublasStatus_t status(CUresult result) {
  return result == CUDA_SUCCESS ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

// Copies columns of `rows` elements between two matrices in any kind of memory.
cublasStatus_t copy_matrix(std::int64_t rows, std::int64_t columns, std::int64_t element,
                           const void* from, std::int64_t from_ld, void* to, std::int64_t to_ld,
                           CUstream stream) {
  if (rows <= 0 || columns <= 0) return CUBLAS_STATUS_SUCCESS;
  CUDA_MEMCPY2D c{};
  c.srcMemoryType = CU_MEMORYTYPE_UNIFIED;
  c.srcDevice = reinterpret_cast<CUdeviceptr>(from);
  c.srcPitch = static_cast<size_t>(from_ld * element);
  c.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  c.dstDevice = reinterpret_cast<CUdeviceptr>(to);
  c.dstPitch = static_cast<size_t>(to_ld * element);
  c.WidthInBytes = static_cast<size_t>(rows * element);
  c.Height = static_cast<size_t>(columns);
  return status(cuMemcpy2DAsync(&c, stream));
}

}  // namespace

extern "C" {

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  if (handle == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  *handle = reinterpret_cast<cublasHandle_t>(new (std::nothrow) BlasHandle);
  return *handle != nullptr ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  delete state(handle);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetVersion_v2(cublasHandle_t, int* version) {
  *version = kVersion;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetProperty(libraryPropertyType type, int* value) {
  switch (type) {
    case MAJOR_VERSION:
      *value = CUBLAS_VER_MAJOR;
      return CUBLAS_STATUS_SUCCESS;
    case MINOR_VERSION:
      *value = CUBLAS_VER_MINOR;
      return CUBLAS_STATUS_SUCCESS;
    case PATCH_LEVEL:
      *value = CUBLAS_VER_PATCH;
      return CUBLAS_STATUS_SUCCESS;
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

size_t cublasGetCudartVersion() { return 13000; }

const char* cublasGetStatusName(cublasStatus_t code) {
  return code == CUBLAS_STATUS_SUCCESS ? "CUBLAS_STATUS_SUCCESS" : "CUBLAS_STATUS_EXECUTION_FAILED";
}

const char* cublasGetStatusString(cublasStatus_t code) {
  return code == CUBLAS_STATUS_SUCCESS ? "success" : "the simulated operation failed";
}

cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void* workspace, size_t) {
  state(handle)->workspace = workspace;
  return CUBLAS_STATUS_SUCCESS;
}

#define FERRO_SIM_KEPT(set, get, Type, member)             \
  cublasStatus_t set(cublasHandle_t handle, Type value) {  \
    state(handle)->member = value;                         \
    return CUBLAS_STATUS_SUCCESS;                          \
  }                                                        \
  cublasStatus_t get(cublasHandle_t handle, Type* value) { \
    *value = static_cast<Type>(state(handle)->member);     \
    return CUBLAS_STATUS_SUCCESS;                          \
  }
FERRO_SIM_KEPT(cublasSetStream_v2, cublasGetStream_v2, cudaStream_t, stream)
FERRO_SIM_KEPT(cublasSetPointerMode_v2, cublasGetPointerMode_v2, cublasPointerMode_t, pointer_mode)
FERRO_SIM_KEPT(cublasSetMathMode, cublasGetMathMode, cublasMath_t, math_mode)
FERRO_SIM_KEPT(cublasSetAtomicsMode, cublasGetAtomicsMode, cublasAtomicsMode_t, atomics_mode)
FERRO_SIM_KEPT(cublasSetSmCountTarget, cublasGetSmCountTarget, int, sm_count_target)

#define FERRO_SIM_MATRIX(name)                                                                     \
  cublasStatus_t name(int rows, int columns, int element, const void* from, int from_ld, void* to, \
                      int to_ld, cudaStream_t stream) {                                            \
    return copy_matrix(rows, columns, element, from, from_ld, to, to_ld, stream);                  \
  }
FERRO_SIM_MATRIX(cublasSetMatrixAsync)
FERRO_SIM_MATRIX(cublasGetMatrixAsync)

// A vector is a matrix of one row.
#define FERRO_SIM_VECTOR(name)                                                                    \
  cublasStatus_t name(int n, int element, const void* from, int from_step, void* to, int to_step, \
                      cudaStream_t stream) {                                                      \
    return copy_matrix(1, n, element, from, from_step, to, to_step, stream);                      \
  }
FERRO_SIM_VECTOR(cublasSetVectorAsync)
FERRO_SIM_VECTOR(cublasGetVectorAsync)

}  // extern "C"
