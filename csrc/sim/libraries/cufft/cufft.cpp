// cuFFT: plans and their execution. Declared by its binary interface, not by its headers.
#include "sim/libraries/cublas_lt/blas_operation.h"
#include "sim/libraries/cuda/derived_workspaces.h"
#include "sim/libraries/cuda/library_memory.h"
#include "sim/libraries/cufft/workspaces.h"

#include <algorithm>
#include <library_types.h>
#include <map>
#include <mutex>

namespace {

using ferro::sim::FourierPlan;
using ferro::sim::LibraryMemory;
using ferro::sim::Transform;

enum Result : int {
  kSuccess = 0,
  kInvalidPlan = 1,
  kAllocFailed = 2,
  kInvalidValue = 4,
  kExecFailed = 6,
  kInvalidSize = 8,
};

struct Plan {
  CUstream stream = nullptr;
  LibraryMemory tables;
};

struct Plans {
  std::mutex mutex;
  int last = 0;
  std::map<int, Plan> by_number;
  std::map<CUdevice, LibraryMemory> kernels;

  Plan* find(int number) {
    const auto found = by_number.find(number);
    return found == by_number.end() ? nullptr : &found->second;
  }
};

// Never destroyed: the driver may be gone first.
Plans& plans() {
  static Plans* const all = new Plans;
  return *all;
}

bool is_real(cudaDataType type) {
  return type == CUDA_R_16F || type == CUDA_R_32F || type == CUDA_R_64F;
}

std::uint8_t element_of(cudaDataType type) {
  switch (type) {
    case CUDA_R_16F:
    case CUDA_C_16F:
      return 4;
    case CUDA_R_64F:
    case CUDA_C_64F:
      return 16;
    default:
      return 8;
  }
}

}  // namespace

extern "C" {

int cufftCreate(int* plan) {
  if (plan == nullptr) return kInvalidValue;
  Plans& p = plans();
  const std::lock_guard lock(p.mutex);
  *plan = ++p.last;
  p.by_number[*plan];
  return kSuccess;
}

int cufftDestroy(int plan) {
  Plans& p = plans();
  const std::lock_guard lock(p.mutex);
  return p.by_number.erase(plan) == 1 ? kSuccess : kInvalidPlan;
}

int cufftSetAutoAllocation(int, int) { return kSuccess; }

int cufftSetWorkArea(int, void*) { return kSuccess; }

int cufftGetVersion(int* version) {
  *version = 12000;
  return kSuccess;
}

int cufftSetStream(int plan, CUstream stream) {
  Plans& p = plans();
  const std::lock_guard lock(p.mutex);
  Plan* const found = p.find(plan);
  if (found == nullptr) return kInvalidPlan;
  found->stream = stream;
  return kSuccess;
}

int cufftXtMakePlanMany(int plan, int rank, const long long* sizes, const long long* input_embed,
                        long long input_stride, long long, cudaDataType input_type,
                        const long long*, long long output_stride, long long output_distance,
                        cudaDataType output_type, long long batch, std::size_t* work_size,
                        cudaDataType) {
  constexpr std::size_t kKernels = 8 << 20;
  FourierPlan made;
  if (rank < 1 || rank > static_cast<int>(made.sizes.size()) || work_size == nullptr) {
    return kInvalidValue;
  }
  if (batch < 1 || std::any_of(sizes, sizes + rank, [](long long size) { return size < 1; })) {
    return kInvalidSize;
  }
  std::copy_n(sizes, rank, made.sizes.begin());
  made.transform = is_real(input_type)    ? Transform::kFromReal
                   : is_real(output_type) ? Transform::kToReal
                                          : Transform::kComplex;
  made.element = element_of(input_type);
  // Kernels for 16 bits write rows without gaps only.
  const bool has_gaps = made.element == 4 && made.transform == Transform::kFromReal &&
                        output_distance != sizes[rank - 1] / 2 + 1;
  made.is_apart = input_embed != nullptr && (input_stride != 1 || output_stride != 1 || has_gaps);
  made.batch = batch;

  Plans& p = plans();
  const std::lock_guard lock(p.mutex);
  Plan* const found = p.find(plan);
  if (found == nullptr) return kInvalidPlan;
  ferro::sim::ensure_context();
  CUdevice device = 0;
  if (cuCtxGetDevice(&device) != CUDA_SUCCESS) return kExecFailed;
  if (!p.kernels[device].take(kKernels) || !found->tables.take(table_bytes(made))) {
    return kAllocFailed;
  }
  const ferro::sim::FourierWorkspace workspace = workspace_of(made);
  std::int64_t bytes = made.batch * made.element;
  for (int i = 0; i < rank; ++i) bytes *= sizes[i];
  if (!workspace.is_measured) {
    ferro_sim_note_derived_workspace(static_cast<std::uint64_t>(bytes));
  }
  *work_size = workspace.bytes;
  return kSuccess;
}

int cufftXtExec(int plan, void*, void*, int) {
  CUstream stream = nullptr;
  {
    Plans& p = plans();
    const std::lock_guard lock(p.mutex);
    const Plan* const found = p.find(plan);
    if (found == nullptr) return kInvalidPlan;
    stream = found->stream;
  }
  return ferro::sim::enqueue_operation(stream) == CUDA_SUCCESS ? kSuccess : kExecFailed;
}

}  // extern "C"
