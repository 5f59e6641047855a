// The sizes of the workspaces that cuDNN requests. Pure functions of shapes, in bytes.
//
// Those of convolutions that are like none of the measured ones follow a rule, which is fitted to
// the requests of cuDNN 9.19 on an H100 and leaves out some partial sums.
// `benchmarks.training.workspaces` has other cases, and prints the differences.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ferro::sim {

enum class Pass { kForward, kInputGradient, kWeightGradient };

// An image has `inputs` channels of `input_places` positions each, a result `outputs` channels of
// `output_places`.
struct ConvolutionShape {
  std::int64_t images = 1;
  std::int64_t inputs = 1;
  std::int64_t outputs = 1;
  std::int64_t input_places = 1;
  std::int64_t output_places = 1;
  std::int64_t window = 1;  // positions
  std::int64_t groups = 1;
  std::int64_t element = 4;  // bytes
  bool is_half = false;      // of the two types of 16 bits: float16
  bool strided = false;
  bool channels_last = false;
  bool is_volume = false;  // three dimensions

  bool operator==(const ConvolutionShape&) const = default;
};

// The sizes of copies of the tensors in the layout of kernels for tensor cores.
struct TensorCopies {
  explicit TensorCopies(const ConvolutionShape& shape);
  std::int64_t all() const { return inputs + outputs + weights; }

  std::int64_t inputs, outputs, weights;
};

struct Workspace {
  std::size_t bytes = 0;
  bool is_exact = true;  // measured for this convolution, or none is needed
};

// Tensor-core kernels need the channels last. With another layout all three tensors are copied.
Workspace workspace_of(const ConvolutionShape& shape, Pass pass);

// Only for tensors with the channels last, of `rows` positions in all images.
std::size_t normalization_workspace(std::int64_t rows, std::int64_t channels, bool backward);

}  // namespace ferro::sim
