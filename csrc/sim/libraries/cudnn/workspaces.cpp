#include "sim/libraries/cudnn/workspaces.h"

#include "sim/libraries/cudnn/measured.h"

#include <algorithm>
#include <optional>

namespace ferro::sim {
namespace {

// Kernels for 16-bit elements need multiples of 8 channels; those for floats accept any number.
std::int64_t padded(std::int64_t channels, std::int64_t element) {
  const std::int64_t step = element == 2 ? 8 : 1;
  return (channels + step - 1) / step * step;
}

std::int64_t tiles(std::int64_t length, std::int64_t tile) { return (length + tile - 1) / tile; }

// A weight gradient consists of few long sums, which the 132 multiprocessors of an H100 split.
std::int64_t partial_sums(const ConvolutionShape& s) {
  const std::int64_t columns = s.inputs / s.groups * s.window;
  const bool narrow = s.outputs < 128;
  const std::int64_t tile = narrow ? 64 : 128;
  const bool product = s.window == 1 && !s.strided;
  std::int64_t slices = (product ? 264 : 132) / (tiles(s.outputs, tile) * tiles(columns, tile));
  std::int64_t least = 6000;  // terms of a sum
  if (s.element == 2) {
    slices /= narrow ? 1 : 4;
    least = 25000;
  }
  const bool split = slices > 1 && s.images * s.output_places >= least;
  return split ? slices * s.outputs * columns * 4 : 0;
}

std::int64_t depthwise(const ConvolutionShape& s, Pass pass) {
  const bool sums = s.channels_last && s.element == 2 && pass == Pass::kWeightGradient;
  constexpr std::int64_t kPartialSums = 256;
  return sums ? s.outputs * s.window * kPartialSums * 4 : 0;
}

std::int64_t channels_last(const ConvolutionShape& s, Pass pass) {
  const TensorCopies copies(s);
  if (s.element == 2) {
    const bool inputs = s.inputs % 8 != 0;
    const bool outputs = s.outputs % 8 != 0;
    return copies.inputs * inputs + copies.outputs * outputs + copies.weights * (inputs || outputs);
  }
  const bool product = s.window == 1 && !s.strided;
  if (s.inputs % (product ? 2 : 4) == 0) {
    return s.groups > 1 && pass == Pass::kWeightGradient ? copies.inputs + copies.outputs : 0;
  }
  return pass == Pass::kForward ? copies.inputs + copies.weights : copies.all();
}

// A convolution with a window of one position and no stride is a matrix product, and needs no
// copies.
std::int64_t pointwise(const ConvolutionShape& s, Pass pass) {
  const TensorCopies copies(s);
  const std::int64_t both = copies.inputs + copies.outputs;
  // Tensor cores cannot read the alignment of rows with an odd number of elements.
  if (s.input_places % 2 != 0) return both;
  const std::int64_t sums = s.outputs * s.inputs / s.groups * 4 * s.images;
  return pass == Pass::kWeightGradient ? std::min(sums, both) : 0;
}

std::int64_t channels_first(const ConvolutionShape& s, Pass pass) {
  // Of images with few channels, such as decoded files.
  constexpr std::int64_t kFew = 4;
  constexpr std::int64_t kLargeWindow = 49;
  if (s.element == 4 && s.inputs <= kFew) {
    if (pass == Pass::kInputGradient) return 0;
    const bool aligned = s.inputs % 4 == 0;
    if (s.window < kLargeWindow && (pass == Pass::kForward || s.strided || !aligned)) return 0;
  }
  const TensorCopies copies(s);
  // These kernels write the results of few positions in their own layout.
  constexpr std::int64_t kFewPositions = 150'000;
  if (s.element == 4 && s.inputs > kFew && s.outputs == 64 && s.window > 1 && s.groups == 1 &&
      pass == Pass::kForward && s.output_places % 4 == 0 &&
      (s.inputs < 64 || s.images * s.output_places < kFewPositions)) {
    return copies.inputs + copies.weights;
  }
  return copies.all() - (s.window > 1 ? 0 : copies.weights);
}

// The kernels for three dimensions that differ from those for two.
std::optional<std::int64_t> of_volume(const ConvolutionShape& s, Pass pass) {
  constexpr std::int64_t kFew = 16;        // channels
  constexpr std::int64_t kNarrow = 32;     // channels
  constexpr std::int64_t kLarge = 64;      // positions of a window
  constexpr std::int64_t kMany = 1 << 19;  // positions of an image
  const TensorCopies copies(s);
  const bool is_float = s.element == 4;
  if (s.groups > 1) {
    // Each channel becomes a group of eight.
    const bool expands = pass == Pass::kInputGradient    ? !is_float || s.inputs <= kNarrow
                         : pass == Pass::kWeightGradient ? is_float || s.inputs <= kNarrow
                                                         : false;
    const bool deep = s.groups == s.inputs && s.groups == s.outputs && s.channels_last;
    return deep && expands ? std::optional(8 * copies.inputs) : std::nullopt;
  }
  if (s.window == 1 && !s.strided) {
    if (s.channels_last) return !is_float && s.outputs % 8 != 0 ? std::optional(0) : std::nullopt;
    const bool copied = pass == Pass::kWeightGradient && s.input_places > kMany;
    return copied && s.outputs >= kFew ? std::optional(copies.all()) : std::nullopt;
  }
  if (!is_float) {
    return pass == Pass::kForward && s.inputs < 4 ? std::optional(0) : std::nullopt;
  }
  if (!s.channels_last) {
    if (s.inputs <= 4) {
      return pass == Pass::kWeightGradient ? std::optional(copies.all()) : std::nullopt;
    }
    // These kernels write the results in their own layout.
    const bool direct = s.outputs == 64 || s.window % 2 == 0;
    if (pass == Pass::kForward && s.window == 8 && s.inputs <= kNarrow) return 0;
    return pass == Pass::kForward && direct ? std::optional(copies.inputs + copies.weights)
                                            : std::nullopt;
  }
  if (s.inputs % 4 != 0) return std::nullopt;
  switch (pass) {
    case Pass::kForward:
      if (s.window >= kLarge) return copies.all();
      return s.outputs <= kFew ? std::optional(copies.inputs) : std::nullopt;
    case Pass::kInputGradient:
      return s.inputs <= 4 ? std::optional(copies.all()) : std::nullopt;
    case Pass::kWeightGradient:
      return (s.inputs <= kNarrow && s.window % 2 != 0) || s.outputs < 8 || s.window >= kLarge
                 ? std::optional(copies.all())
                 : std::nullopt;
  }
  return std::nullopt;
}

std::int64_t rule(const ConvolutionShape& s, Pass pass) {
  const bool deep = s.groups > 1 && s.groups == s.inputs && s.groups == s.outputs;
  const bool product = s.window == 1 && !s.strided;
  const bool sums = pass == Pass::kWeightGradient && !deep && (s.channels_last || !product);
  const std::optional<std::int64_t> known = s.is_volume ? of_volume(s, pass) : std::nullopt;
  const std::int64_t copies = known             ? *known
                              : deep            ? depthwise(s, pass)
                              : s.channels_last ? channels_last(s, pass)
                              : product         ? pointwise(s, pass)
                                                : channels_first(s, pass);
  return copies + (sums ? partial_sums(s) : 0);
}

}  // namespace

TensorCopies::TensorCopies(const ConvolutionShape& s)
    : inputs(s.images * padded(s.inputs, s.element) * s.input_places * s.element),
      outputs(s.images * padded(s.outputs, s.element) * s.output_places * s.element),
      weights(padded(s.outputs, s.element) * padded(s.inputs / s.groups, s.element) * s.window *
              s.element) {}

Workspace workspace_of(const ConvolutionShape& s, Pass pass) {
  // 64-bit elements have separate kernels.
  if (s.element > 4) return {};
  if (const std::optional<Workspace> measured = measured_workspace(s, pass)) return *measured;
  return {static_cast<std::size_t>(rule(s, pass)), false};
}

std::size_t normalization_workspace(std::int64_t rows, std::int64_t channels, bool backward) {
  // Partial sums of rows, and of these once more; the backward pass keeps sums of fewer.
  const std::int64_t sums = backward ? tiles(rows, 192) * 4 : tiles(rows, 64) * 2 + rows / 4096;
  return static_cast<std::size_t>(4 * channels * sums + channels / 16 + (backward ? 1056 : 1072));
}

}  // namespace ferro::sim
