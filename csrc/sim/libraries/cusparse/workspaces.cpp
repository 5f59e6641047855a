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

// What a scan of so many numbers keeps for its tiles, beyond what a buffer holds anyway.
std::int64_t scan_bytes(std::int64_t count, std::int64_t tile, std::int64_t step) {
  return round_up(16 * ceil_div(count, tile), step) - step;
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

std::size_t estimation_buffer(std::int64_t left_count) {
  if (left_count == 0) return 823;
  return static_cast<std::size_t>(1079 + 12 * left_count + scan_bytes(left_count, 896, 256));
}

std::size_t sparse_product_buffer(std::int64_t rows, std::int64_t products, cudaDataType type) {
  constexpr std::int64_t kFewRows = 496;
  if (products == 0) return 0;
  // One kernel sorts few rows by their numbers of products.
  const std::int64_t sort =
      rows <= kFewRows ? 0 : round_up(8 * rows, 512) + 744 + scan_bytes(rows, 2304, 512);
  const std::int64_t wide = type == CUDA_C_64F ? 12 * ceil_div(products, 512) - 1011 : 0;
  return static_cast<std::size_t>(5159 + products * (12 + 2 * bytes_of(type)) +
                                  std::max(4 * products, 8 * rows + 8) +
                                  std::max({sort, scan_bytes(products, 768, 256), wide}));
}

std::size_t sum_buffer(std::int64_t rows) {
  return static_cast<std::size_t>(512 + scan_bytes(rows, 4096, 128));
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
