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

constexpr MeasuredConvolution kMeasured[] = {
#include "sim/libraries/cudnn/measured.inc"
};

// Copies of tensors. Kernels for tensor cores read 16 bytes at once; some copy tensors of other
// channels with more channels, some without.
struct Copies {
  bool inputs = false, outputs = false, weights = false;
  bool padded = false;

  auto operator<=>(const Copies&) const = default;
};

std::int64_t bytes_of(const Copies& copies, const ConvolutionShape& s) {
  const std::int64_t step = copies.padded ? (s.element == 4 ? 4 : 8) : 1;
  const auto channels = [&](std::int64_t count) { return (count + step - 1) / step * step; };
  const std::int64_t elements =
      copies.inputs * s.images * channels(s.inputs) * s.input_places +
      copies.outputs * s.images * channels(s.outputs) * s.output_places +
      copies.weights * channels(s.outputs) * channels(s.inputs / s.groups) * s.window;
  return elements * s.element;
}

constexpr Copies kAll{true, true, true, true};

// Of one slice of the sums of weight gradients.
double bytes_of_sums(const ConvolutionShape& s) {
  return static_cast<double>(s.outputs * (s.inputs / s.groups) * s.window * 4);
}

// Coordinates whose differences tell how unlike two convolutions are, in factors of two. Channels
// decide most, then the number of positions in all images and the stride.
using Place = std::array<float, 7>;

float log2_of(std::int64_t number) { return std::log2(static_cast<float>(number)); }

Place place_of(const ConvolutionShape& s) {
  const float inputs = log2_of(s.input_places);
  const float outputs = log2_of(s.output_places);
  return {
      0.8F * log2_of(s.inputs),  0.8F * log2_of(s.outputs), 0.5F * (log2_of(s.images) + outputs),
      0.5F * (inputs - outputs), 0.15F * outputs,           0.3F * log2_of(s.groups),
      s.is_half ? 0.1F : 0.0F};
}

float distance(const Place& one, const Place& other) {
  float sum = 0;
  for (std::size_t i = 0; i < one.size(); ++i) sum += std::abs(one[i] - other[i]);
  return sum;
}

struct Case {
  Place place{};
  std::uint32_t index = 0;  // in `kMeasured`
};

struct Known {
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

const std::map<Kind, std::vector<Case>>& cases() {
  static const auto all = [] {
    std::map<Kind, std::vector<Case>> found;
    for (std::uint32_t i = 0; i < std::size(kMeasured); ++i) {
      const ConvolutionShape shape = shape_of(kMeasured[i]);
      for (const Pass pass : {Pass::kForward, Pass::kInputGradient, Pass::kWeightGradient}) {
        found[kind_of(shape, pass)].push_back({place_of(shape), i});
      }
    }
    return found;
  }();
  return all;
}

Known known_at(std::uint32_t index, Pass pass) {
  return {shape_of(kMeasured[index]), bytes_of(kMeasured[index], pass)};
}

// Which tensors a kernel copied, and what it requested beyond the copies.
struct Parts {
  Copies copies;
  std::int64_t left = 0;
  // Some kernels, such as those of Winograd, need more than all of the tensors.
  bool exceeds_tensors = false;

  // Cases agree if their kernels request the same kinds of memory.
  auto kind() const { return std::tuple(copies, exceeds_tensors, left > kRounding); }

  static constexpr std::int64_t kRounding = 8192;
};

// Those of the copies that leave the least of the measured bytes.
Parts parts_of(const Known& measured) {
  constexpr std::int64_t kLess = 4096;
  constexpr std::int64_t kMuch = 16 << 20;
  Parts best{{}, std::numeric_limits<std::int64_t>::max(), false};
  for (const bool padded : {true, false}) {
    for (unsigned which = 0; which < 8; ++which) {
      const Copies copies{(which & 1) != 0, (which & 2) != 0, (which & 4) != 0, padded};
      const std::int64_t left = measured.bytes - bytes_of(copies, measured.shape);
      if (left >= -kLess && std::abs(left) < std::abs(best.left)) best = {copies, left, false};
    }
  }
  best.exceeds_tensors = best.left > std::max(kMuch, bytes_of(kAll, measured.shape));
  return best;
}

// The workspace of `shape` with the kernel that `measured` has.
std::int64_t as_in(const Known& measured, const ConvolutionShape& shape, Pass pass) {
  const Parts parts = parts_of(measured);
  double growth = 1;
  if (parts.exceeds_tensors) {
    growth = static_cast<double>(bytes_of(kAll, shape)) /
             static_cast<double>(bytes_of(kAll, measured.shape));
  } else if (pass == Pass::kWeightGradient) {
    growth = bytes_of_sums(shape) / bytes_of_sums(measured.shape);
  }
  const double left = std::max(0.0, static_cast<double>(parts.left) * growth);
  return bytes_of(parts.copies, shape) + static_cast<std::int64_t>(left);
}

}  // namespace

ConvolutionShape shape_of(const MeasuredConvolution& m) {
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

std::int64_t bytes_of(const MeasuredConvolution& m, Pass pass) {
  auto [forward, input, weights] = m.bytes;
  if (m.transposed) std::swap(forward, input);
  switch (pass) {
    case Pass::kForward:
      return forward;
    case Pass::kInputGradient:
      return input;
    case Pass::kWeightGradient:
      return weights;
  }
  return 0;
}

std::optional<Workspace> measured_workspace(const ConvolutionShape& shape, Pass pass) {
  constexpr float kFarthest = 2;
  constexpr std::size_t kVoters = 5;
  constexpr float kSoftening = 0.1F;  // of the votes, which fall with the distance
  const auto of_kind = cases().find(kind_of(shape, pass));
  if (of_kind == cases().end()) return std::nullopt;

  struct Voter {
    float distance;
    std::uint32_t index;
  };
  const Place place = place_of(shape);
  std::vector<Voter> near;
  for (const Case& each : of_kind->second) {
    const float far = distance(place, each.place);
    if (far > kFarthest) continue;
    if (far == 0) {
      if (const Known same = known_at(each.index, pass); same.shape == shape) {
        return Workspace{static_cast<std::size_t>(same.bytes), true};
      }
    }
    near.push_back({far, each.index});
  }
  if (near.empty()) return std::nullopt;

  const std::size_t voters = std::min(kVoters, near.size());
  std::ranges::partial_sort(near, near.begin() + static_cast<std::ptrdiff_t>(voters), {},
                            &Voter::distance);
  near.resize(voters);
  std::map<decltype(Parts{}.kind()), float> votes;
  for (const Voter& each : near) {
    votes[parts_of(known_at(each.index, pass)).kind()] += 1 / (each.distance + kSoftening);
  }
  const auto chosen = std::ranges::max_element(votes, {}, [](const auto& v) { return v.second; });
  const auto nearest = std::ranges::find_if(near, [&](const Voter& each) {
    return parts_of(known_at(each.index, pass)).kind() == chosen->first;
  });
  const std::int64_t bytes = as_in(known_at(nearest->index, pass), shape, pass);
  return Workspace{static_cast<std::size_t>(bytes), false};
}

}  // namespace ferro::sim
