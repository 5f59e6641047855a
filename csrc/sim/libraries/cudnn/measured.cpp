#include "sim/libraries/cudnn/measured.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

namespace ferro::sim {
namespace {

// As PyTorch was called. Dimensions that a convolution does not have are 0.
struct Measured {
  using Sizes = std::array<int, 3>;
  int type;  // 0 float32, 1 bfloat16, 2 float16
  bool channels_last;
  bool transposed;
  int images, inputs, outputs, groups;
  Sizes size, window, stride, padding;
  std::array<std::int64_t, 3> bytes;  // forward, gradients of the input and of the weights
};

constexpr Measured kMeasured[] = {
#include "sim/libraries/cudnn/measured.inc"
};

// A copy of a tensor counts 1, 2 and 4 for the input, the output and the weights.
constexpr unsigned kInput = 1, kOutput = 2, kWeights = 4, kAll = kInput | kOutput | kWeights;

std::int64_t of_copies(const ConvolutionShape& s, unsigned which) {
  const TensorCopies copies(s);
  return ((which & kInput) != 0 ? copies.inputs : 0) +
         ((which & kOutput) != 0 ? copies.outputs : 0) +
         ((which & kWeights) != 0 ? copies.weights : 0);
}

// Of one slice of the sums of weight gradients.
double bytes_of_sums(const ConvolutionShape& s) {
  return static_cast<double>(s.outputs * (s.inputs / s.groups) * s.window * 4);
}

struct Case {
  ConvolutionShape shape;
  std::int64_t bytes = 0;
};

// Cases differ in kernels unless they agree in these.
using Kind = std::tuple<Pass, bool, bool, std::int64_t, std::int64_t, bool, int, bool, bool, bool>;

Kind kind_of(const ConvolutionShape& s, Pass pass) {
  const std::int64_t step = s.element == 4 ? 4 : 8;  // elements of an aligned access
  const bool deep = s.groups == s.inputs && s.groups == s.outputs;
  const int grouped = s.groups == 1 ? 0 : deep ? 1 : 2;
  return {pass,
          s.is_volume,
          s.channels_last,
          s.element,
          s.window,
          s.strided,
          grouped,
          s.inputs % step == 0,
          s.outputs % step == 0,
          s.input_places % 2 == 0};
}

// The case as cuDNN sees it: a transposed convolution is another's gradient.
ConvolutionShape shape_of(const Measured& m) {
  ConvolutionShape s;
  s.images = m.images;
  s.inputs = m.inputs;
  s.outputs = m.outputs;
  s.groups = m.groups;
  s.element = m.type == 0 ? 4 : 2;
  s.is_half = m.type == 2;
  s.channels_last = m.channels_last;
  s.is_volume = m.size[2] != 0;
  for (std::size_t i = 0; i < m.size.size() && m.size[i] != 0; ++i) {
    s.window *= m.window[i];
    s.input_places *= m.size[i];
    s.strided = s.strided || m.stride[i] != 1;
    s.output_places *= m.transposed
                           ? (m.size[i] - 1) * m.stride[i] - 2 * m.padding[i] + m.window[i]
                           : (m.size[i] + 2 * m.padding[i] - m.window[i]) / m.stride[i] + 1;
  }
  if (m.transposed) {
    std::swap(s.inputs, s.outputs);
    std::swap(s.input_places, s.output_places);
  }
  return s;
}

const std::map<Kind, std::vector<Case>>& cases() {
  static const auto all = [] {
    std::map<Kind, std::vector<Case>> found;
    for (const Measured& m : kMeasured) {
      const ConvolutionShape shape = shape_of(m);
      std::array passes = {Pass::kForward, Pass::kInputGradient, Pass::kWeightGradient};
      if (m.transposed) {
        std::swap(passes[0], passes[1]);
      }
      for (std::size_t i = 0; i < passes.size(); ++i) {
        found[kind_of(shape, passes[i])].push_back({shape, m.bytes[i]});
      }
    }
    return found;
  }();
  return all;
}

double factors(std::int64_t one, std::int64_t other) {
  return std::abs(std::log2(static_cast<double>(one) / static_cast<double>(other)));
}

// In factors of two. Channels decide more than the number of positions.
double distance(const ConvolutionShape& one, const ConvolutionShape& other) {
  return factors(one.inputs, other.inputs) + factors(one.outputs, other.outputs) +
         (factors(one.images, other.images) + factors(one.output_places, other.output_places)) / 2 +
         (one.is_half == other.is_half ? 0 : 0.25);
}

// Those of the copies that leave the least of the measured bytes.
unsigned copies_in(const Case& measured) {
  constexpr std::int64_t kRounding = 4096;
  unsigned best = 0;
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (unsigned which = 0; which <= kAll; ++which) {
    const std::int64_t left = measured.bytes - of_copies(measured.shape, which);
    if (left >= -kRounding && std::abs(left) < least) {
      best = which;
      least = std::abs(left);
    }
  }
  return best;
}

}  // namespace

std::optional<std::int64_t> measured_workspace(const ConvolutionShape& shape, Pass pass) {
  constexpr double kFarthest = 1;
  const auto of_kind = cases().find(kind_of(shape, pass));
  if (of_kind == cases().end()) {
    return std::nullopt;
  }
  const auto nearest = std::ranges::min_element(
      of_kind->second, {}, [&](const Case& each) { return distance(shape, each.shape); });
  const double far = distance(shape, nearest->shape);
  if (far > kFarthest) {
    return std::nullopt;
  }
  if (far == 0 && shape.input_places == nearest->shape.input_places &&
      shape.groups == nearest->shape.groups) {
    return nearest->bytes;
  }
  const unsigned which = copies_in(*nearest);
  const std::int64_t left = nearest->bytes - of_copies(nearest->shape, which);
  const double growth =
      pass == Pass::kWeightGradient ? bytes_of_sums(shape) / bytes_of_sums(nearest->shape) : 1;
  return of_copies(shape, which) +
         static_cast<std::int64_t>(std::max(0.0, static_cast<double>(left) * growth));
}

}  // namespace ferro::sim
