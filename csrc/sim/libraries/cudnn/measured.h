// Workspaces of convolutions that were measured on a GPU, and of those that are like one of them.
//
// How cuDNN chooses among its kernels is not documented, but the choice seldom differs between two
// convolutions of one window that are near in channels and positions. A kernel's workspace consists
// of copies of tensors and of partial sums, so that of one convolution gives another's. The nearest
// five vote on the kind of kernel, and the nearest one of that kind gives the bytes.
//
// `python -m benchmarks.training.workspaces --table` measures the cases in measured.inc again.
#pragma once

#include "sim/libraries/cudnn/workspaces.h"

#include <array>
#include <cstdint>
#include <optional>

namespace ferro::sim {

// A line of measured.inc, as PyTorch was called. Dimensions that a convolution does not have are 0.
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

// None where no measured convolution is like this one. Thread-safe.
std::optional<Workspace> measured_workspace(const ConvolutionShape& shape, Pass pass);

}  // namespace ferro::sim
