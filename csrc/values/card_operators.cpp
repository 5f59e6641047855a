#include "values/card_operators.h"

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/native/DistributionTemplates.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace ferro::values {
namespace {

using at::Tensor;
using torch::jit::Stack;

// The program's arguments, on the device.
struct Given {
  c10::ArrayRef<c10::IValue> arguments;

  const c10::IValue& operator[](std::size_t place) const { return arguments[place]; }
  const Tensor& tensor(std::size_t place) const { return arguments[place].toTensor(); }
};

// The same on the host.
struct Call {
  Stack& arguments;
  CardGenerator generator;
  const std::function<std::optional<OnCard>(std::size_t)>& find;
  bool fails = false;  // by an assertion of the kernel

  const c10::IValue& operator[](std::size_t place) const { return arguments[place]; }
  Tensor tensor(std::size_t place) const { return arguments[place].toTensor(); }
  std::vector<std::int64_t> strides(std::size_t place) const {
    const std::optional<OnCard> there = find(place);
    return there ? there->strides : tensor(place).strides().vec();
  }
};

// An element's bytes end within 31 bits after the first one, so that a kernel takes all of them.
bool fits_one_launch(const Tensor& tensor, at::IntArrayRef strides) {
  std::int64_t last = 0;
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    last += (tensor.size(i) - 1) * strides[static_cast<std::size_t>(i)];
  }
  return last * static_cast<std::int64_t>(tensor.element_size()) <
         std::numeric_limits<std::int32_t>::max();
}

// The dimensions in the order in which at::TensorIterator runs through a result: the last one is the
// fastest.
std::vector<std::int64_t> order_of(at::IntArrayRef sizes, at::IntArrayRef strides) {
  std::vector<std::int64_t> order(strides.size());
  std::iota(order.begin(), order.end(), 0);
  const auto comes_before = [&](std::int64_t one, std::int64_t other) {
    const std::int64_t first = strides[static_cast<std::size_t>(one)];
    const std::int64_t second = strides[static_cast<std::size_t>(other)];
    return first != second
               ? first > second
               : sizes[static_cast<std::size_t>(one)] > sizes[static_cast<std::size_t>(other)];
  };
  std::stable_sort(order.begin(), order.end(), comes_before);
  return order;
}

// As of at::Tensor::is_non_overlapping_and_dense.
bool is_dense(at::IntArrayRef sizes, at::IntArrayRef strides) {
  const std::vector<std::int64_t> order = order_of(sizes, strides);
  std::int64_t together = 1;
  return std::all_of(order.rbegin(), order.rend(), [&](std::int64_t dimension) {
    const auto at = static_cast<std::size_t>(dimension);
    const bool follows = sizes[at] < 2 || strides[at] == together;
    together *= sizes[at];
    return follows;
  });
}

// The strides of a tensor that PyTorch makes like one with these.
std::vector<std::int64_t> strides_like(at::IntArrayRef sizes, at::IntArrayRef strides) {
  return is_dense(sizes, strides) ? strides.vec() : at::infer_dense_strides(sizes, strides);
}

bool can_fill(const Tensor& tensor) {
  return !tensor.is_conj() && !tensor.is_neg() &&
         (tensor.is_non_overlapping_and_dense() || fits_one_launch(tensor, tensor.strides()));
}

// Fills the tensor by `draw`, which gets its elements in the kernel's order.
template <typename Draw>
void fill(Call& call, const Tensor& tensor, at::IntArrayRef strides, const Draw& draw) {
  if (tensor.strides() == strides && tensor.is_non_overlapping_and_dense()) {
    draw(call.generator, tensor.as_strided({tensor.numel()}, {1}));
    return;
  }
  const Tensor ordered = tensor.permute(order_of(tensor.sizes(), strides));
  const Tensor flat = at::empty({tensor.numel()}, tensor.options());
  draw(call.generator, flat);
  ordered.copy_(flat.view(ordered.sizes()));
}

// For operators that fill their first argument and return it.
bool can_fill_self(const Given& given) { return can_fill(given.tensor(0)); }

template <typename Draw>
void fill_self(Call& call, const Draw& draw) {
  const Tensor self = call.tensor(0);
  fill(call, self, call.strides(0), draw);
  call.arguments = {self};
}

// The same, where complex numbers are filled as pairs.
template <typename Draw>
void fill_self_or_pairs(Call& call, const Draw& draw) {
  const Tensor self = call.tensor(0);
  if (!self.is_complex()) {
    fill_self(call, draw);
    return;
  }
  std::vector<std::int64_t> strides = call.strides(0);
  for (std::int64_t& stride : strides) {
    stride *= 2;
  }
  strides.push_back(1);
  fill(call, at::view_as_real(self), strides, draw);
  call.arguments = {self};
}

// Of the results of operators that are given a tensor for them, which PyTorch may have to resize.
bool can_fill_out(const Tensor& out, at::IntArrayRef sizes) {
  return out.numel() == 0 || (out.sizes() == sizes && can_fill(out));
}

// What a card rounds in another way may be as far from what the host computes, relative to the largest.
constexpr double kRounded = 1e-6;

// A card's kernel asserts that numbers are not below zero, nor above the largest ones.
void require(Call& call, const Tensor& numbers, const Tensor& largest) {
  const auto are_within = [&](double beyond) {
    return numbers.ge(largest.mul(-beyond)).logical_and(numbers.le(largest.mul(1 + beyond)));
  };
  if (are_within(0).all().item<bool>()) {
    return;
  }
  TORCH_CHECK(!are_within(kRounded).all().item<bool>(), "it depends on roundings whether it fails");
  call.fails = true;
}

void uniform(Call& call) {
  fill_self_or_pairs(call, [from = call[1].toDouble(), to = call[2].toDouble()](
                               CardGenerator& generator, const Tensor& flat) {
    draw_uniform(generator, flat, from, to);
  });
}

void normal_in_place(Call& call) {
  const double all = call[2].toDouble();
  const double std = call.tensor(0).is_complex() ? all / std::sqrt(2) : all;
  fill_self_or_pairs(
      call, [mean = call[1].toDouble(), std](CardGenerator& generator, const Tensor& flat) {
        draw_normal(generator, flat, mean, std);
      });
}

void log_normal(Call& call) {
  fill_self(call, [mean = call[1].toDouble(), std = call[2].toDouble()](CardGenerator& generator,
                                                                        const Tensor& flat) {
    draw_log_normal(generator, flat, mean, std);
  });
}

void cauchy(Call& call) {
  fill_self(call, [median = call[1].toDouble(), sigma = call[2].toDouble()](
                      CardGenerator& generator, const Tensor& flat) {
    draw_cauchy(generator, flat, median, sigma);
  });
}

void exponential(Call& call) {
  fill_self(call, [lambda = call[1].toDouble()](CardGenerator& generator, const Tensor& flat) {
    draw_exponential(generator, flat, lambda);
  });
}

void geometric(Call& call) {
  fill_self(call, [p = call[1].toDouble()](CardGenerator& generator, const Tensor& flat) {
    draw_geometric(generator, flat, p);
  });
}

void bernoulli(Call& call) {
  fill_self(call, [p = call[1].toDouble()](CardGenerator& generator, const Tensor& flat) {
    draw_bernoulli(generator, flat, p);
  });
}

void integers(Call& call) {
  fill_self(call,
            [](CardGenerator& generator, const Tensor& flat) { draw_integers(generator, flat); });
}

// The integers from `from` on, below `to` or all of the type's.
void integers_between(Call& call, std::int64_t from, std::optional<std::int64_t> to) {
  namespace templates = at::native::templates;
  const at::ScalarType type = call.tensor(0).scalar_type();
  std::optional<std::uint64_t> range;
  if (to || from != std::numeric_limits<std::int64_t>::lowest()) {
    std::int64_t last = 0;
    if (at::isFloatingType(type)) {
      AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, type, "random_from_to", [&] {
        from = templates::update_from<scalar_t>(from);
        last = to ? templates::update_to<scalar_t>(*to) - 1
                  : std::int64_t{1} << std::numeric_limits<scalar_t>::digits;
      });
    } else if (to) {
      last = *to - 1;
    } else {
      AT_DISPATCH_V2(type, "random_from_to", AT_WRAP([&] {
                       last = static_cast<std::int64_t>(std::numeric_limits<scalar_t>::max());
                     }),
                     AT_EXPAND(AT_INTEGRAL_TYPES_V2), at::kBool);
    }
    range = static_cast<std::uint64_t>(last) - static_cast<std::uint64_t>(from) + 1;
  }
  fill_self(call, [=](CardGenerator& generator, const Tensor& flat) {
    draw_integers(generator, flat, range, from);
  });
}

void integers_from(Call& call) {
  integers_between(call, call[1].toInt(), call[2].toOptional<std::int64_t>());
}

void integers_to(Call& call) { integers_between(call, 0, call[1].toInt()); }

// The dimensions in the order in which the kernel for two tensors runs through them.
std::vector<std::int64_t> order_of_both(const Tensor& tensor, at::IntArrayRef strides,
                                        at::IntArrayRef others) {
  std::vector<std::int64_t> order(strides.size());
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t i = 0; i < order.size(); ++i) {
    for (std::size_t j = i + 1; j < order.size(); ++j) {
      const auto one = static_cast<std::size_t>(order[i]);
      const auto other = static_cast<std::size_t>(order[j]);
      const bool counts = tensor.size(order[i]) != 1 && tensor.size(order[j]) != 1;
      const bool is_better = strides[one] < strides[other] || others[one] < others[other];
      const bool is_worse = strides[one] > strides[other] || others[one] > others[other];
      if (counts && is_better && !is_worse) {
        std::swap(order[i], order[j]);
      }
    }
  }
  return order;
}

// `given`: the place of the probabilities.
void bernoulli_of(Call& call, std::size_t place, std::size_t given_place) {
  const Tensor given = call.tensor(given_place);
  const Tensor self = call.tensor(place);
  if (self.numel() == 0) {
    self.resize_(given.sizes());
  }
  const at::ScalarType type = self.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  require(call, given, at::ones({}, given.options()));
  const std::vector<std::int64_t> strides = call.strides(place);
  std::vector<std::int64_t> of_given = call.strides(given_place);
  if (given.scalar_type() != type || !call.find(given_place)) {
    of_given = strides_like(given.sizes(), of_given);  // it is converted or copied
  }
  const auto expanded = std::get<1>(at::inferExpandGeometry(given.sizes(), of_given, self.sizes()));
  const std::vector<std::int64_t> order = order_of_both(self, strides, expanded);
  const Tensor ordered = self.permute(order);
  const bool is_flat = ordered.is_contiguous();
  const Tensor flat =
      is_flat ? ordered.view({self.numel()}) : at::empty({self.numel()}, self.options());
  draw_bernoulli(call.generator, flat,
                 given.expand(self.sizes()).permute(order).to(type).contiguous());
  if (!is_flat) {
    ordered.copy_(flat.view(ordered.sizes()));
  }
  call.arguments = {self};
}

bool can_draw_bernoulli(const Given& given) { return !given.tensor(0).is_conj(); }
void bernoulli_of_tensor(Call& call) { bernoulli_of(call, 0, 1); }

// bernoulli.out(Tensor self, *, Generator? generator, Tensor(a!) out).
bool can_draw_bernoulli_out(const Given& given) {
  return can_fill_out(given.tensor(2), given.tensor(0).sizes());
}
void bernoulli_out(Call& call) { bernoulli_of(call, 2, 0); }

// Each element takes 32 bytes of host memory.
constexpr std::int64_t kMostPermuted = 1 << 27;

bool can_permute(const Given& given) {
  const std::int64_t elements = given[0].toInt();
  const Tensor& out = given.tensor(given.arguments.size() - 1);
  return elements <= kMostPermuted && out.dim() == 1 &&
         (out.numel() == elements || out.numel() == 0);
}

void permutation(Call& call) {
  const std::int64_t elements = call[0].toInt();
  const Tensor out = call.tensor(call.arguments.size() - 1);
  if (elements > 0) {
    const Tensor flat = at::empty({elements}, out.options());
    draw_permutation(call.generator, flat);
    out.resize_({elements}).copy_(flat);
  }
  call.arguments = {out};
}

// How many elements a thread of the kernel for dropout loads at once.
std::int64_t dropout_vector(const Tensor& input, const OnCard& there) {
  if (!is_dense(input.sizes(), there.strides)) {
    return 1;
  }
  std::int64_t vector = 16 / static_cast<std::int64_t>(input.element_size());
  while (vector > 1 &&
         (there.address % static_cast<std::uint64_t>(
                              vector * static_cast<std::int64_t>(input.element_size())) !=
              0 ||
          input.numel() % vector != 0)) {
    vector /= 2;
  }
  return vector;
}

// native_dropout(Tensor input, float p, bool? train). Without training, and with a probability of 1, it
// draws no numbers.
bool can_drop_out(const Given& given) {
  return given.tensor(0).is_cuda() && given[1].toDouble() != 1 &&
         given[2].toOptional<bool>().value_or(true);
}

void dropout(Call& call) {
  const Tensor input = call.tensor(0);
  const double p = call[1].toDouble();
  const OnCard there = call.find(0).value();
  const std::int64_t vector = dropout_vector(input, there);
  const bool is_double = input.scalar_type() == at::kDouble;
  const Tensor mask = at::empty_strided(input.sizes(), strides_like(input.sizes(), there.strides),
                                        input.options().dtype(at::kBool));
  // Without vectors it takes the elements in the order of indices, with them in that of memory.
  const Tensor flat = vector == 1 ? at::empty({input.numel()}, mask.options())
                                  : mask.as_strided({mask.numel()}, {1});
  draw_dropout(call.generator, flat, 1 - p, is_double, vector);
  if (vector == 1) {
    mask.copy_(flat.view(mask.sizes()));
  }
  const at::ScalarType computed = is_double ? at::kDouble : at::kFloat;
  const double keeps = is_double ? 1 - p : static_cast<double>(static_cast<float>(1 - p));
  const double factor = is_double ? 1 / keeps : static_cast<double>(static_cast<float>(1 / keeps));
  const Tensor output = input.to(computed).mul(mask).mul(factor).to(input.scalar_type());
  call.arguments = {output, mask};
}

// rrelu_with_noise(Tensor self, Tensor(b!) noise, Scalar lower, Scalar upper, bool training,
// Generator? generator), also in place and with a tensor for the result.
bool can_draw_slopes(const Given& given) {
  const Tensor& self = given.tensor(0);
  const Tensor& noise = given.tensor(1);
  // Other noise is computed and not stored.
  return given[4].toBool() && noise.is_contiguous() && noise.sizes() == self.sizes() &&
         noise.scalar_type() == self.scalar_type();
}

Tensor leaks(Call& call) {
  const Tensor self = call.tensor(0);
  const Tensor flat = at::empty({self.numel()}, self.options());
  draw_slopes(call.generator, flat, call[2].toScalar().toDouble(), call[3].toScalar().toDouble());
  const Tensor slopes = flat.view(self.sizes());
  const Tensor falls = self.le(0);
  call.tensor(1).copy_(slopes.masked_fill(falls.logical_not(), 1));
  return at::where(falls, self.mul(slopes), self);
}

void rrelu(Call& call) { call.arguments = {leaks(call)}; }

void rrelu_in_place(Call& call) {
  const Tensor self = call.tensor(0);
  call.arguments = {self.copy_(leaks(call))};
}

void rrelu_out(Call& call) {
  const Tensor out = call.tensor(6);
  const Tensor made = leaks(call);
  call.arguments = {out.resize_(made.sizes()).copy_(made)};
}

// multinomial(Tensor self, SymInt num_samples, bool replacement, Generator? generator), also with a
// tensor for the result. With replacement, sums of 16 bits depend on the order of summation.
bool can_sample(const Given& given) {
  const at::ScalarType type = given.tensor(0).scalar_type();
  return type == at::kDouble || type == at::kFloat || !given[2].toBool() || given[1].toInt() == 1;
}

// A card rounds sums of single precision, and logarithms, in another way, so a sample may be that of the
// next category, or two be exchanged. Counts how many pairs of numbers decide about samples: on an H200,
// which is the same for 10**5 of them, some of 10**8 differ. With 16 bits many quotients are equal.
bool samples_exactly(const Given& given) {
  constexpr std::int64_t kMostCompared = 1 << 16;
  const Tensor& weights = given.tensor(0);
  const std::int64_t samples = given[1].toInt();
  const std::int64_t categories = weights.size(-1);
  const std::int64_t rows = weights.numel() / std::max<std::int64_t>(categories, 1);
  const std::int64_t with = given[2].toBool() && samples > 1 ? categories : samples;
  return weights.scalar_type() == at::kDouble ||
         (weights.scalar_type() == at::kFloat && samples <= kMostCompared / with &&
          rows <= kMostCompared / with / samples);
}

Tensor sample(Call& call) {
  const Tensor weights = call.tensor(0);
  const std::int64_t samples = call[1].toInt();
  const std::int64_t rows = weights.dim() == 1 ? 1 : weights.size(0);
  if (weights.numel() == 0) {
    return at::empty(weights.dim() == 1 ? at::DimVector{samples} : at::DimVector{rows, samples},
                     at::kLong);
  }
  const Tensor largest = weights.amax(-1);
  if (largest.gt(0).logical_and(largest.isfinite()).all().item<bool>()) {
    require(call, weights.amin(-1), largest);
  } else {
    call.fails = true;
  }
  if (!call[2].toBool() || samples == 1) {
    const Tensor numbers = at::empty_strided(
        weights.sizes(), strides_like(weights.sizes(), call.strides(0)), weights.options());
    draw_exponential(call.generator, numbers.as_strided({numbers.numel()}, {1}), 1);
    const Tensor quotients = weights.div(numbers);
    if (samples == 1) {
      return quotients.argmax(-1, true);
    }
    const auto [chances, chosen] = quotients.topk(samples, -1);
    TORCH_CHECK(call.fails || chances.gt(0).all().item<bool>(),
                "which of equal numbers come first is unknown");
    return chosen;
  }
  const Tensor of_rows = weights.reshape({rows, -1});
  const Tensor sums = of_rows.div(of_rows.sum(1, true)).cumsum(1);
  const Tensor drawn = at::empty({rows, samples}, weights.options().dtype(at::kFloat));
  draw_samples(call.generator, drawn.view({-1}), rows);
  // The greatest numbers may be above the rounded sum of all categories.
  const Tensor chosen =
      at::searchsorted(sums, drawn.to(sums.scalar_type()).minimum(sums.narrow(1, -1, 1)));
  return weights.dim() == 1 ? chosen.squeeze(0) : chosen;
}

void multinomial(Call& call) { call.arguments = {sample(call)}; }

void multinomial_out(Call& call) {
  const Tensor out = call.tensor(4);
  const Tensor made = sample(call);
  call.arguments = {out.resize_(made.sizes()).copy_(made)};
}

// torch.normal with tensors: normal(mean, std, *, Generator? generator), also with one for the result.
template <typename Arguments>
std::vector<std::int64_t> sizes_of_normal(const Arguments& arguments, bool mean, bool std) {
  return mean && std ? at::infer_size(arguments.tensor(0).sizes(), arguments.tensor(1).sizes())
                     : arguments.tensor(mean ? 0 : 1).sizes().vec();
}

template <bool kMean, bool kStd>
bool can_draw_normal(const Given& given) {
  return !given.tensor(kMean ? 0 : 1).is_complex();
}

template <bool kMean, bool kStd>
bool can_draw_normal_out(const Given& given) {
  const Tensor& out = given.tensor(3);
  return can_draw_normal<kMean, kStd>(given) && !out.is_complex() &&
         can_fill_out(out, sizes_of_normal(given, kMean, kStd));
}

template <bool kMean, bool kStd>
void scale_normal(const Call& call, const Tensor& made) {
  if (kStd) {
    made.mul_(call.tensor(1));
  }
  if (kMean) {
    made.add_(call.tensor(0));
  } else {
    made.add_(at::full({}, call[0].toDouble(), made.options()));
  }
}

template <bool kMean, bool kStd>
void normal(Call& call) {
  const Tensor made =
      at::empty(sizes_of_normal(call, kMean, kStd), call.tensor(kMean ? 0 : 1).options());
  draw_normal(call.generator, made.view({-1}), 0, kStd ? 1 : call[1].toDouble());
  scale_normal<kMean, kStd>(call, made);
  call.arguments = {made};
}

template <bool kMean, bool kStd>
void normal_out(Call& call) {
  const Tensor out = call.tensor(3);
  if (out.numel() == 0) {
    out.resize_(sizes_of_normal(call, kMean, kStd));
  }
  fill(call, out, call.strides(3),
       [std = kStd ? 1 : call[1].toDouble()](CardGenerator& generator, const Tensor& flat) {
         draw_normal(generator, flat, 0, std);
       });
  scale_normal<kMean, kStd>(call, out);
  call.arguments = {out};
}

// Of logarithms of single precision that a card rounds in another way, the quotient may be on the other
// side of an integer: on an H200, of none of 1,000 elements, and of some of 100,003.
bool is_exact_geometric(const Given& given) {
  constexpr std::int64_t kMostEqual = 1000;
  return given.tensor(0).scalar_type() == at::kDouble || given.tensor(0).numel() <= kMostEqual;
}

struct Operator {
  std::string_view name;
  bool (*is_known)(const Given& given);
  void (*draw)(Call& call);
  bool (*is_exact)(const Given& given) = nullptr;  // else always
};

constexpr Operator kOperators[] = {
    {"aten::uniform_", can_fill_self, uniform},
    {"aten::normal_", can_fill_self, normal_in_place},
    {"aten::log_normal_", can_fill_self, log_normal},
    {"aten::cauchy_", can_fill_self, cauchy},
    {"aten::exponential_", can_fill_self, exponential},
    {"aten::geometric_", can_fill_self, geometric, is_exact_geometric},
    {"aten::bernoulli_.float", can_fill_self, bernoulli},
    {"aten::bernoulli_.Tensor", can_draw_bernoulli, bernoulli_of_tensor},
    {"aten::bernoulli.out", can_draw_bernoulli_out, bernoulli_out},
    {"aten::random_", can_fill_self, integers},
    {"aten::random_.from", can_fill_self, integers_from},
    {"aten::random_.to", can_fill_self, integers_to},
    {"aten::randperm.generator_out", can_permute, permutation},
    {"aten::native_dropout", can_drop_out, dropout},
    {"aten::rrelu_with_noise", can_draw_slopes, rrelu},
    {"aten::rrelu_with_noise_", can_draw_slopes, rrelu_in_place},
    {"aten::rrelu_with_noise.out", can_draw_slopes, rrelu_out},
    {"aten::multinomial", can_sample, multinomial, samples_exactly},
    {"aten::multinomial.out", can_sample, multinomial_out, samples_exactly},
    {"aten::normal.Tensor_float", can_draw_normal<true, false>, normal<true, false>},
    {"aten::normal.float_Tensor", can_draw_normal<false, true>, normal<false, true>},
    {"aten::normal.Tensor_Tensor", can_draw_normal<true, true>, normal<true, true>},
    {"aten::normal.Tensor_float_out", can_draw_normal_out<true, false>, normal_out<true, false>},
    {"aten::normal.float_Tensor_out", can_draw_normal_out<false, true>, normal_out<false, true>},
    {"aten::normal.Tensor_Tensor_out", can_draw_normal_out<true, true>, normal_out<true, true>}};

const Operator* find_operator(std::string_view name) {
  const auto* const found = std::find_if(std::begin(kOperators), std::end(kOperators),
                                         [&](const Operator& op) { return op.name == name; });
  return found == std::end(kOperators) ? nullptr : found;
}

// Whether with these arguments it gives the same results whatever its numbers are.
bool is_certain(const OperatorTraits& traits, const Given& given) {
  if (traits.trains && given[*traits.trains].isBool() && !given[*traits.trains].toBool()) {
    return true;
  }
  const double p = traits.probability ? given[*traits.probability].toDouble() : 0.5;
  return p == 0 || p == 1;
}

}  // namespace

Numbers numbers_of(const OperatorTraits& traits, c10::ArrayRef<c10::IValue> arguments,
                   std::uint32_t multiprocessors, std::uint32_t threads) {
  const Given given{arguments};
  if (!traits.random) {
    return Numbers::kNone;
  }
  const Operator* const found = find_operator(traits.name);
  // A card too small for a block of threads draws nothing.
  if (found != nullptr && multiprocessors * (threads / 256) != 0 && found->is_known(given)) {
    return found->is_exact == nullptr || found->is_exact(given) ? Numbers::kOfCard
                                                                : Numbers::kNearCard;
  }
  return is_certain(traits, given) ? Numbers::kNone : Numbers::kOfHost;
}

bool draw_as_card(std::string_view name, Stack& stack, CardGenerator generator,
                  const std::function<std::optional<OnCard>(std::size_t)>& find) {
  Call call{stack, generator, find};
  find_operator(name)->draw(call);
  return !call.fails;
}

}  // namespace ferro::values
