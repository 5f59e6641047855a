// How a cuBLAS function becomes work on a stream: a kernel whose launch says how much it would do.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace ferro::sim {

// Enqueues on `stream` the stand-in of a product of `m` x `k` by `k` x `n`, `batch` times.
CUresult enqueue_product(CUstream stream, std::int64_t m, std::int64_t n, std::int64_t k,
                         std::int64_t batch);

// Enqueues the stand-in of any other function.
CUresult enqueue_operation(CUstream stream);

}  // namespace ferro::sim
