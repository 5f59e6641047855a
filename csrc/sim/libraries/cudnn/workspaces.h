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
};

// The sizes of copies of the tensors in the layout of kernels for tensor cores.
struct TensorCopies {
  explicit TensorCopies(const ConvolutionShape& shape);
  std::int64_t all() const { return inputs + outputs + weights; }

  std::int64_t inputs, outputs, weights;
};

// Tensor-core kernels need the channels last. With another layout all three tensors are copied.
std::size_t workspace_of(const ConvolutionShape& shape, Pass pass);

// Only for tensors with the channels last, of `rows` positions in all images.
std::size_t normalization_workspace(std::int64_t rows, std::int64_t channels, bool backward);

struct RecurrentShape {
  std::int64_t gates = 1;  // of one step: 4 for an LSTM, 3 for a GRU
  std::int64_t hidden = 0;
  std::int64_t inputs = 0;
  std::int64_t projected = 0;  // outputs of a projection, equal to `hidden` without one
  std::int64_t layers = 1;
  std::int64_t directions = 1;
  std::int64_t element = 4;  // bytes
  bool biases = true;
  bool dropout = false;
};

// Where a matrix or a bias of one gate lies among all weights, in bytes. `part` counts the matrices
// for the layer's input, then those for its state, then the projection's.
struct WeightPlace {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t matrix_offset = 0;
  std::int64_t bias_offset = -1;  // negative: there is none
};

std::size_t weight_bytes(const RecurrentShape& shape);
// `layer` counts the directions too: 2 * layer + direction where there are two.
WeightPlace weight_place(const RecurrentShape& shape, std::int64_t layer, std::int64_t part);
// `rows` are steps times sequences.
std::size_t recurrent_workspace(const RecurrentShape& shape, std::int64_t rows);
std::size_t recurrent_reserve(const RecurrentShape& shape, std::int64_t rows);

}  // namespace ferro::sim
