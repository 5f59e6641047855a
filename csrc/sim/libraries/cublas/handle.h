// The object behind a cuBLAS handle. Not thread-safe: as with cuBLAS, a handle belongs to one
// thread at a time.
#pragma once

#include <cuda.h>

namespace ferro::sim {

struct BlasHandle {
  CUstream stream = nullptr;
  const void* workspace = nullptr;
  int pointer_mode = 0;
  int math_mode = 0;
  int atomics_mode = 0;
  int sm_count_target = 0;
};

}  // namespace ferro::sim
