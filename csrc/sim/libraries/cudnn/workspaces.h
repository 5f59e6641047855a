// The sizes of the workspaces that cuDNN requests. Pure functions of shapes, in bytes.
//
// Those of convolutions are the measured ones where a GPU was asked for the same convolution, and
// otherwise what decision trees predict from the shape.
// `benchmarks.training.workspaces` has other cases, and prints the differences.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace ferro::sim {

enum class Pass { kForward, kInputGradient, kWeightGradient };

// Dimensions that a convolution does not have are of size 1. One of one dimension uses the first.
struct ConvolutionShape {
  using Sizes = std::array<std::int64_t, 3>;

  std::int64_t images = 1;
  std::int64_t inputs = 1;  // channels
  std::int64_t outputs = 1;
  std::int64_t groups = 1;
  std::int64_t element = 4;  // bytes
  bool is_half = false;      // of the two types of 16 bits: float16
  bool allows_tf32 = true;   // of float32: kernels may use tensor cores
  bool channels_last = false;
  int dimensions = 2;
  Sizes size{1, 1, 1};
  Sizes window{1, 1, 1};
  Sizes stride{1, 1, 1};
  Sizes padding{0, 0, 0};  // on each side
  Sizes dilation{1, 1, 1};

  Sizes output_size() const;
  std::int64_t input_places() const;
  std::int64_t output_places() const;
  std::int64_t window_places() const;
  std::int64_t tensor_bytes() const;  // of the images and the results

  bool operator==(const ConvolutionShape&) const = default;
};

struct Workspace {
  std::size_t bytes = 0;
  bool is_exact = true;  // measured for this convolution, or none is needed
};

Workspace workspace_of(const ConvolutionShape& shape, Pass pass);

// Only for tensors with the channels last, of `rows` positions in all images.
std::size_t normalization_workspace(std::int64_t rows, std::int64_t channels, bool backward);

// Of the loss of connectionist temporal classification, for `sequences` of `steps` each, with scores of
// `classes`. `most_labels`: the length of the longest target if the targets are on the host, else the
// most that the caller allows (255 was measured).
std::size_t ctc_loss_workspace(std::int64_t steps, std::int64_t sequences, std::int64_t classes,
                               std::int64_t most_labels, bool targets_on_host);

}  // namespace ferro::sim
