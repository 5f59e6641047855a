// Recurrent networks in cuDNN: the sizes of their memory, and the address of each weight.
#include "sim/libraries/cudnn/handle.h"
#include "sim/libraries/cudnn/tensors.h"
#include "sim/libraries/cudnn/workspaces.h"

#include <cstddef>

struct cudnnRNNStruct {
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  ferro::sim::RecurrentShape shape;
};

struct cudnnRNNDataStruct {
  std::int64_t steps = 0;
  std::int64_t sequences = 0;
};

namespace ferro::sim {
namespace {

std::int64_t gates_of(cudnnRNNMode_t mode) {
  return mode == CUDNN_LSTM ? 4 : mode == CUDNN_GRU ? 3 : 1;
}

void describe(cudnnTensorDescriptor_t tensor, cudnnDataType_t type, std::int64_t rows,
              std::int64_t columns) {
  if (tensor == nullptr) return;
  const int height = static_cast<int>(rows);
  const int width = static_cast<int>(columns);
  *tensor = {type, {1, height, width}, {height * width, width, 1}};
}

}  // namespace
}  // namespace ferro::sim

using namespace ferro::sim;

extern "C" {

cudnnStatus_t cudnnCreateRNNDescriptor(cudnnRNNDescriptor_t* made) { return create(made); }
cudnnStatus_t cudnnDestroyRNNDescriptor(cudnnRNNDescriptor_t made) { return destroy(made); }
cudnnStatus_t cudnnCreateRNNDataDescriptor(cudnnRNNDataDescriptor_t* made) { return create(made); }
cudnnStatus_t cudnnDestroyRNNDataDescriptor(cudnnRNNDataDescriptor_t made) { return destroy(made); }

cudnnStatus_t cudnnSetRNNDescriptor_v8(cudnnRNNDescriptor_t rnn, cudnnRNNAlgo_t,
                                       cudnnRNNMode_t mode, cudnnRNNBiasMode_t biases,
                                       cudnnDirectionMode_t directions, cudnnRNNInputMode_t,
                                       cudnnDataType_t type, cudnnDataType_t, cudnnMathType_t,
                                       int32_t inputs, int32_t hidden, int32_t projected,
                                       int32_t layers, cudnnDropoutDescriptor_t dropout, uint32_t) {
  if (rnn == nullptr) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
  rnn->type = type;
  rnn->shape = {gates_of(mode),
                hidden,
                inputs,
                projected > 0 ? projected : hidden,
                layers,
                directions == CUDNN_BIDIRECTIONAL ? 2 : 1,
                bytes_of(type),
                biases != CUDNN_RNN_NO_BIAS,
                dropout != nullptr};
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetRNNDataDescriptor(cudnnRNNDataDescriptor_t data, cudnnDataType_t,
                                        cudnnRNNDataLayout_t, int steps, int sequences, int,
                                        const int[], void*) {
  if (data == nullptr) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
  *data = {steps, sequences};
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetRNNWeightSpaceSize(cudnnHandle_t, cudnnRNNDescriptor_t rnn, size_t* bytes) {
  if (rnn == nullptr || bytes == nullptr) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
  *bytes = weight_bytes(rnn->shape);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetRNNTempSpaceSizes(cudnnHandle_t, cudnnRNNDescriptor_t rnn,
                                        cudnnForwardMode_t mode, cudnnRNNDataDescriptor_t data,
                                        size_t* workspace, size_t* reserve) {
  if (rnn == nullptr || data == nullptr) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
  const std::int64_t rows = data->steps * data->sequences;
  if (workspace != nullptr) *workspace = recurrent_workspace(rnn->shape, rows);
  if (reserve != nullptr) {
    const bool training = mode == CUDNN_FWD_MODE_TRAINING;
    *reserve = training ? recurrent_reserve(rnn->shape, rows) : 0;
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetRNNWeightParams(cudnnHandle_t, cudnnRNNDescriptor_t rnn, int32_t layer,
                                      size_t, const void* weights, int32_t part,
                                      cudnnTensorDescriptor_t matrix, void** matrix_address,
                                      cudnnTensorDescriptor_t bias, void** bias_address) {
  if (rnn == nullptr) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
  const WeightPlace place = weight_place(rnn->shape, layer, part);
  auto* const start = const_cast<std::byte*>(static_cast<const std::byte*>(weights));
  describe(matrix, rnn->type, place.rows, place.columns);
  describe(bias, rnn->type, place.rows, 1);
  if (matrix_address != nullptr) *matrix_address = start + place.matrix_offset;
  if (bias_address != nullptr) {
    *bias_address = place.bias_offset < 0 ? nullptr : start + place.bias_offset;
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnRNNForward(cudnnHandle_t handle, cudnnRNNDescriptor_t, cudnnForwardMode_t,
                              const int32_t[], cudnnRNNDataDescriptor_t, const void*,
                              cudnnRNNDataDescriptor_t, void*, cudnnTensorDescriptor_t, const void*,
                              void*, cudnnTensorDescriptor_t, const void*, void*, size_t,
                              const void*, size_t, void*, size_t, void*) {
  return run(handle);
}

cudnnStatus_t cudnnRNNBackwardData_v8(cudnnHandle_t handle, cudnnRNNDescriptor_t, const int32_t[],
                                      cudnnRNNDataDescriptor_t, const void*, const void*,
                                      cudnnRNNDataDescriptor_t, void*, cudnnTensorDescriptor_t,
                                      const void*, const void*, void*, cudnnTensorDescriptor_t,
                                      const void*, const void*, void*, size_t, const void*, size_t,
                                      void*, size_t, void*) {
  return run(handle);
}

cudnnStatus_t cudnnRNNBackwardWeights_v8(cudnnHandle_t handle, cudnnRNNDescriptor_t,
                                         cudnnWgradMode_t, const int32_t[],
                                         cudnnRNNDataDescriptor_t, const void*,
                                         cudnnTensorDescriptor_t, const void*,
                                         cudnnRNNDataDescriptor_t, const void*, size_t, void*,
                                         size_t, void*, size_t, void*) {
  return run(handle);
}
}
