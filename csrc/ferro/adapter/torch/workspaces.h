// The workspaces of cuBLAS, which PyTorch keeps as tensors' memory in tables.
#pragma once

#include "ferro/adapter/torch/convert.h"

#include <ATen/cuda/CUDAContextLight.h>
#include <c10/core/Allocator.h>

#include <mutex>
#include <set>
#include <shared_mutex>
#include <utility>

namespace ferro {

// The memory of an entry, which has its size too since PyTorch 2.14.
inline const c10::DataPtr& memory_of_workspace(const c10::DataPtr& entry) { return entry; }
inline const c10::DataPtr& memory_of_workspace(const std::pair<c10::DataPtr, std::size_t>& entry) {
  return entry.first;
}

// Calls `visit(const c10::DataPtr&)` for each workspace, under the lock of its table.
template <typename Visit>
void for_each_workspace(Visit visit) {
  for (auto* table : {&at::cuda::cublas_handle_stream_to_workspace(),
                      &at::cuda::cublaslt_handle_stream_to_workspace()}) {
    const std::shared_lock lock(table->mutex);
    for (const auto& [key, entry] : table->map) {
      visit(memory_of_workspace(entry));
    }
  }
}

inline std::set<DevicePtr> addresses_of_workspaces() {
  std::set<DevicePtr> found;
  for_each_workspace([&](const c10::DataPtr& data) { found.insert(to_device_ptr(data.get())); });
  return found;
}

}  // namespace ferro
