#include "sim/libraries/cudnn/workspaces.h"

#include "ferro/base/bytes.h"
#include "sim/libraries/cudnn/measured.h"
#include "sim/libraries/cudnn/predicted.h"

#include <functional>
#include <numeric>
#include <optional>

namespace ferro::sim {
namespace {

std::int64_t places(const ConvolutionShape::Sizes& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
}

}  // namespace

ConvolutionShape::Sizes ConvolutionShape::output_size() const {
  Sizes sizes{};
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const std::int64_t reach = dilation[i] * (window[i] - 1) + 1;
    sizes[i] = (size[i] + 2 * padding[i] - reach) / stride[i] + 1;
  }
  return sizes;
}

std::int64_t ConvolutionShape::input_places() const { return places(size); }
std::int64_t ConvolutionShape::output_places() const { return places(output_size()); }
std::int64_t ConvolutionShape::window_places() const { return places(window); }

std::int64_t ConvolutionShape::tensor_bytes() const {
  return images * (inputs * input_places() + outputs * output_places()) * element;
}

Workspace workspace_of(const ConvolutionShape& s, Pass pass) {
  // 64-bit elements have separate kernels.
  if (s.element > 4) return {};
  if (const std::optional<std::int64_t> measured = measured_workspace(s, pass)) {
    return {static_cast<std::size_t>(*measured), true};
  }
  return {static_cast<std::size_t>(predicted_workspace(s, pass)), false};
}

std::size_t normalization_workspace(std::int64_t rows, std::int64_t channels, bool backward) {
  // Partial sums of rows, and of these once more; the backward pass keeps sums of fewer.
  const std::int64_t sums =
      backward ? ceil_div(rows, 192) * 4 : ceil_div(rows, 64) * 2 + rows / 4096;
  return static_cast<std::size_t>(4 * channels * sums + channels / 16 + (backward ? 1056 : 1072));
}

std::size_t ctc_loss_workspace(std::int64_t steps, std::int64_t sequences, std::int64_t classes,
                               std::int64_t most_labels, bool targets_on_host) {
  // Probabilities of the classes, and twice of each label and of the blanks around them.
  const std::int64_t each = steps * (4 * classes + 8 * (2 * most_labels + 1));
  const std::int64_t labels = targets_on_host ? 12 * most_labels + 20 : 8 * most_labels + 12;
  return static_cast<std::size_t>(sequences * (each + labels));
}

}  // namespace ferro::sim
