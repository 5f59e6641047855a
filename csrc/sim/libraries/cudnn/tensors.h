// Descriptors of tensors and of dropout in cuDNN's legacy interface.
#pragma once

#include <cstdint>
#include <cudnn.h>
#include <vector>

struct cudnnTensorStruct {
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  std::vector<int> sizes;
  std::vector<int> strides;
};

struct cudnnFilterStruct {
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  cudnnTensorFormat_t format = CUDNN_TENSOR_NCHW;
  std::vector<int> sizes;
};

struct cudnnDropoutStruct {
  float rate = 0;
};

namespace ferro::sim {

inline std::int64_t bytes_of(cudnnDataType_t type) {
  return type == CUDNN_DATA_DOUBLE ? 8 : type == CUDNN_DATA_FLOAT ? 4 : 2;
}

template <typename T>
cudnnStatus_t create(T** made) {
  if (made == nullptr) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
  *made = new T;
  return CUDNN_STATUS_SUCCESS;
}

template <typename T>
cudnnStatus_t destroy(T* made) {
  delete made;
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace ferro::sim
