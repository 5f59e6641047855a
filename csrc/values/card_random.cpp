#include "values/card_random.h"

#include <ATen/Dispatch.h>
#include <ATen/Dispatch_v2.h>
#include <ATen/Parallel.h>
#include <ATen/core/DistributionsHelper.h>
#include <c10/util/MathConstants.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

namespace ferro::values {
namespace {

constexpr std::int64_t kBlock = 256;         // threads
constexpr std::uint64_t kOffsetPerCall = 4;  // words that a call of cuRAND takes
constexpr std::int64_t kLanes = 16;          // threads that are computed together, to overlap
constexpr std::int64_t kGrain = 1 << 9;      // groups of lanes for a host thread

// Each word of a call for several threads.
template <typename T>
using OfLanes = std::array<T, static_cast<std::size_t>(kLanes)>;
using Words = std::array<OfLanes<std::uint32_t>, 4>;

// The words of consecutive threads at an offset, by Philox4x32-10.
void philox(std::uint64_t seed, std::uint64_t offset, std::uint64_t thread, Words& words) {
  const std::uint64_t counter = offset / kOffsetPerCall;
  OfLanes<std::uint32_t> c0, c1, c2, c3;
  for (std::size_t i = 0; i < c0.size(); ++i) {
    c0[i] = static_cast<std::uint32_t>(counter);
    c1[i] = static_cast<std::uint32_t>(counter >> 32);
    c2[i] = static_cast<std::uint32_t>(thread + i);
    c3[i] = static_cast<std::uint32_t>((thread + i) >> 32);
  }
  auto k0 = static_cast<std::uint32_t>(seed);
  auto k1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    for (std::size_t i = 0; i < c0.size(); ++i) {
      const std::uint64_t left = std::uint64_t{0xD2511F53} * c0[i];
      const std::uint64_t right = std::uint64_t{0xCD9E8D57} * c2[i];
      c0[i] = static_cast<std::uint32_t>(right >> 32) ^ c1[i] ^ k0;
      c1[i] = static_cast<std::uint32_t>(right);
      c2[i] = static_cast<std::uint32_t>(left >> 32) ^ c3[i] ^ k1;
      c3[i] = static_cast<std::uint32_t>(left);
    }
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  words = {c0, c1, c2, c3};
}

// cuRAND's numbers in (0, 1].
float uniform(std::uint32_t word) { return static_cast<float>(word) * 0x1p-32F + 0x1p-33F; }
double uniform(std::uint32_t low, std::uint32_t high) {
  const std::uint64_t bits = low ^ std::uint64_t{high} << 21;
  return static_cast<double>(bits) * 0x1p-53 + 0x1p-54;
}

// The values of a call of cuRAND: `compute` sets at least the first `count` of each thread.
struct UniformFloats {
  using Value = float;
  static constexpr int kValues = 4;
  static void compute(const Words& words, std::size_t count, OfLanes<Value>* values) {
    for (std::size_t i = 0; i < count; ++i) {
      std::transform(words[i].begin(), words[i].end(), values[i].begin(),
                     [](std::uint32_t word) { return uniform(word); });
    }
  }
};

struct UniformDoubles {
  using Value = double;
  static constexpr int kValues = 2;
  static void compute(const Words& words, std::size_t count, OfLanes<Value>* values) {
    for (std::size_t i = 0; i < count; ++i) {
      std::transform(words[2 * i].begin(), words[2 * i].end(), words[2 * i + 1].begin(),
                     values[i].begin(),
                     [](std::uint32_t low, std::uint32_t high) { return uniform(low, high); });
    }
  }
};

struct NormalFloats {
  using Value = float;
  static constexpr int kValues = 4;
  static void compute(const Words& words, std::size_t count, OfLanes<Value>* values) {
    constexpr float kScale = 2.3283064e-10F * 6.2831855F;
    for (std::size_t i = 0; i < count; i += 2) {
      // A loop for each function: the calls of one loop overlap.
      OfLanes<float> radius;
      std::transform(words[i].begin(), words[i].end(), radius.begin(),
                     [](std::uint32_t word) { return -2.0F * std::log(uniform(word)); });
      std::transform(radius.begin(), radius.end(), radius.begin(),
                     [](float square) { return std::sqrt(square); });
      for (std::size_t lane = 0; lane < radius.size(); ++lane) {
        const float angle = std::fma(static_cast<float>(words[i + 1][lane]), kScale, kScale / 2);
        values[i][lane] = std::sin(angle) * radius[lane];
        values[i + 1][lane] = std::cos(angle) * radius[lane];
      }
    }
  }
};

struct NormalDoubles {
  using Value = double;
  static constexpr int kValues = 2;
  static void compute(const Words& words, std::size_t, OfLanes<Value>* values) {
    for (std::size_t lane = 0; lane < words[0].size(); ++lane) {
      const double radius = std::sqrt(-2.0 * std::log(uniform(words[0][lane], words[1][lane])));
      // The sine of as many half turns, from the nearest multiple of a quarter turn.
      const double half_turns = 2 * uniform(words[2][lane], words[3][lane]);
      const double quarters = std::nearbyint(2 * half_turns);
      const double rest = (half_turns - quarters / 2) * c10::pi<double>;
      const double sines[] = {std::sin(rest), std::cos(rest), -std::sin(rest), -std::cos(rest)};
      const auto quadrant = static_cast<std::size_t>(quarters);
      values[0][lane] = sines[quadrant % 4] * radius;
      values[1][lane] = sines[(quadrant + 1) % 4] * radius;
    }
  }
};

struct ShortIntegers {
  using Value = std::uint32_t;
  static constexpr int kValues = 4;
  static void compute(const Words& words, std::size_t count, OfLanes<Value>* values) {
    std::copy_n(words.begin(), count, values);
  }
};

struct LongIntegers {
  using Value = std::uint64_t;
  static constexpr int kValues = 2;
  static void compute(const Words& words, std::size_t count, OfLanes<Value>* values) {
    for (std::size_t i = 0; i < count; ++i) {
      for (std::size_t lane = 0; lane < words[i].size(); ++lane) {
        values[i][lane] = std::uint64_t{words[2 * i][lane]} << 32 | words[2 * i + 1][lane];
      }
    }
  }
};

struct Launch {
  std::int64_t threads;
  std::int64_t rounds;
};

Launch launch(const CardGenerator& generator, std::int64_t elements, std::int64_t values) {
  const std::int64_t most =
      std::int64_t{generator.multiprocessors} * (generator.threads / std::uint32_t{kBlock});
  const std::int64_t threads = std::min(most, (elements + kBlock - 1) / kBlock) * kBlock;
  return {threads, (elements - 1) / (threads * values) + 1};
}

// Draws the elements of one launch of PyTorch's kernel for distributions.
template <typename Source, typename T, typename Transform>
void fill_launch(CardGenerator& generator, T* out, std::int64_t elements,
                 const Transform& transform) {
  constexpr int kValues = Source::kValues;
  const auto [threads, rounds] = launch(generator, elements, kValues);
  const std::uint64_t offset = generator.offset;
  generator.offset += static_cast<std::uint64_t>(rounds) * kOffsetPerCall;
  const std::int64_t groups = threads / kLanes;
  const auto draw = [&, threads = threads](std::int64_t begin, std::int64_t end) {
    Words words;
    std::array<OfLanes<typename Source::Value>, kValues> values;
    for (std::int64_t group = begin; group < end; ++group) {
      const std::int64_t round = group / groups;
      const std::int64_t thread = group % groups * kLanes;
      const std::int64_t first = round * threads * kValues + thread;
      if (first >= elements) {
        continue;
      }
      philox(generator.seed, offset + static_cast<std::uint64_t>(round) * kOffsetPerCall,
             static_cast<std::uint64_t>(thread), words);
      const auto count = static_cast<std::size_t>(
          std::min<std::int64_t>(kValues, (elements - first - 1) / threads + 1));
      Source::compute(words, count, values.data());
      T* row = out + first;
      for (std::size_t i = 0; i < count; ++i, row += threads) {
        const auto lanes = std::min<std::int64_t>(kLanes, out + elements - row);
        std::transform(values[i].begin(), values[i].begin() + lanes, row, transform);
      }
    }
  };
  at::parallel_for(0, groups * rounds, kGrain, draw);
}

// Calls `visit` for the halves, quarters and so on whose bytes fit 31 bits, as PyTorch splits them.
template <typename T, typename Visit>
void for_each_launch(T* out, std::int64_t elements, const Visit& visit) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  if ((elements - 1) * static_cast<std::int64_t>(sizeof(T)) < kMost && elements <= kMost) {
    visit(out, elements);
    return;
  }
  for_each_launch(out, elements / 2, visit);
  for_each_launch(out + elements / 2, elements - elements / 2, visit);
}

template <typename Source, typename T, typename Transform>
void fill(CardGenerator& generator, T* out, std::int64_t elements, const Transform& transform) {
  if (elements == 0) {
    return;
  }
  bool is_split = false;
  for_each_launch(out, elements, [&](T* part, std::int64_t count) {
    if (count != elements && !is_split) {
      // The launch that does not fit has taken its part of the sequence.
      is_split = true;
      const auto rounds = launch(generator, elements, Source::kValues).rounds;
      generator.offset += static_cast<std::uint64_t>(rounds) * kOffsetPerCall;
    }
    fill_launch<Source>(generator, part, count, transform);
  });
}

// Calls `visit` with each element and its number in (0, 1], for kernels whose threads take `vector`
// adjacent elements in each round, by a call of cuRAND for up to 4 of them.
template <typename Visit>
void for_each_vector(const CardGenerator& generator, std::int64_t elements, std::int64_t vector,
                     std::int64_t threads, const Visit& visit) {
  const std::int64_t calls = (vector + 3) / 4;
  const auto draw = [&](std::int64_t begin, std::int64_t end) {
    Words words;
    for (std::int64_t group = begin; group < end; ++group) {
      const std::int64_t round = group * kLanes / threads;
      const std::int64_t thread = group * kLanes % threads;
      for (std::int64_t call = 0; call < calls; ++call) {
        const auto taken = static_cast<std::uint64_t>(round * calls + call) * kOffsetPerCall;
        philox(generator.seed, generator.offset + taken, static_cast<std::uint64_t>(thread), words);
        for (std::int64_t lane = 0; lane < kLanes; ++lane) {
          const std::int64_t first = (group * kLanes + lane) * vector + call * 4;
          const std::int64_t count = std::min({vector, std::int64_t{4}, elements - first});
          for (std::int64_t i = 0; i < count; ++i) {
            visit(first + i,
                  uniform(words[static_cast<std::size_t>(i)][static_cast<std::size_t>(lane)]));
          }
        }
      }
    }
  };
  const std::int64_t of_group = vector * kLanes;
  at::parallel_for(0, (elements + of_group - 1) / of_group, kGrain, draw);
}

template <typename T>
constexpr bool kIsDouble = std::is_same_v<T, double>;
template <typename T>
using Uniform = std::conditional_t<kIsDouble<T>, UniformDoubles, UniformFloats>;
template <typename T>
using Normal = std::conditional_t<kIsDouble<T>, NormalDoubles, NormalFloats>;

// The device's fast functions for single precision: a base-2 function and a factor.
float fast_log(float x) { return std::log2(x) * 0.693147182F; }
double fast_log(double x) { return std::log(x); }
float fast_log1p(float x) { return fast_log(1.0F + x); }
double fast_log1p(double x) { return std::log1p(x); }
float fast_exp(float x) { return std::exp2(x * 1.44269502F); }
double fast_exp(double x) { return std::exp(x); }
float fast_tan(float x) { return std::sin(x) / std::cos(x); }
double fast_tan(double x) { return std::tan(x); }

// The device rounds `x * factor + summand` once.
template <typename T>
T scale(T x, T factor, T summand) {
  return factor == 1 && summand == 0 ? x : std::fma(x, factor, summand);
}

template <typename T, typename Result>
Result uniform_between(T x, Result from, Result to, T range) {
  const auto value = static_cast<Result>(scale<T>(x, range, static_cast<T>(from)));
  return value == to ? from : value;  // (0, 1] becomes [0, 1)
}

template <typename T>
T cauchy(T x, T median, T sigma) {
  if constexpr (!kIsDouble<T>) {
    constexpr T kEpsilon = std::numeric_limits<T>::epsilon();
    x = std::clamp(x, kEpsilon, 1 - kEpsilon);
  }
  return std::fma(sigma, fast_tan(c10::pi<T> * (x - static_cast<T>(0.5))), median);
}

template <typename T>
T exponential(T x, T lambda) {
  constexpr T kHalf = std::numeric_limits<T>::epsilon() / 2;
  const T log = x >= static_cast<T>(1) - kHalf ? -kHalf : fast_log(x);
  return static_cast<T>(-1) / lambda * log;
}

// Sorts by `bits` bits of the keys; equal ones keep their order.
void sort(std::vector<std::pair<std::uint64_t, std::int64_t>>& keys, int bits) {
  constexpr int kDigit = 11;
  std::vector<std::pair<std::uint64_t, std::int64_t>> sorted(keys.size());
  for (int shift = 0; shift < bits; shift += kDigit) {
    std::array<std::size_t, (1 << kDigit) + 1> begin{};
    const auto digit = [&](std::uint64_t key) { return (key >> shift) % (1 << kDigit); };
    for (const auto& key : keys) {
      ++begin[digit(key.first) + 1];
    }
    for (std::size_t i = 1; i < begin.size(); ++i) {
      begin[i] += begin[i - 1];
    }
    for (const auto& key : keys) {
      sorted[begin[digit(key.first)]++] = key;
    }
    keys.swap(sorted);
  }
}

// The bits of keys for a permutation, of which two are equal with a probability of at most 0.1.
int key_bits(std::int64_t elements) {
  const auto n = static_cast<double>(elements);
  const double bits = std::ceil(std::log2(n - (6 * n * n + 1) / (std::log(0.9) * 12)));
  return std::min(64, static_cast<int>(bits));
}

// What a card sorts by: the low bits of the keys, which are signed.
template <typename Key>
std::vector<std::pair<std::uint64_t, std::int64_t>> draw_keys(CardGenerator& generator,
                                                              std::int64_t elements, int bits) {
  std::vector<Key> drawn(static_cast<std::size_t>(elements));
  constexpr Key kLeast = std::numeric_limits<Key>::min();
  constexpr auto kRange = static_cast<std::uint64_t>(std::numeric_limits<Key>::max()) -
                          static_cast<std::uint64_t>(std::int64_t{kLeast});
  fill<LongIntegers>(generator, drawn.data(), elements, [](std::uint64_t word) {
    return at::transformation::uniform_int_from_to<Key>(word, kRange, kLeast);
  });
  const std::uint64_t mask = bits == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << bits) - 1;
  constexpr auto kSign = std::uint64_t{1} << (8 * sizeof(Key) - 1);
  std::vector<std::pair<std::uint64_t, std::int64_t>> keys;
  keys.reserve(drawn.size());
  for (const Key key : drawn) {
    keys.emplace_back((static_cast<std::uint64_t>(key) ^ kSign) & mask,
                      static_cast<std::int64_t>(keys.size()));
  }
  return keys;
}

// Shuffles the elements that have equal keys.
void shuffle_equal(const CardGenerator& generator,
                   std::vector<std::pair<std::uint64_t, std::int64_t>>& keys) {
  for (std::size_t begin = 0; begin < keys.size();) {
    std::size_t end = begin + 1;
    while (end < keys.size() && keys[end].first == keys[begin].first) {
      ++end;
    }
    std::uint64_t taken = 0;
    Words words;
    for (std::size_t i = end - begin - 1; i > 0; --i, ++taken) {
      if (taken % kOffsetPerCall == 0) {
        philox(generator.seed, generator.offset + taken, begin, words);
      }
      std::swap(keys[begin + i], keys[begin + words[taken % kOffsetPerCall][0] % (i + 1)]);
    }
    begin = end;
  }
}

}  // namespace

void draw_uniform(CardGenerator& generator, const at::Tensor& flat, double from, double to) {
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, flat.scalar_type(), "uniform", [&] {
    using Number = at::dist_acctype<scalar_t>;
    const auto low = static_cast<scalar_t>(from);
    const auto high = static_cast<scalar_t>(to);
    const auto range = static_cast<Number>(high - low);
    fill<Uniform<scalar_t>>(
        generator, flat.mutable_data_ptr<scalar_t>(), flat.numel(),
        [=](Number x) { return uniform_between<Number, scalar_t>(x, low, high, range); });
  });
}

void draw_normal(CardGenerator& generator, const at::Tensor& flat, double mean, double std) {
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, flat.scalar_type(), "normal", [&] {
    using Number = at::dist_acctype<scalar_t>;
    fill<Normal<scalar_t>>(generator, flat.mutable_data_ptr<scalar_t>(), flat.numel(),
                           [mean = static_cast<Number>(mean), std = static_cast<Number>(std)](
                               Number x) { return static_cast<scalar_t>(scale(x, std, mean)); });
  });
}

void draw_log_normal(CardGenerator& generator, const at::Tensor& flat, double mean, double std) {
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, flat.scalar_type(), "log_normal", [&] {
    using Number = at::dist_acctype<scalar_t>;
    fill<Normal<scalar_t>>(
        generator, flat.mutable_data_ptr<scalar_t>(), flat.numel(),
        [mean = static_cast<Number>(mean), std = static_cast<Number>(std)](Number x) {
          return static_cast<scalar_t>(fast_exp(scale(x, std, mean)));
        });
  });
}

void draw_cauchy(CardGenerator& generator, const at::Tensor& flat, double median, double sigma) {
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, flat.scalar_type(), "cauchy", [&] {
    using Number = at::dist_acctype<scalar_t>;
    fill<Uniform<scalar_t>>(
        generator, flat.mutable_data_ptr<scalar_t>(), flat.numel(),
        [median = static_cast<Number>(median), sigma = static_cast<Number>(sigma)](Number x) {
          return static_cast<scalar_t>(cauchy(x, median, sigma));
        });
  });
}

void draw_exponential(CardGenerator& generator, const at::Tensor& flat, double lambda) {
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, flat.scalar_type(), "exponential", [&] {
    using Number = at::dist_acctype<scalar_t>;
    fill<Uniform<scalar_t>>(generator, flat.mutable_data_ptr<scalar_t>(), flat.numel(),
                            [lambda = static_cast<Number>(lambda)](Number x) {
                              return static_cast<scalar_t>(exponential(x, lambda));
                            });
  });
}

void draw_geometric(CardGenerator& generator, const at::Tensor& flat, double p) {
  AT_DISPATCH_ALL_TYPES_AND2(at::kHalf, at::kBFloat16, flat.scalar_type(), "geometric", [&] {
    using Number = typename at::DiscreteDistributionType<scalar_t>::type;
    fill<Uniform<scalar_t>>(generator, flat.mutable_data_ptr<scalar_t>(), flat.numel(),
                            [log = fast_log1p(-static_cast<Number>(p))](Number x) {
                              return static_cast<scalar_t>(std::ceil(fast_log(x) / log));
                            });
  });
}

void draw_bernoulli(CardGenerator& generator, const at::Tensor& flat, double p) {
  AT_DISPATCH_ALL_TYPES_AND3(
      at::kHalf, at::kBFloat16, at::kBool, flat.scalar_type(), "bernoulli", [&] {
        using Number = typename at::DiscreteDistributionType<scalar_t>::type;
        fill<Uniform<scalar_t>>(
            generator, flat.mutable_data_ptr<scalar_t>(), flat.numel(),
            [p = static_cast<Number>(p)](Number x) { return static_cast<scalar_t>(x < p); });
      });
}

void draw_integers(CardGenerator& generator, const at::Tensor& flat) {
  AT_DISPATCH_ALL_TYPES_AND3(
      at::kHalf, at::kBFloat16, at::kBool, flat.scalar_type(), "random", [&] {
        constexpr bool kLong = kIsDouble<scalar_t> || std::is_same_v<scalar_t, std::int64_t>;
        using Source = std::conditional_t<kLong, LongIntegers, ShortIntegers>;
        fill<Source>(generator, flat.mutable_data_ptr<scalar_t>(), flat.numel(),
                     [](typename Source::Value word) {
                       return at::transformation::uniform_int<scalar_t>(word);
                     });
      });
}

void draw_integers(CardGenerator& generator, const at::Tensor& flat,
                   std::optional<std::uint64_t> range, std::int64_t base) {
  AT_DISPATCH_V2(flat.scalar_type(), "random_from_to", AT_WRAP([&] {
                   scalar_t* const out = flat.mutable_data_ptr<scalar_t>();
                   if (!range) {
                     fill<LongIntegers>(generator, out, flat.numel(), [](std::uint64_t word) {
                       return at::transformation::uniform_int_full_range<scalar_t>(word);
                     });
                   } else if (*range >= 1 << 28) {
                     fill<LongIntegers>(generator, out, flat.numel(),
                                        [range = *range, base](std::uint64_t word) {
                                          return at::transformation::uniform_int_from_to<scalar_t>(
                                              word, range, base);
                                        });
                   } else {
                     fill<ShortIntegers>(
                         generator, out, flat.numel(),
                         [range = static_cast<std::uint32_t>(*range), base](std::uint32_t word) {
                           return static_cast<scalar_t>(std::int64_t{word % range} + base);
                         });
                   }
                 }),
                 AT_EXPAND(AT_ALL_TYPES), at::kBool, at::kHalf, at::kBFloat16,
                 AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES));
}

void draw_bernoulli(CardGenerator& generator, const at::Tensor& flat,
                    const at::Tensor& probabilities) {
  AT_DISPATCH_ALL_TYPES_AND3(
      at::kHalf, at::kBFloat16, at::kBool, flat.scalar_type(), "bernoulli", [&] {
        using Probability = std::conditional_t<kIsDouble<scalar_t>, double, float>;
        const Probability* const p = probabilities.const_data_ptr<Probability>();
        scalar_t* const out = flat.mutable_data_ptr<scalar_t>();
        const std::int64_t elements = flat.numel();
        const auto set = [=](std::int64_t i, float x) {
          out[i] = static_cast<scalar_t>(x <= p[i]);
        };
        // As many threads as it needs, whatever the card runs at once.
        const std::int64_t threads = (elements + 4 * kLanes - 1) / (4 * kLanes) * kLanes;
        for_each_vector(generator, elements, 4, threads, set);
      });
  generator.offset += 12;  // 10, rounded up
}

void draw_permutation(CardGenerator& generator, const at::Tensor& flat) {
  const std::int64_t elements = flat.numel();
  const int bits = key_bits(elements);
  auto keys = bits <= 32 ? draw_keys<std::int32_t>(generator, elements, bits)
                         : draw_keys<std::int64_t>(generator, elements, bits);
  sort(keys, bits);
  shuffle_equal(generator, keys);
  generator.offset += (static_cast<std::uint64_t>(elements) + 3) / 4 * 4;
  AT_DISPATCH_V2(
      flat.scalar_type(), "randperm", AT_WRAP([&] {
        std::transform(keys.begin(), keys.end(), flat.mutable_data_ptr<scalar_t>(),
                       [](const auto& key) { return static_cast<scalar_t>(key.second); });
      }),
      AT_EXPAND(AT_ALL_TYPES), at::kHalf, at::kBFloat16, AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES));
}

void draw_dropout(CardGenerator& generator, const at::Tensor& flat, double p, bool is_double,
                  std::int64_t vector) {
  bool* const out = flat.mutable_data_ptr<bool>();
  const std::int64_t elements = flat.numel();
  const double most = is_double ? p : static_cast<double>(static_cast<float>(p));
  if (vector == 1) {
    // It is one launch, whatever its size.
    fill_launch<UniformFloats>(generator, out, elements, [most](float x) { return x < most; });
    return;
  }
  const auto [threads, rounds] = launch(generator, elements, 4);
  for_each_vector(generator, elements, vector, threads,
                  [=](std::int64_t i, float x) { out[i] = x < most; });
  generator.offset += static_cast<std::uint64_t>(rounds) * kOffsetPerCall;
}

void draw_slopes(CardGenerator& generator, const at::Tensor& flat, double lower, double upper) {
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, flat.scalar_type(), "slopes", [&] {
    using Number = at::dist_acctype<scalar_t>;
    // It is one launch, whatever its size.
    fill_launch<Uniform<scalar_t>>(
        generator, flat.mutable_data_ptr<scalar_t>(), flat.numel(),
        [range = upper - lower, lower](Number x) {
          const auto rounded = static_cast<double>(static_cast<scalar_t>(x));
          return static_cast<scalar_t>(static_cast<Number>(std::fma(rounded, range, lower)));
        });
  });
}

void draw_samples(CardGenerator& generator, const at::Tensor& flat, std::int64_t rows) {
  constexpr std::int64_t kThreads = 128;
  constexpr std::int64_t kMostRows = 65'535;
  float* const out = flat.mutable_data_ptr<float>();
  const std::int64_t samples = flat.numel() / rows;
  const std::int64_t threads = (samples + kThreads - 1) / kThreads * kThreads;
  Words words;
  for (std::int64_t i = 0; i < flat.numel(); ++i) {
    const std::int64_t row = i / samples;
    const std::int64_t sample = i % samples;
    if (sample % kLanes == 0) {
      const auto taken = static_cast<std::uint64_t>(row / kMostRows) * kOffsetPerCall;
      philox(generator.seed, generator.offset + taken,
             static_cast<std::uint64_t>(row % kMostRows * threads + sample), words);
    }
    out[i] = uniform(words[0][static_cast<std::size_t>(sample % kLanes)]);
  }
  generator.offset += static_cast<std::uint64_t>((rows - 1) / kMostRows + 1) * kOffsetPerCall;
}

}  // namespace ferro::values
