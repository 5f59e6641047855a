// Turns a cuBLAS function into work on a stream: a kernel whose launch has the size of the
// operation.
#pragma once

#include "sim/streams/durations.h"

#include <cuda.h>

#include <cstdint>
#include <library_types.h>

namespace ferro::sim {

// Complex elements count as real ones, elements of 8 bits as those of 16.
Precision precision_of(cudaDataType type);

// Bytes of an element of 16 bits or more.
constexpr std::int64_t bytes_of(cudaDataType type) {
  switch (type) {
    case CUDA_R_16F:
    case CUDA_R_16BF:
      return 2;
    case CUDA_R_32F:
      return 4;
    case CUDA_C_64F:
      return 16;
    default:
      return 8;
  }
}

// The addresses of a product's operands, result and workspace, or of arrays of such addresses.
struct Operands {
  const void* a = nullptr;
  const void* b = nullptr;
  const void* out = nullptr;
  const void* workspace = nullptr;
};

// Enqueues the stand-in for `product` on `stream`.
CUresult enqueue_product(CUstream stream, Product product, Operands operands);

// Enqueues the stand-in for any other function.
CUresult enqueue_operation(CUstream stream);

}  // namespace ferro::sim
