#include "sim/libraries/cublas_lt/blas_operation.h"

#include "ferro/base/bytes.h"
#include "sim/libraries/cuda/thread_context.h"

#include <algorithm>
#include <iterator>

namespace ferro::sim {
namespace {

CUfunction load_function(const char* name) {
  static constexpr char kImage[] = ".version 9.0";
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  if (cuModuleLoadData(&module, kImage) != CUDA_SUCCESS) return nullptr;
  if (cuModuleGetFunction(&function, module, name) != CUDA_SUCCESS) return nullptr;
  return function;
}

CUresult launch(CUfunction function, std::int64_t blocks, CUstream stream, void** arguments) {
  constexpr std::int64_t kMaxBlocks = INT32_MAX;
  if (function == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  const auto grid = static_cast<unsigned>(std::clamp<std::int64_t>(blocks, 1, kMaxBlocks));
  return cuLaunchKernel(function, grid, 1, 1, 256, 1, 1, 0, stream, arguments, nullptr);
}

}  // namespace

Precision precision_of(cudaDataType type) {
  switch (type) {
    case CUDA_R_32F:
    case CUDA_C_32F:
      return Precision::kSingle;
    case CUDA_R_64F:
    case CUDA_C_64F:
      return Precision::kDouble;
    default:
      return Precision::kHalf;
  }
}

CUresult enqueue_product(CUstream stream, Product product, Operands operands) {
  static const CUfunction function = load_function(kProductKernel.data());
  // One block is one step of 64 along k for a tile of 128 x 128.
  const std::int64_t blocks =
      ceil_div(product.m, 128) * ceil_div(product.n, 128) * ceil_div(product.k, 64) * product.batch;
  void* arguments[] = {&product, &operands.a, &operands.b, &operands.out, &operands.workspace};
  static_assert(std::size(arguments) == 1 + kProductPointers);
  return launch(function, blocks, stream, arguments);
}

CUresult enqueue_operation(CUstream stream) {
  ensure_context();
  static const CUfunction function = load_function("ferro_sim_blas");
  return launch(function, 1, stream, nullptr);
}

}  // namespace ferro::sim
