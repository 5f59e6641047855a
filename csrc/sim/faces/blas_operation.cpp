#include "sim/faces/blas_operation.h"

#include <algorithm>

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

CUresult launch(CUfunction function, std::int64_t blocks, CUstream stream) {
  constexpr std::int64_t kMaxBlocks = INT32_MAX;
  if (function == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  const auto grid = static_cast<unsigned>(std::clamp<std::int64_t>(blocks, 1, kMaxBlocks));
  return cuLaunchKernel(function, grid, 1, 1, 256, 1, 1, 0, stream, nullptr, nullptr);
}

std::int64_t tiles(std::int64_t length, std::int64_t tile) { return (length + tile - 1) / tile; }

}  // namespace

CUresult enqueue_product(CUstream stream, std::int64_t m, std::int64_t n, std::int64_t k,
                         std::int64_t batch) {
  static const CUfunction function = load_function("ferro_sim_matrix_product");
  // One block is one step of 64 along k for a tile of 128 x 128.
  return launch(function, tiles(m, 128) * tiles(n, 128) * tiles(k, 64) * batch, stream);
}

CUresult enqueue_operation(CUstream stream) {
  static const CUfunction function = load_function("ferro_sim_blas");
  return launch(function, 1, stream);
}

}  // namespace ferro::sim
