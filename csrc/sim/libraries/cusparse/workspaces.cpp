#include "sim/libraries/cusparse/workspaces.h"

#include "ferro/base/bytes.h"
#include "sim/libraries/cublas_lt/blas_operation.h"

#include <algorithm>

namespace ferro::sim {
namespace {

// The first element of each block, as indices, and what aligns them.
std::size_t blocks_buffer(const SparseShape& matrix, std::int64_t per_block, std::int64_t more) {
  return static_cast<std::size_t>((ceil_div(matrix.count, per_block) + more) * matrix.index - 1);
}

}  // namespace

std::size_t product_buffer(const SparseShape& matrix, std::int64_t columns, bool first_algorithm) {
  if (columns == 1) return vector_buffer(matrix);
  return first_algorithm ? blocks_buffer(matrix, 256, 2) : blocks_buffer(matrix, 24, 1);
}

std::size_t vector_buffer(const SparseShape& matrix) {
  const bool is_wide = matrix.index == 8;
  switch (matrix.type) {
    case CUDA_R_16F:
    case CUDA_R_16BF:
      return static_cast<std::size_t>(550 + std::max<std::int64_t>(0, matrix.count - 1000) / 256 *
                                                matrix.index);
    case CUDA_R_64F:
      return blocks_buffer(matrix, is_wide ? 3072 : 3584, 2);
    case CUDA_C_32F:
    case CUDA_C_64F:
      return blocks_buffer(matrix, is_wide ? 512 : 896, 2);
    default:
      return blocks_buffer(matrix, is_wide ? 3072 : 4096, 2);
  }
}

std::size_t sampled_buffer(const SparseShape& places) {
  constexpr double kDense = 0.3;
  const auto all = static_cast<double>(places.rows) * static_cast<double>(places.columns);
  if (static_cast<double>(places.count) < kDense * all) return 1;
  return static_cast<std::size_t>((places.rows * places.columns + 1) * places.index - 1);
}

std::size_t solver_buffer(const SparseShape& matrix, std::int64_t columns) {
  const std::int64_t width = std::min<std::int64_t>(bytes_of(matrix.type), 8);
  const std::int64_t per_row = (columns == 0 ? 35 : 29) + 4 * matrix.index + 2 * (width - 4);
  return static_cast<std::size_t>(matrix.rows * per_row + matrix.count * (matrix.index + width) +
                                  matrix.rows * columns * width + 1200);
}

std::size_t sort_buffer(std::int64_t count, int arrays) {
  constexpr std::int64_t kLine = 128;
  const std::int64_t array = round_up(4 * count, kLine);
  const std::int64_t rest = 640 + ceil_div(count, 126 * kLine) * kLine;
  return static_cast<std::size_t>(arrays * array + rest);
}

}  // namespace ferro::sim
