// The loss of connectionist temporal classification in cuDNN.
#include "sim/libraries/cudnn/handle.h"
#include "sim/libraries/cudnn/tensors.h"
#include "sim/libraries/cudnn/workspaces.h"

#include <algorithm>

struct cudnnCTCLossStruct {
  int most_labels = 0;
};

namespace ferro::sim {
namespace {

// `scores`: of classes, for sequences, for steps.
cudnnStatus_t ctc_loss(cudnnTensorDescriptor_t scores, std::int64_t most_labels, bool from_host,
                       size_t* bytes) {
  if (scores == nullptr || bytes == nullptr) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
  const auto& sizes = scores->sizes;
  if (sizes.size() != 3) return CUDNN_STATUS_BAD_PARAM;
  *bytes = ctc_loss_workspace(sizes[0], sizes[1], sizes[2], most_labels, from_host);
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace
}  // namespace ferro::sim

using namespace ferro::sim;

extern "C" {

cudnnStatus_t cudnnCreateCTCLossDescriptor(cudnnCTCLossDescriptor_t* made) { return create(made); }
cudnnStatus_t cudnnDestroyCTCLossDescriptor(cudnnCTCLossDescriptor_t made) { return destroy(made); }

cudnnStatus_t cudnnSetCTCLossDescriptorEx(cudnnCTCLossDescriptor_t, cudnnDataType_t,
                                          cudnnLossNormalizationMode_t, cudnnNanPropagation_t) {
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetCTCLossDescriptor_v9(cudnnCTCLossDescriptor_t loss, cudnnDataType_t,
                                           cudnnLossNormalizationMode_t, cudnnCTCGradMode_t,
                                           int most_labels) {
  if (loss == nullptr) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
  loss->most_labels = most_labels;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetCTCLossWorkspaceSize(cudnnHandle_t, const cudnnTensorDescriptor_t scores,
                                           const cudnnTensorDescriptor_t, const int*,
                                           const int* lengths, const int*, cudnnCTCLossAlgo_t,
                                           cudnnCTCLossDescriptor_t, size_t* bytes) {
  const bool any = scores != nullptr && scores->sizes.size() == 3 && scores->sizes[1] > 0;
  const int most = any ? *std::max_element(lengths, lengths + scores->sizes[1]) : 0;
  return ctc_loss(scores, most, true, bytes);
}

cudnnStatus_t cudnnGetCTCLossWorkspaceSize_v8(cudnnHandle_t, cudnnCTCLossAlgo_t,
                                              cudnnCTCLossDescriptor_t loss,
                                              const cudnnTensorDescriptor_t scores,
                                              const cudnnTensorDescriptor_t, size_t* bytes) {
  if (loss == nullptr) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
  return ctc_loss(scores, loss->most_labels, false, bytes);
}

cudnnStatus_t cudnnCTCLoss(cudnnHandle_t handle, const cudnnTensorDescriptor_t, const void*,
                           const int*, const int*, const int*, void*, const cudnnTensorDescriptor_t,
                           void*, cudnnCTCLossAlgo_t, cudnnCTCLossDescriptor_t, void*, size_t) {
  return run(handle);
}

cudnnStatus_t cudnnCTCLoss_v8(cudnnHandle_t handle, cudnnCTCLossAlgo_t, cudnnCTCLossDescriptor_t,
                              const cudnnTensorDescriptor_t, const void*, const int*, const int*,
                              const int*, void*, const cudnnTensorDescriptor_t, void*, size_t,
                              void*) {
  return run(handle);
}
}
