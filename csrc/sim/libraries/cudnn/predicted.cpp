#include "sim/libraries/cudnn/predicted.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

namespace ferro::sim {
namespace {

std::int64_t divided(std::int64_t number, std::int64_t by) { return (number + by - 1) / by; }

// The exponent of the largest power of two that divides the number, at most 7.
std::int64_t alignment(std::int64_t number) {
  constexpr int kMost = 7;
  return std::min(kMost, std::countr_zero(static_cast<std::uint64_t>(number)));
}

// What the trees ask about: the sizes, products of them, alignments, and tiles of matrix products.
constexpr std::size_t kFeatures = 72;
// One more for the trees of the rest: the kind of copies.
using Features = std::array<std::int64_t, kFeatures + 1>;

Features features_of(const ConvolutionShape& s) {
  Features features{};
  std::size_t count = 0;
  const auto add = [&](auto... numbers) { ((features[count++] = numbers), ...); };

  const ConvolutionShape::Sizes output = s.output_size();
  const std::int64_t places = s.input_places();
  const std::int64_t results = s.output_places();
  const std::int64_t window = s.window_places();
  const std::int64_t in = s.inputs / s.groups;
  const std::int64_t out = s.outputs / s.groups;
  const std::int64_t rows = s.images * results;
  const std::int64_t positions = s.images * places;
  add(s.images, s.inputs, s.outputs, in, out, s.groups, places, results, window, rows, positions,
      in * window, out * window, positions * s.inputs, rows * s.outputs, s.outputs * in * window,
      rows * s.outputs / 16 * in * window / 16);
  for (std::size_t i = 0; i < s.size.size(); ++i) {
    add(s.size[i], output[i], s.window[i], s.stride[i], s.dilation[i], s.padding[i]);
  }
  const auto last = static_cast<std::size_t>(s.dimensions - 1);
  add(s.element == 4 ? 0
      : s.is_half    ? 2
                     : 1,
      s.channels_last ? 1 : 0, s.dimensions, alignment(s.inputs), alignment(s.outputs),
      alignment(in), alignment(out), alignment(places), alignment(results), alignment(output[last]),
      alignment(s.size[last]));

  bool same = true;
  bool patches = true;
  for (std::size_t i = 0; i < s.size.size(); ++i) {
    same = same && 2 * s.padding[i] == s.dilation[i] * (s.window[i] - 1);
    patches = patches && s.window[i] == s.stride[i];
  }
  const std::int64_t steps = s.stride[0] * s.stride[1] * s.stride[2];
  const bool dense = steps == 1;
  const bool unpadded = s.padding[0] + s.padding[1] + s.padding[2] == 0;
  const bool deep = s.groups == s.inputs;
  add(s.groups == 1                   ? 0
      : deep && s.groups == s.outputs ? 2
      : deep                          ? 3
                                      : 1,
      window != 1         ? 0
      : dense && unpadded ? 2
                          : 1,
      (dense ? 1 : 0) + (unpadded ? 2 : 0), (same ? 1 : 0) + (patches ? 2 : 0));

  const auto of = [](std::int64_t a, std::int64_t tile, std::int64_t b, std::int64_t other) {
    return divided(a, tile) * divided(b, other);
  };
  add(of(rows, 128, out, 128), of(rows, 64, out, 64), of(rows, 256, out, 64),
      of(out, 128, in * window, 128), of(out, 64, in * window, 64), of(out, 128, in * window, 64),
      of(positions, 128, in, 128), of(positions, 64, in, 64));
  // Sixteenths of a channel in full tiles.
  const auto padded = [](std::int64_t channels, std::int64_t tile) {
    return divided(channels, tile) * tile * 16 / channels;
  };
  add(padded(out, 128), padded(out, 64), padded(in, 128), padded(in, 32), padded(in, 8),
      padded(out, 8));
  constexpr std::int64_t kMultiprocessors = 132;
  add(s.inputs * 64 / s.outputs, places * 16 / results, places == s.size[last] ? 1 : 0,
      s.tensor_bytes(), std::min(in, out), std::max(in, out),
      of(rows, 128, out, 128) % kMultiprocessors, steps);
  return features;
}

// Twice the kind of copies, plus 1 if the kernel needs more. Kinds: 0 for none; 1 to 7 for a sum of
// 1 (images), 2 (results) and 4 (weights); 8 to 14 for the same with more channels.
using Answer = std::int64_t;
constexpr std::int64_t kPlain = 7;

std::int64_t copies(const ConvolutionShape& s, std::int64_t kind) {
  // Kernels for tensor cores read 16 bytes at once.
  const std::int64_t step = kind <= kPlain ? 1 : 16 / s.element;
  const std::int64_t which = kind <= kPlain ? kind : kind - kPlain;
  const auto channels = [&](std::int64_t count) { return divided(count, step) * step; };
  std::int64_t elements = 0;
  if ((which & 1) != 0) elements += s.images * channels(s.inputs) * s.input_places();
  if ((which & 2) != 0) elements += s.images * channels(s.outputs) * s.output_places();
  if ((which & 4) != 0) {
    elements += channels(s.outputs) * channels(s.inputs / s.groups) * s.window_places();
  }
  return elements * s.element;
}

// The rest is in units of these bytes: of partial sums, one for each element of the product.
double unit(const ConvolutionShape& s, Pass pass) {
  std::int64_t elements = 0;
  switch (pass) {
    case Pass::kForward:
      elements = s.images * s.outputs * s.output_places();
      break;
    case Pass::kInputGradient:
      elements = s.images * s.inputs * s.input_places();
      break;
    case Pass::kWeightGradient:
      elements = s.outputs * (s.inputs / s.groups) * s.window_places();
      break;
  }
  return 4.0 * static_cast<double>(elements);
}

// Weight gradients add whole slices of partial sums, whose channels fill accesses of 16 bytes.
std::int64_t rest_of(const ConvolutionShape& s, Pass pass, double rest) {
  if (pass == Pass::kWeightGradient) {
    constexpr double kAlmostOne = 0.9;
    constexpr std::int64_t kSlack = 144;
    constexpr std::int64_t kPaddedWeights = kPlain + 4;
    constexpr std::int64_t kSum = 4;  // bytes
    const std::int64_t slice = copies(s, kPaddedWeights) / s.element * kSum;
    const double slices = rest / static_cast<double>(slice);
    if (slices > kAlmostOne) return std::llround(slices) * slice + kSlack;
  }
  return static_cast<std::int64_t>(rest);
}

struct Question {
  std::uint8_t feature;
  std::int64_t most;  // the first branch has at most this
};

// In preorder: the index of a question, or -1 - the value of a leaf.
using Tokens = std::span<const std::int16_t>;

struct Trees {
  std::span<const Question> questions;
  Tokens votes;  // for an `Answer`
  Tokens rests;  // binary logarithms, see `rest`
};

#include "sim/libraries/cudnn/predicted.inc"

class Forest {
 public:
  Forest(std::span<const Question> questions, Tokens tokens) : questions_(questions) {
    nodes_.reserve(tokens.size());
    for (std::size_t at = 0; at < tokens.size();) {
      roots_.push_back(at);
      at = read(tokens, at);
    }
  }

  // Calls `take` with the value that each tree finds.
  template <typename Take>
  void each(const Features& features, Take take) const {
    for (std::size_t at : roots_) {
      while (nodes_[at].token >= 0) {
        const Question& question = questions_[static_cast<std::size_t>(nodes_[at].token)];
        at = features[question.feature] <= question.most ? at + 1 : nodes_[at].other;
      }
      take(-1 - nodes_[at].token);
    }
  }

  std::size_t size() const { return roots_.size(); }

 private:
  struct Node {
    std::int16_t token;
    std::uint32_t other = 0;  // the root of the second branch
  };

  // Returns the index after the tree at `at`.
  std::size_t read(Tokens tokens, std::size_t at) {
    const std::size_t root = nodes_.size();
    nodes_.push_back({tokens[at]});
    if (tokens[at] < 0) return at + 1;
    const std::size_t second = read(tokens, at + 1);
    nodes_[root].other = static_cast<std::uint32_t>(second);
    return read(tokens, second);
  }

  std::span<const Question> questions_;
  std::vector<Node> nodes_;
  std::vector<std::size_t> roots_;
};

struct Forests {
  explicit Forests(const Trees& trees)
      : votes(trees.questions, trees.votes), rests(trees.questions, trees.rests) {}

  Forest votes, rests;
};

const Forests& forests(Pass pass) {
  static const std::array<Forests, 3> all{Forests(kForwardTrees), Forests(kInputTrees),
                                          Forests(kWeightTrees)};
  return all[static_cast<std::size_t>(pass)];
}

}  // namespace

std::int64_t predicted_workspace(const ConvolutionShape& s, Pass pass) {
  const Forests& trees = forests(pass);
  Features features = features_of(s);
  std::array<int, 32> votes{};
  trees.votes.each(features, [&](Answer answer) { ++votes[static_cast<std::size_t>(answer)]; });
  const Answer chosen = std::ranges::max_element(votes) - votes.begin();
  const std::int64_t kind = chosen / 2;
  const std::int64_t copied = copies(s, kind);
  // Kernels that copy align the copies.
  constexpr std::int64_t kAlignments = 144;
  if (chosen % 2 == 0) return copied + (kind == 0 ? 0 : kAlignments);

  features[kFeatures] = kind;
  constexpr double kScale = 256;
  constexpr double kOffset = 32;
  std::vector<std::int64_t> logarithms;
  trees.rests.each(features, [&](std::int64_t value) { logarithms.push_back(value); });
  std::ranges::sort(logarithms);
  const auto median = static_cast<double>(logarithms[logarithms.size() / 2]);
  return copied + rest_of(s, pass, unit(s, pass) * std::exp2(median / kScale - kOffset));
}

}  // namespace ferro::sim
