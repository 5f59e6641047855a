// Recurrent networks in cuDNN: the sizes of their memory, and the address of each weight.
#include "sim/libraries/cudnn/handle.h"
#include "sim/libraries/cudnn/recurrent_sizes.h"
#include "sim/libraries/cudnn/tensors.h"

#include <cstddef>
#include <numeric>

struct cudnnRNNStruct {
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  ferro::sim::RecurrentShape shape;
};

struct cudnnRNNDataStruct {
  ferro::sim::Sequences sequences;
};

namespace ferro::sim {
namespace {

RecurrentCell cell_of(cudnnRNNMode_t mode) {
  return mode == CUDNN_LSTM  ? RecurrentCell::kLstm
         : mode == CUDNN_GRU ? RecurrentCell::kGru
                             : RecurrentCell::kPlain;
}

RecurrentAlgorithm algorithm_of(cudnnRNNAlgo_t algorithm) {
  switch (algorithm) {
    case CUDNN_RNN_ALGO_PERSIST_STATIC:
      return RecurrentAlgorithm::kPersistStatic;
    case CUDNN_RNN_ALGO_PERSIST_DYNAMIC:
      return RecurrentAlgorithm::kPersistDynamic;
    case CUDNN_RNN_ALGO_PERSIST_STATIC_SMALL_H:
      return RecurrentAlgorithm::kPersistSmall;
    default:
      return RecurrentAlgorithm::kStandard;
  }
}

std::int64_t count_of(cudnnRNNBiasMode_t biases) {
  return biases == CUDNN_RNN_NO_BIAS ? 0 : biases == CUDNN_RNN_DOUBLE_BIAS ? 2 : 1;
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

cudnnStatus_t cudnnSetRNNDescriptor_v8(cudnnRNNDescriptor_t rnn, cudnnRNNAlgo_t algorithm,
                                       cudnnRNNMode_t mode, cudnnRNNBiasMode_t biases,
                                       cudnnDirectionMode_t directions, cudnnRNNInputMode_t,
                                       cudnnDataType_t type, cudnnDataType_t, cudnnMathType_t,
                                       int32_t inputs, int32_t hidden, int32_t projected,
                                       int32_t layers, cudnnDropoutDescriptor_t dropout,
                                       uint32_t flags) {
  if (rnn == nullptr) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
  RecurrentShape shape;
  shape.cell = cell_of(mode);
  shape.algorithm = algorithm_of(algorithm);
  shape.hidden = hidden;
  shape.inputs = inputs;
  shape.projected = projected > 0 ? projected : hidden;
  shape.layers = layers;
  shape.directions = directions == CUDNN_BIDIRECTIONAL ? 2 : 1;
  shape.biases = count_of(biases);
  shape.element = bytes_of(type);
  shape.is_bfloat = type == CUDNN_DATA_BFLOAT16;
  shape.dropout = dropout != nullptr && dropout->rate > 0;
  shape.padded = (flags & CUDNN_RNN_PADDED_IO_ENABLED) != 0;
  if (!has_projection_kernels(shape)) return CUDNN_STATUS_NOT_SUPPORTED;
  *rnn = {type, shape};
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetRNNDataDescriptor(cudnnRNNDataDescriptor_t data, cudnnDataType_t,
                                        cudnnRNNDataLayout_t, int steps, int sequences, int,
                                        const int lengths[], void*) {
  if (data == nullptr || lengths == nullptr) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
  const std::int64_t rows = std::accumulate(lengths, lengths + sequences, std::int64_t{0});
  data->sequences = {steps, sequences, rows};
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
  if (!has_recurrent_kernels(rnn->shape)) return CUDNN_STATUS_NOT_SUPPORTED;
  const bool training = mode == CUDNN_FWD_MODE_TRAINING;
  if (workspace != nullptr) {
    *workspace = recurrent_workspace(rnn->shape, data->sequences, training);
  }
  if (reserve != nullptr) *reserve = training ? recurrent_reserve(rnn->shape, data->sequences) : 0;
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
