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

struct Call {
  Stack& arguments;
  CardGenerator generator;
  const std::function<std::optional<OnCard>(std::size_t)>& find;

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
std::vector<std::int64_t> order_of(const Tensor& tensor, at::IntArrayRef strides) {
  std::vector<std::int64_t> order(strides.size());
  std::iota(order.begin(), order.end(), 0);
  const auto comes_before = [&](std::int64_t one, std::int64_t other) {
    const std::int64_t first = strides[static_cast<std::size_t>(one)];
    const std::int64_t second = strides[static_cast<std::size_t>(other)];
    return first != second ? first > second : tensor.size(one) > tensor.size(other);
  };
  std::stable_sort(order.begin(), order.end(), comes_before);
  return order;
}

// Fills the tensor by `draw`, which gets its elements in the kernel's order.
template <typename Draw>
bool fill(Call& call, const Tensor& tensor, at::IntArrayRef strides, const Draw& draw) {
  if (tensor.is_conj() || tensor.is_neg()) {
    return false;
  }
  if (tensor.strides() == strides && tensor.is_non_overlapping_and_dense()) {
    draw(call.generator, tensor.as_strided({tensor.numel()}, {1}));
    return true;
  }
  if (!fits_one_launch(tensor, strides)) {
    return false;
  }
  const Tensor ordered = tensor.permute(order_of(tensor, strides));
  const Tensor flat = at::empty({tensor.numel()}, tensor.options());
  draw(call.generator, flat);
  ordered.copy_(flat.view(ordered.sizes()));
  return true;
}

// For operators that fill their first argument and return it.
template <typename Draw>
bool fill_self(Call& call, const Draw& draw) {
  const Tensor self = call.tensor(0);
  if (!fill(call, self, call.strides(0), draw)) {
    return false;
  }
  call.arguments = {self};
  return true;
}

// The same, where complex numbers are filled as pairs.
template <typename Draw>
bool fill_self_or_pairs(Call& call, const Draw& draw) {
  const Tensor self = call.tensor(0);
  if (!self.is_complex()) {
    return fill_self(call, draw);
  }
  std::vector<std::int64_t> strides = call.strides(0);
  for (std::int64_t& stride : strides) {
    stride *= 2;
  }
  strides.push_back(1);
  if (self.is_conj() || !fill(call, at::view_as_real(self), strides, draw)) {
    return false;
  }
  call.arguments = {self};
  return true;
}

bool uniform(Call& call) {
  return fill_self_or_pairs(call, [from = call[1].toDouble(), to = call[2].toDouble()](
                                      CardGenerator& generator, const Tensor& flat) {
    draw_uniform(generator, flat, from, to);
  });
}

bool normal_in_place(Call& call) {
  const double all = call[2].toDouble();
  const double std = call.tensor(0).is_complex() ? all / std::sqrt(2) : all;
  return fill_self_or_pairs(
      call, [mean = call[1].toDouble(), std](CardGenerator& generator, const Tensor& flat) {
        draw_normal(generator, flat, mean, std);
      });
}

bool log_normal(Call& call) {
  return fill_self(call, [mean = call[1].toDouble(), std = call[2].toDouble()](
                             CardGenerator& generator, const Tensor& flat) {
    draw_log_normal(generator, flat, mean, std);
  });
}

bool cauchy(Call& call) {
  return fill_self(call, [median = call[1].toDouble(), sigma = call[2].toDouble()](
                             CardGenerator& generator, const Tensor& flat) {
    draw_cauchy(generator, flat, median, sigma);
  });
}

bool exponential(Call& call) {
  return fill_self(call,
                   [lambda = call[1].toDouble()](CardGenerator& generator, const Tensor& flat) {
                     draw_exponential(generator, flat, lambda);
                   });
}

bool geometric(Call& call) {
  return fill_self(call, [p = call[1].toDouble()](CardGenerator& generator, const Tensor& flat) {
    draw_geometric(generator, flat, p);
  });
}

bool bernoulli(Call& call) {
  return fill_self(call, [p = call[1].toDouble()](CardGenerator& generator, const Tensor& flat) {
    draw_bernoulli(generator, flat, p);
  });
}

bool integers(Call& call) {
  return fill_self(
      call, [](CardGenerator& generator, const Tensor& flat) { draw_integers(generator, flat); });
}

// The integers from `from` on, below `to` or all of the type's.
bool integers_between(Call& call, std::int64_t from, std::optional<std::int64_t> to) {
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
  return fill_self(call, [=](CardGenerator& generator, const Tensor& flat) {
    draw_integers(generator, flat, range, from);
  });
}

bool integers_from(Call& call) {
  return integers_between(call, call[1].toInt(), call[2].toOptional<std::int64_t>());
}

bool integers_to(Call& call) { return integers_between(call, 0, call[1].toInt()); }

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

bool bernoulli_of(Call& call) {
  const Tensor self = call.tensor(0);
  const Tensor given = call.tensor(1);
  const at::ScalarType type = self.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  if (self.is_conj() || (given.scalar_type() != type && !given.is_non_overlapping_and_dense())) {
    return false;
  }
  const std::vector<std::int64_t> strides = call.strides(0);
  const auto expanded =
      std::get<1>(at::inferExpandGeometry(given.sizes(), call.strides(1), self.sizes()));
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
  return true;
}

bool permutation(Call& call) {
  const std::int64_t elements = call[0].toInt();
  const Tensor out = call.tensor(call.arguments.size() - 1);
  // Each element takes 32 bytes of host memory.
  constexpr std::int64_t kMost = 1 << 27;
  if (out.numel() != elements || out.dim() != 1 || elements == 0 || elements > kMost) {
    return false;
  }
  const Tensor flat = at::empty({elements}, out.options());
  draw_permutation(call.generator, flat);
  out.copy_(flat);
  call.arguments = {out};
  return true;
}

// How many elements a thread of the kernel for dropout loads at once.
std::int64_t dropout_vector(const Tensor& input, std::uint64_t address) {
  std::int64_t vector = 16 / static_cast<std::int64_t>(input.element_size());
  while (vector > 1 && (address % static_cast<std::uint64_t>(
                                      vector * static_cast<std::int64_t>(input.element_size())) !=
                            0 ||
                        input.numel() % vector != 0)) {
    vector /= 2;
  }
  return vector;
}

bool dropout(Call& call) {
  const Tensor input = call.tensor(0);
  const double p = call[1].toDouble();
  const std::optional<OnCard> there = call.find(0);
  const std::optional<bool> trains = call[2].toOptional<bool>();
  if (!trains.value_or(true) || p == 1 || !there || !input.is_non_overlapping_and_dense() ||
      input.strides() != at::IntArrayRef(there->strides)) {
    return false;
  }
  const std::int64_t vector = dropout_vector(input, there->address);
  const bool is_double = input.scalar_type() == at::kDouble;
  const Tensor mask = at::empty_like(input, input.options().dtype(at::kBool));
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
  return true;
}

bool multinomial(Call& call) {
  const Tensor weights = call.tensor(0);
  const std::int64_t samples = call[1].toInt();
  const bool replaces = call[2].toBool();
  if (!weights.is_contiguous() || at::IntArrayRef(call.strides(0)) != weights.strides()) {
    return false;
  }
  if (!replaces || samples == 1) {
    const Tensor numbers = at::empty_like(weights);
    draw_exponential(call.generator, numbers.view({-1}), 1);
    at::div_out(const_cast<Tensor&>(numbers), weights, numbers);
    call.arguments = {samples == 1 ? numbers.argmax(-1, true)
                                   : std::get<1>(numbers.topk(samples, -1))};
    return true;
  }
  const std::int64_t rows = weights.dim() == 1 ? 1 : weights.size(0);
  if (weights.scalar_type() != at::kFloat || rows == 0) {
    return false;
  }
  const Tensor sums = weights.view({rows, -1}).div(weights.view({rows, -1}).sum(1, true)).cumsum(1);
  const Tensor drawn = at::empty({rows, samples}, weights.options());
  draw_samples(call.generator, drawn.view({-1}), rows);
  // The greatest numbers may be above the rounded sum of all categories.
  const Tensor chosen = at::searchsorted(sums, drawn.minimum(sums.narrow(1, -1, 1)));
  call.arguments = {weights.dim() == 1 ? chosen.squeeze(0) : chosen};
  return true;
}

// torch.normal with tensors.
template <bool kMean, bool kStd>
bool normal(Call& call) {
  const Tensor mean = kMean ? call.tensor(0) : Tensor();
  const Tensor std = kStd ? call.tensor(1) : Tensor();
  const Tensor& like = kMean ? mean : std;
  if (like.is_complex()) {
    return false;
  }
  const auto sizes = kMean && kStd ? at::infer_size(mean.sizes(), std.sizes()) : like.sizes().vec();
  Tensor made = at::empty(sizes, like.options());
  draw_normal(call.generator, made.view({-1}), 0, kStd ? 1 : call[1].toDouble());
  if (kStd) {
    made.mul_(std);
  }
  if (kMean) {
    made.add_(mean);
  } else {
    made.add_(at::full({}, call[0].toDouble(), made.options()));
  }
  call.arguments = {made};
  return true;
}

struct Operator {
  std::string_view name;
  bool (*draw)(Call& call);
};

constexpr Operator kOperators[] = {{"aten::uniform_", uniform},
                                   {"aten::normal_", normal_in_place},
                                   {"aten::log_normal_", log_normal},
                                   {"aten::cauchy_", cauchy},
                                   {"aten::exponential_", exponential},
                                   {"aten::geometric_", geometric},
                                   {"aten::bernoulli_.float", bernoulli},
                                   {"aten::bernoulli_.Tensor", bernoulli_of},
                                   {"aten::random_", integers},
                                   {"aten::random_.from", integers_from},
                                   {"aten::random_.to", integers_to},
                                   {"aten::randperm.generator_out", permutation},
                                   {"aten::native_dropout", dropout},
                                   {"aten::multinomial", multinomial},
                                   {"aten::normal.Tensor_float", normal<true, false>},
                                   {"aten::normal.float_Tensor", normal<false, true>},
                                   {"aten::normal.Tensor_Tensor", normal<true, true>}};

}  // namespace

bool draw_as_card(std::string_view name, Stack& stack, CardGenerator generator,
                  const std::function<std::optional<OnCard>(std::size_t)>& find) {
  const auto* const found = std::find_if(std::begin(kOperators), std::end(kOperators),
                                         [&](const Operator& op) { return op.name == name; });
  if (found == std::end(kOperators)) {
    return false;
  }
  Call call{stack, generator, find};
  return found->draw(call);
}

}  // namespace ferro::values
