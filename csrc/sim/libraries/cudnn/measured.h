// Workspaces of convolutions that were measured on a GPU.
//
// `python -m benchmarks.training.workspaces --table` measures the cases in measured.inc again.
#pragma once

#include "sim/libraries/cudnn/workspaces.h"

#include <array>
#include <cstdint>
#include <optional>

namespace ferro::sim {

// As PyTorch was called. Dimensions that a convolution does not have are 0.
struct MeasuredConvolution {
  using Steps = std::array<std::uint8_t, 3>;
  std::uint8_t type;  // 0 float32, 1 bfloat16, 2 float16
  bool channels_last;
  bool transposed;
  std::uint16_t images, inputs, outputs, groups;
  std::array<std::int32_t, 3> size;
  Steps window, stride, padding;
  std::array<std::int64_t, 3> bytes;  // forward, gradients of the input and of the weights
};

// As cuDNN sees it: a transposed convolution is the gradient of another's input.
ConvolutionShape shape_of(const MeasuredConvolution& measured);
std::int64_t bytes_of(const MeasuredConvolution& measured, Pass pass);

// None unless this convolution was measured. Thread-safe.
std::optional<std::int64_t> measured_workspace(const ConvolutionShape& shape, Pass pass);

}  // namespace ferro::sim
