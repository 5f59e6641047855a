#include "sim/libraries/cudnn/measured.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <unordered_map>
#include <utility>

namespace ferro::sim {
namespace {

// Lines of numbers without separators between lines. A line has a head, images, inputs, outputs
// and groups; sizes, windows, strides and paddings; and the bytes of the three passes. The head is
// type + 3 * channels last + 6 * transposed + 12 * (dimensions - 1) + 36 * even. In an even line
// one number is that of all dimensions. Bytes above 31 bits are two numbers: minus their upper bits,
// and the lower ones.
constexpr std::int32_t kMeasured[] = {
#include "sim/libraries/cudnn/measured.inc"
};

// Takes a line from the front of `numbers`.
MeasuredConvolution read_line(std::span<const std::int32_t>& numbers) {
  const auto next = [&] {
    const std::int64_t number = numbers.front();
    numbers = numbers.subspan(1);
    return number;
  };
  constexpr int kBits = 31;
  const auto next_bytes = [&] {
    const std::int64_t number = next();
    return number >= 0 ? number : (-number << kBits) + next();
  };
  MeasuredConvolution m{};
  const std::int64_t head = next();
  m.type = static_cast<std::uint8_t>(head % 3);
  m.channels_last = head / 3 % 2 != 0;
  m.transposed = head / 6 % 2 != 0;
  const auto dimensions = static_cast<std::size_t>(head / 12 % 3 + 1);
  const bool even = head / 36 != 0;
  for (std::uint16_t* const count : {&m.images, &m.inputs, &m.outputs, &m.groups}) {
    *count = static_cast<std::uint16_t>(next());
  }
  const auto fill = [&](auto& sizes) {
    for (std::size_t i = 0; i < dimensions; ++i) {
      using Number = std::remove_reference_t<decltype(sizes[0])>;
      sizes[i] = even && i > 0 ? sizes[0] : static_cast<Number>(next());
    }
  };
  fill(m.size);
  fill(m.window);
  fill(m.stride);
  fill(m.padding);
  for (std::int64_t& bytes : m.bytes) bytes = next_bytes();
  return m;
}

struct Hash {
  std::size_t operator()(const ConvolutionShape& s) const {
    std::size_t hash = 0;
    const auto add = [&](std::int64_t number) {
      constexpr std::size_t kOdd = 0x9e3779b97f4a7c15;
      hash = (hash ^ static_cast<std::size_t>(number)) * kOdd;
      hash ^= hash >> 29;
    };
    for (const std::int64_t number : {s.images, s.inputs, s.outputs, s.groups}) add(number);
    for (const auto* const sizes : {&s.size, &s.window, &s.stride, &s.padding}) {
      for (const std::int64_t number : *sizes) add(number);
    }
    add(s.element + s.is_half + 2 * s.channels_last);
    return hash;
  }
};

using Table = std::unordered_map<ConvolutionShape, MeasuredConvolution, Hash>;

const Table& table() {
  static const Table all = [] {
    Table found;
    for (std::span<const std::int32_t> rest = kMeasured; !rest.empty();) {
      const MeasuredConvolution measured = read_line(rest);
      found.emplace(shape_of(measured), measured);
    }
    return found;
  }();
  return all;
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
  s.dimensions = 0;
  for (std::size_t i = 0; i < m.size.size() && m.size[i] != 0; ++i) {
    ++s.dimensions;
    s.window[i] = m.window[i];
    s.stride[i] = m.stride[i];
    s.padding[i] = m.padding[i];
    s.size[i] =
        m.transposed ? (m.size[i] - 1) * m.stride[i] - 2 * m.padding[i] + m.window[i] : m.size[i];
  }
  if (m.transposed) std::swap(s.inputs, s.outputs);
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

std::optional<std::int64_t> measured_workspace(const ConvolutionShape& shape, Pass pass) {
  const auto found = table().find(shape);
  if (found == table().end()) return std::nullopt;
  return bytes_of(found->second, pass);
}

}  // namespace ferro::sim
