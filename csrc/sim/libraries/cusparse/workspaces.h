// The sizes of the buffers that cuSPARSE's functions ask for, in bytes. Pure functions.
//
// They were asked for on an H200 (cuSPARSE 12.6) with 900 random matrices, and 929 pairs of them. Those
// of products are equal in all cases, but for products of vectors with 16 bits. Those of triangular
// solvers and sorts are fitted, and differ by up to 8 %.
#pragma once

#include <cstddef>
#include <cstdint>
#include <library_types.h>

namespace ferro::sim {

struct SparseShape {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t count = 0;  // of elements that are not zero
  std::int64_t index = 4;  // bytes
  cudaDataType type = CUDA_R_32F;
};

// A compressed matrix times one of `columns` columns, or a vector.
std::size_t product_buffer(const SparseShape& matrix, std::int64_t columns, bool first_algorithm);
std::size_t vector_buffer(const SparseShape& matrix);
// A product of dense matrices at the places of a sparse one.
std::size_t sampled_buffer(const SparseShape& places);
// Two compressed matrices, of which the left one has `left_count` elements and their result has `rows`:
// the buffer that finds out the number of products of their elements, and that of these.
std::size_t estimation_buffer(std::int64_t left_count);
std::size_t sparse_product_buffer(std::int64_t rows, std::int64_t products, cudaDataType type);
// A sum of two compressed matrices.
std::size_t sum_buffer(std::int64_t rows);
// Triangular systems with `columns` right sides; 0 is a vector.
std::size_t solver_buffer(const SparseShape& matrix, std::int64_t columns);
// Sorts the elements by place, with as many arrays of them.
std::size_t sort_buffer(std::int64_t count, int arrays);

}  // namespace ferro::sim
