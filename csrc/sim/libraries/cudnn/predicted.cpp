#include "sim/libraries/cudnn/predicted.h"

#include "ferro/base/bytes.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace ferro::sim {
namespace {

// The exponent of the largest power of two that divides the number, at most 7.
std::int64_t alignment(std::int64_t number) {
  constexpr int kMost = 7;
  return std::min(kMost, std::countr_zero(static_cast<std::uint64_t>(number)));
}

// What the trees ask about: the sizes, products of them, alignments, and tiles of matrix products.
constexpr std::size_t kFeatures = 72;
// One more for the trees of the rest: the answer, ordered by what the kernel needs.
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
    return ceil_div(a, tile) * ceil_div(b, other);
  };
  add(of(rows, 128, out, 128), of(rows, 64, out, 64), of(rows, 256, out, 64),
      of(out, 128, in * window, 128), of(out, 64, in * window, 64), of(out, 128, in * window, 64),
      of(positions, 128, in, 128), of(positions, 64, in, 64));
  // Sixteenths of a channel in full tiles.
  const auto padded = [](std::int64_t channels, std::int64_t tile) {
    return round_up(channels, tile) * 16 / channels;
  };
  add(padded(out, 128), padded(out, 64), padded(in, 128), padded(in, 32), padded(in, 8),
      padded(out, 8));
  constexpr std::int64_t kMultiprocessors = 132;
  add(s.inputs * 64 / s.outputs, places * 16 / results, places == s.size[last] ? 1 : 0,
      s.tensor_bytes(), std::min(in, out), std::max(in, out),
      of(rows, 128, out, 128) % kMultiprocessors, steps);
  return features;
}

// What trees vote for: three times the kind of copies, plus 1 if the kernel needs more in proportion
// to its product, or 2 if in bytes.
using Answer = std::int64_t;
constexpr Answer kNeeds = 3;
constexpr Answer kNeedsBytes = 2;
constexpr Answer kAnswers = 108;
// All but a dozen of the million rests that the trees were trained on are smaller. A shape unlike all
// of those may get a factor of a tiny one.
constexpr double kLargestRest = std::int64_t{32} << 30;
// Transforms of Fourier without TF32 need up to terabytes. No card has them, and PyTorch then takes
// the next engine.
constexpr double kLargestPlainRest = std::int64_t{1} << 40;

// A kind is 0 for no copies, or 7 * padding + a sum of 1 (images), 2 (results) and 4 (weights).
enum class Padding { kNone, kChannels, kNoneOfEight, kChannelsOfEight, kEqual };
constexpr std::int64_t kSums = 7;

Padding padding_of(std::int64_t kind) { return static_cast<Padding>((kind - 1) / kSums); }

struct Channels {
  std::int64_t groups;
  std::int64_t inputs, outputs;  // of each group
};

Channels channels_of(const ConvolutionShape& s, Padding padding) {
  const std::int64_t in = s.inputs / s.groups;
  const std::int64_t out = s.outputs / s.groups;
  // Some kernels run for eight groups at a time, and copy only these.
  const std::int64_t eight = std::min<std::int64_t>(s.groups, 8);
  // Kernels for tensor cores read 16 bytes at once.
  const std::int64_t step = 16 / s.element;
  const auto padded = [&](std::int64_t count) { return round_up(count, step); };
  switch (padding) {
    case Padding::kNone:
      return {s.groups, in, out};
    case Padding::kChannels:
      return {s.groups, padded(in), padded(out)};
    case Padding::kNoneOfEight:
      return {eight, in, out};
    case Padding::kChannelsOfEight:
      return {eight, padded(in), padded(out)};
    case Padding::kEqual:
      break;
  }
  // Kernels for small groups have as many outputs as inputs, a power of two.
  const auto most = static_cast<std::uint64_t>(std::max(in, out));
  const auto equal = std::max(step, static_cast<std::int64_t>(std::bit_ceil(most)));
  return {s.groups, equal, equal};
}

std::int64_t copies(const ConvolutionShape& s, std::int64_t kind) {
  if (kind == 0) return 0;
  const Channels c = channels_of(s, padding_of(kind));
  const std::int64_t which = (kind - 1) % kSums + 1;
  std::int64_t elements = 0;
  if ((which & 1) != 0) elements += s.images * c.groups * c.inputs * s.input_places();
  if ((which & 2) != 0) elements += s.images * c.groups * c.outputs * s.output_places();
  if ((which & 4) != 0) elements += c.groups * c.inputs * c.outputs * s.window_places();
  return elements * s.element;
}

// Without TF32 cuDNN chooses among other kernels, so there are trees of their own.
bool is_plain(const ConvolutionShape& s) { return s.element == 4 && !s.allows_tf32; }

// Of the product, one for each element. Those of weight gradients are one slice of several, whose
// channels fill accesses of 16 bytes.
std::int64_t partial_sums(const ConvolutionShape& s, Pass pass, std::int64_t kind) {
  constexpr std::int64_t kSum = 4;  // bytes
  switch (pass) {
    case Pass::kForward:
      return kSum * s.images * s.outputs * s.output_places();
    case Pass::kInputGradient:
      return kSum * s.images * s.inputs * s.input_places();
    case Pass::kWeightGradient:
      break;
  }
  Padding padding = kind == 0 ? Padding::kChannels : padding_of(kind);
  if (padding == Padding::kNone) padding = Padding::kChannels;
  const Channels c = channels_of(s, padding);
  return kSum * c.groups * c.inputs * c.outputs * s.window_places();
}

double rest_in_sums(const ConvolutionShape& s, Pass pass, std::int64_t kind, double rest) {
  const auto sums = static_cast<double>(partial_sums(s, pass, kind));
  constexpr double kAlmostOne = 0.9;
  constexpr double kSlack = 144;
  if (pass == Pass::kWeightGradient && rest > kAlmostOne) return std::round(rest) * sums + kSlack;
  return rest * sums;
}

struct Question {
  std::uint8_t feature;
  std::int64_t most;  // the first branch has at most this
};

// Trees in preorder, of numbers in one to three characters: twice the index of a question, or twice
// the value of a leaf, plus 1. No part is empty, and each may end within a tree or number.
using Text = std::span<const std::string_view>;

// Reads numbers of printable characters. The first tells how many follow.
class Reader {
 public:
  explicit Reader(Text text) : text_(text) {}

  bool is_at_end() const { return text_.empty(); }

  int next() {
    constexpr int kDigits = 91;
    constexpr int kAlone = 60;      // first digits of numbers of one character
    constexpr int kAtMostTwo = 86;  // and of one or two
    const int first = digit();
    if (first < kAlone) return first;
    const int second = (first - kAlone) * kDigits + digit();
    constexpr int kOfTwo = (kAtMostTwo - kAlone) * kDigits;
    if (second < kOfTwo) return kAlone + second;
    return kAlone + kOfTwo + (second - kOfTwo) * kDigits + digit();
  }

 private:
  // From '!', without the characters that mean something else in a literal.
  int digit() {
    const char c = text_.front()[read_++];
    if (read_ == text_.front().size()) {
      text_ = text_.subspan(1);
      read_ = 0;
    }
    return c - '!' - (c > '"' ? 1 : 0) - (c > '?' ? 1 : 0) - (c > '\\' ? 1 : 0);
  }

  Text text_;
  std::size_t read_ = 0;  // of the first part
};

struct Trees {
  std::span<const Question> questions;
  Text votes;  // for an `Answer`
  Text rests;  // binary logarithms, see `bytes_of`
};

using namespace std::string_view_literals;

#include "sim/libraries/cudnn/predicted.inc"

class Forest {
 public:
  Forest(std::span<const Question> questions, Text text) : questions_(questions) {
    Reader reader(text);
    while (!reader.is_at_end()) {
      roots_.push_back(nodes_.size());
      read(reader);
    }
  }

  // Calls `take` with the value that each tree finds.
  template <typename Take>
  void each(const Features& features, Take take) const {
    for (std::size_t at : roots_) {
      while (!nodes_[at].is_leaf) {
        const Question& question = questions_[nodes_[at].number];
        at = features[question.feature] <= question.most ? at + 1 : nodes_[at].other;
      }
      take(nodes_[at].number);
    }
  }

 private:
  struct Node {
    bool is_leaf;
    std::uint16_t number;     // of the question, or the value
    std::uint32_t other = 0;  // the root of the second branch
  };

  void read(Reader& reader) {
    const std::size_t root = nodes_.size();
    const int number = reader.next();
    const bool is_leaf = number % 2 != 0;
    nodes_.push_back({is_leaf, static_cast<std::uint16_t>(number / 2)});
    if (is_leaf) return;
    read(reader);
    nodes_[root].other = static_cast<std::uint32_t>(nodes_.size());
    read(reader);
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

struct Candidate {
  std::int64_t bytes;
  int votes;  // for the answer itself
};

// Kernels of one kind may be near those of another. So a tree votes for all answers whose bytes are
// near those of its own.
std::int64_t elected(std::span<const Candidate> candidates, std::int64_t near) {
  const auto support = [&](const Candidate& one) {
    int all = 0, equal = 0;
    for (const Candidate& other : candidates) {
      const std::int64_t difference = std::abs(one.bytes - other.bytes);
      if (difference <= near) all += other.votes;
      if (difference == 0) equal += other.votes;
    }
    return std::pair(all, equal);
  };
  return std::ranges::max_element(candidates, {}, support)->bytes;
}

const Forests& forests(Pass pass, bool plain) {
  static const std::array<Forests, 6> all{Forests(kForwardTrees),    Forests(kInputTrees),
                                          Forests(kWeightTrees),     Forests(kPlainForwardTrees),
                                          Forests(kPlainInputTrees), Forests(kPlainWeightTrees)};
  return all[static_cast<std::size_t>(pass) + (plain ? all.size() / 2 : 0)];
}

// Sets the last feature.
std::int64_t bytes_of(const ConvolutionShape& s, Pass pass, Answer answer, const Forest& rests,
                      Features& features) {
  const std::int64_t kind = answer / kNeeds;
  const std::int64_t need = answer % kNeeds;
  const std::int64_t copied = copies(s, kind);
  // Kernels that copy align the copies.
  constexpr std::int64_t kAlignments = 144;
  if (need == 0) return copied + (kind == 0 ? 0 : kAlignments);

  features[kFeatures] = need * (kAnswers / kNeeds) + kind;
  constexpr double kScale = 256;
  constexpr double kOffset = 32;
  std::vector<std::int64_t> logarithms;
  rests.each(features, [&](std::int64_t value) { logarithms.push_back(value); });
  std::ranges::sort(logarithms);
  const auto median = static_cast<double>(logarithms[logarithms.size() / 2]);
  const double rest = std::exp2(median / kScale - kOffset);
  const double bytes = need == kNeedsBytes ? rest : rest_in_sums(s, pass, kind, rest);
  const double most = is_plain(s) ? kLargestPlainRest : kLargestRest;
  return copied + static_cast<std::int64_t>(std::min(bytes, most));
}

}  // namespace

std::int64_t predicted_workspace(const ConvolutionShape& s, Pass pass) {
  const Forests& trees = forests(pass, is_plain(s));
  Features features = features_of(s);
  std::array<int, kAnswers> votes{};
  trees.votes.each(features, [&](Answer answer) { ++votes[static_cast<std::size_t>(answer)]; });
  std::vector<Candidate> candidates;
  for (Answer answer = 0; answer < kAnswers; ++answer) {
    const int own = votes[static_cast<std::size_t>(answer)];
    if (own == 0) continue;
    candidates.push_back({bytes_of(s, pass, answer, trees.rests, features), own});
  }
  constexpr std::int64_t kAlwaysNear = 1 << 20;
  return elected(candidates, std::max(s.tensor_bytes() / 10, kAlwaysNear));
}

}  // namespace ferro::sim
