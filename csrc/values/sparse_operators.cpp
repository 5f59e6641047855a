#include "values/sparse_operators.h"

#include "values/evaluation.h"

#include <ATen/ATen.h>
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/SparseTensorImpl.h>
#include <torch/library.h>

#include <algorithm>
#include <limits>
#include <string>
#include <tuple>

namespace ferro::values {
namespace {

using at::Tensor;
using torch::jit::Stack;

// Without the dispatcher, which would count these as the program's operators.
struct Parts {
  explicit Parts(const Tensor& tensor)
      : indices(of(tensor).indices()),
        values(of(tensor).values()),
        sizes(tensor.sizes().vec()),
        sparse_dim(of(tensor).sparse_dim()),
        count(of(tensor).nnz()) {}

  Tensor indices;
  Tensor values;
  std::vector<std::int64_t> sizes;
  std::int64_t sparse_dim;
  std::int64_t count;

 private:
  static const at::SparseTensorImpl& of(const Tensor& tensor) {
    return *static_cast<at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl());
  }
};

// An operator on dense parts. Reads of its results are reported by the sparse operator's name.
struct HostPart {
  HostPart(const char* part, const char* sparse)
      : op(c10::Dispatcher::singleton().findSchemaOrThrow(part, "")), traits(traits_of(op)) {
    traits.name = sparse;
  }
  const c10::OperatorHandle op;
  OperatorTraits traits;
};

// Runs the operator, whose sparse result gets indices and values computed from these arguments.
void run_as(const HostPart& of_indices, const Stack& for_indices, const HostPart& of_values,
            const Stack& for_values, Stack& stack, const std::function<void()>& run) {
  Evaluation indices(of_indices.op, of_indices.traits);
  Evaluation values(of_values.op, of_values.traits);
  indices.begin(for_indices);
  values.begin(for_values);
  run();
  const Parts found(stack.back().toTensor());
  Stack found_indices = {found.indices};
  Stack found_values = {found.values};
  indices.end(found_indices);
  values.end(found_values);
}

bool coalesce(Stack& stack, const std::function<void()>& run) {
  static const HostPart of_indices("ferro_sim::coalesced_indices", "aten::_coalesce");
  static const HostPart of_values("ferro_sim::coalesced_values", "aten::_coalesce");
  const Parts given(stack.back().toTensor());
  if (given.count < 2) {
    run();  // copies
    return true;
  }
  // The number of rows does not depend on the values.
  run_as(of_indices, {given.indices, given.sizes}, of_values,
         {given.indices, given.values, given.sizes}, stack, run);
  return true;
}

// add.out(Tensor self, Tensor other, *, Scalar alpha, Tensor(a!) out)
bool add(Stack& stack, const std::function<void()>& run) {
  static const HostPart to_other("ferro_sim::add_sparse", "aten::add.out");
  static const HostPart in_place("ferro_sim::add_sparse_", "aten::add.out");
  const auto arguments = stack.end() - 4;
  const Tensor dense = arguments[0].toTensor();
  const Tensor sparse = arguments[1].toTensor();
  const Tensor out = arguments[3].toTensor();
  if (dense.layout() != at::kStrided || sparse.layout() != at::kSparse) {
    run();  // concatenates
    return true;
  }
  const Parts added(sparse);
  const bool same = out.is_same(dense);
  const HostPart& part = same ? in_place : to_other;
  Evaluation sum(part.op, part.traits);
  sum.begin(Stack{dense, added.indices, added.values, sparse.sizes().vec(), arguments[2]});
  run();
  Stack result;
  if (!same) {
    result.emplace_back(out);
  }
  sum.end(result);
  return true;
}

template <bool logarithm>
bool softmax(Stack& stack, const std::function<void()>& run) {
  constexpr const char* kName = logarithm ? "aten::_sparse_log_softmax" : "aten::_sparse_softmax";
  static const HostPart of_pools("ferro_sim::softmax_pools", kName);
  static const HostPart of_values("ferro_sim::softmax_values", kName);
  const Parts given((stack.end() - 3)->toTensor());
  const std::int64_t dimensions = static_cast<std::int64_t>(given.sizes.size());
  std::int64_t dimension = (stack.end() - 2)->toInt();
  dimension += dimension < 0 ? dimensions : 0;
  Evaluation pools(of_pools.op, of_pools.traits);
  Evaluation values(of_values.op, of_values.traits);
  const bool reads_pools = given.count > 0 && dimension < given.sparse_dim;
  if (reads_pools) {
    pools.begin(Stack{given.indices, dimension});
  }
  values.begin(Stack{given.indices, given.values, given.sizes, dimension, logarithm});
  run();
  if (reads_pools) {
    Stack none = {Tensor()};
    pools.end(none);
  }
  Stack found = {Parts(stack.back().toTensor()).values};
  values.end(found);
  return true;
}

bool index_select(Stack& stack, const std::function<void()>& run) {
  static const HostPart of_indices("ferro_sim::selected_indices", "aten::index_select");
  static const HostPart of_values("ferro_sim::selected_values", "aten::index_select");
  const auto arguments = stack.end() - 3;
  const Parts given(arguments[0].toTensor());
  const Tensor index = arguments[2].toTensor();
  const auto dimensions = static_cast<std::int64_t>(given.sizes.size());
  std::int64_t dimension = arguments[1].toInt();
  dimension += dimension < 0 ? dimensions : 0;
  if (dimension >= given.sparse_dim || index.numel() == 0 || given.count == 0) {
    run();  // selects values
    return true;
  }
  run_as(of_indices, {given.indices, given.sizes, dimension, index}, of_values,
         {given.indices, given.values, given.sizes, dimension, index}, stack, run);
  return true;
}

// sparse_mask(self, mask) and _sparse_mask_projection(self, mask, accumulate_matches)
template <std::size_t count>
bool mask(Stack& stack, const std::function<void()>& run) {
  static const HostPart of_values("ferro_sim::masked_values", "aten::sparse_mask");
  const auto arguments = stack.end() - static_cast<std::ptrdiff_t>(count);
  const Tensor given = arguments[0].toTensor();
  const Tensor mask = arguments[1].toTensor();
  if (given.layout() != at::kSparse || mask.layout() != at::kSparse ||
      (count == 3 && arguments[2].toBool())) {
    return false;
  }
  constexpr bool projects =
      count == 3;  // keeps the elements of `self`, instead of those of the mask
  const Parts from(given);
  Evaluation values(of_values.op, of_values.traits);
  values.begin(Stack{from.indices, from.values, from.sizes, Parts(mask).indices, projects});
  run();  // copies the indices
  Stack found = {Parts(stack.back().toTensor()).values};
  values.end(found);
  return true;
}

// The kernels of the parts.

// A sparse argument of a product or sum. Its layout is that of `at::Layout`.
struct Factor {
  explicit Factor(const Tensor& tensor)
      : sizes(tensor.sizes().vec()), layout(static_cast<std::int64_t>(tensor.layout())) {
    if (tensor.layout() == at::kSparse) {
      const Parts parts(tensor);
      first = second = parts.indices;
      values = parts.values;
    } else {
      const auto* const impl = at::sparse_csr::get_sparse_csr_impl(tensor);
      first = impl->compressed_indices();
      second = impl->plain_indices();
      values = impl->values();
    }
  }

  std::int64_t count() const { return values.size(0); }
  void push(Stack& stack) const { stack.insert(stack.end(), {first, second, sizes, layout}); }

  static bool is(const Tensor& tensor) {
    return tensor.layout() == at::kSparse || tensor.layout() == at::kSparseCsr ||
           tensor.layout() == at::kSparseCsc;
  }

  Tensor first;
  Tensor second;
  Tensor values;
  std::vector<std::int64_t> sizes;
  std::int64_t layout;
};

struct PairParts {
  HostPart places;  // of the elements: indices
  HostPart values;
};

// A product of two sparse matrices, or their sum. Its number of elements follows from their indices.
bool run_pair(const PairParts& parts, const Tensor& left, const Tensor& right,
              const c10::IValue& factor, at::Layout layout, Stack& stack,
              const std::function<void()>& run) {
  const Factor one(left);
  const Factor other(right);
  if (one.values.dim() != 1 || other.values.dim() != 1 || one.count() == 0 || other.count() == 0) {
    return false;
  }
  const auto result_layout = static_cast<std::int64_t>(layout);
  Stack for_places;
  one.push(for_places);
  other.push(for_places);
  Stack for_values = for_places;
  for_places.emplace_back(result_layout);
  for_values.insert(for_values.end(), {one.values, other.values, factor, result_layout});
  Evaluation places(parts.places.op, parts.places.traits);
  Evaluation values(parts.values.op, parts.values.traits);
  values.begin(for_values);
  places.begin(for_places);  // later, since the operator reads its answer
  run();
  const Factor found(stack.back().toTensor());
  // PyTorch adds a matrix to itself without cuSPARSE: the result shares its indices, and has values of
  // its own. A sum in place shares indices and values with a matrix.
  const auto shares = [&](const Factor& with) { return found.second.is_alias_of(with.second); };
  const bool keeps_values =
      found.values.is_alias_of(one.values) || found.values.is_alias_of(other.values);
  const bool is_new =
      !shares(one) || !shares(other) || (keeps_values && !one.values.is_same(other.values));
  if (is_new) {
    Stack found_places = {found.first, layout == at::kSparse ? Tensor() : found.second, Tensor()};
    Stack found_values = {found.values};
    places.end(found_places);
    values.end(found_values);
  }
  return true;
}

// _sparse_sparse_matmul(self, other)
bool multiply(Stack& stack, const std::function<void()>& run) {
  static const PairParts parts = {{"ferro_sim::product_places", "aten::_sparse_sparse_matmul"},
                                  {"ferro_sim::sparse_mm_values", "aten::_sparse_sparse_matmul"}};
  const auto arguments = stack.end() - 2;
  const Tensor left = arguments[0].toTensor();
  const Tensor right = arguments[1].toTensor();
  return run_pair(parts, left, right, 1, at::kSparse, stack, run);
}

// add.out(self, other, *, alpha, out)
bool add_compressed(Stack& stack, const std::function<void()>& run) {
  static const PairParts parts = {{"ferro_sim::sum_places", "aten::add.out"},
                                  {"ferro_sim::sum_values", "aten::add.out"}};
  const auto arguments = stack.end() - 4;
  const Tensor left = arguments[0].toTensor();
  const Tensor right = arguments[1].toTensor();
  const c10::IValue alpha = arguments[2];
  const at::Layout layout = arguments[3].toTensor().layout();
  const bool known = Factor::is(left) && left.layout() == right.layout() && left.layout() == layout;
  return known && run_pair(parts, left, right, alpha, layout, stack, run);
}

// addmm.out(self, mat1, mat2, *, beta, alpha, out)
bool multiply_compressed(Stack& stack, const std::function<void()>& run) {
  static const PairParts parts = {{"ferro_sim::product_places", "aten::addmm"},
                                  {"ferro_sim::sparse_mm_values", "aten::addmm"}};
  const auto arguments = stack.end() - 6;
  const Tensor left = arguments[1].toTensor();
  const Tensor right = arguments[2].toTensor();
  const at::Layout layout = arguments[5].toTensor().layout();
  if (!Factor::is(left) || !Factor::is(right) || layout == at::kStrided ||
      arguments[3].toScalar().toComplexDouble() != 0.0) {
    return false;
  }
  const c10::IValue alpha = arguments[4];
  return run_pair(parts, left, right, alpha, layout, stack, run);
}

// _to_sparse_csr(self, dense_dim) and _to_sparse_csc(self, dense_dim)
bool flip(Stack& stack, const std::function<void()>& run) {
  static const PairParts parts = {{"ferro_sim::flipped_places", "aten::_to_sparse_csc"},
                                  {"ferro_sim::flipped_values", "aten::_to_sparse_csc"}};
  const Tensor self = (stack.end() - 2)->toTensor();
  if (!Factor::is(self) || self.dim() != 2) {
    return false;
  }
  const Factor given(self);
  Evaluation places(parts.places.op, parts.places.traits);
  Evaluation values(parts.values.op, parts.values.traits);
  places.begin(Stack{given.first, given.second, given.sizes, given.layout});
  values.begin(Stack{given.second, given.values});
  run();
  const Factor found(stack.back().toTensor());
  Stack found_places = {found.first, found.second};
  Stack found_values = {found.values};
  places.end(found_places);
  values.end(found_values);
  return true;
}

// triangular_solve.X(self, A, upper, transpose, unitriangular, *, X, M)
bool solve(Stack& stack, const std::function<void()>& run) {
  static const HostPart part("ferro_sim::triangular_solution", "aten::triangular_solve");
  const auto arguments = stack.end() - 7;
  const Factor matrix(arguments[1].toTensor());
  const Tensor out = arguments[5].toTensor();
  if (matrix.layout != static_cast<std::int64_t>(at::kSparseCsr) || matrix.values.dim() != 1) {
    return false;
  }
  Evaluation evaluation(part.op, part.traits);
  evaluation.begin(Stack{arguments[0], matrix.first, matrix.second, matrix.values, arguments[2],
                         arguments[3], arguments[4]});
  run();
  Stack result = {out};
  evaluation.end(result);
  return true;
}

// Of an operator's arguments, by their places.
struct ProductPlaces {
  std::size_t arguments;
  std::size_t left;
  bool is_added;  // to the first argument
  bool has_out;   // the last argument
  bool in_place;
};

// mm(self, mat2), addmm(self, mat1, mat2, *, beta, alpha), addmv(self, mat, vec, *, beta, alpha) and
// bmm(self, mat2), with `out` after them or not.
template <ProductPlaces places>
bool product(Stack& stack, const std::function<void()>& run) {
  static const auto part = [](const char* name) {
    HostPart made(name, places.is_added ? "aten::addmm" : "aten::mm");
    made.traits.factor = 8;
    return made;
  };
  static const HostPart to_other = part("ferro_sim::sparse_addmm");
  static const HostPart in_place = part("ferro_sim::sparse_addmm_");
  const auto arguments = stack.end() - static_cast<std::ptrdiff_t>(places.arguments);
  const Tensor left = arguments[places.left].toTensor();
  const Tensor right = arguments[places.left + 1].toTensor();
  if (places.arguments == 6 && places.left == 1 && Factor::is(left) && Factor::is(right)) {
    return multiply_compressed(stack, run);
  }
  const bool sparse_first = Factor::is(left) && right.layout() == at::kStrided;
  if (!sparse_first && !(Factor::is(right) && left.layout() == at::kStrided)) {
    return false;
  }
  const Factor factor(sparse_first ? left : right);
  if (factor.values.dim() != 1) {
    return false;
  }
  c10::IValue added, beta = 0, alpha = 1;
  if (places.is_added) {
    added = arguments[0];
    beta = arguments[3];
    alpha = arguments[4];
    if (added.toTensor().layout() != at::kStrided) {
      return false;
    }
  }
  Tensor out;
  if (places.in_place) {
    out = arguments[0].toTensor();
  } else if (places.has_out) {
    out = arguments[places.arguments - 1].toTensor();
  }
  const bool same = out.defined() && places.is_added && out.is_same(arguments[0].toTensor());
  Evaluation evaluation(same ? in_place.op : to_other.op, same ? in_place.traits : to_other.traits);
  evaluation.begin(Stack{added, factor.first, factor.second, factor.values, factor.sizes,
                         factor.layout, sparse_first ? right : left, sparse_first, beta, alpha});
  run();
  Stack result;
  if (!same) {
    result.emplace_back(stack.back());
  }
  evaluation.end(result);
  return true;
}

// sparse_sampled_addmm(self, mat1, mat2, *, beta, alpha), with `out` after them or not
template <std::size_t count>
bool sampled(Stack& stack, const std::function<void()>& run) {
  static const HostPart part("ferro_sim::sampled_addmm", "aten::sparse_sampled_addmm");
  const auto arguments = stack.end() - static_cast<std::ptrdiff_t>(count);
  const Tensor self = arguments[0].toTensor();
  if (self.layout() != at::kSparseCsr || self.dim() != 2) {
    return false;
  }
  const Factor places(self);
  if (count == 6 && arguments[5].toTensor().is_same(self)) {
    return false;
  }
  Evaluation evaluation(part.op, part.traits);
  evaluation.begin(Stack{places.first, places.second, places.values, arguments[1], arguments[2],
                         arguments[3], arguments[4]});
  run();
  Stack result = {Factor(stack.back().toTensor()).values};
  evaluation.end(result);
  return true;
}

Tensor make_sparse(const Tensor& indices, const Tensor& values, at::IntArrayRef sizes) {
  const std::int64_t sparse_dim = indices.size(0);
  return at::_sparse_coo_tensor_with_dims_and_tensors(
      sparse_dim, static_cast<std::int64_t>(sizes.size()) - sparse_dim, sizes, indices, values,
      values.options().layout(at::kSparse));
}

Tensor coalesced_indices(const Tensor& indices, at::IntArrayRef sizes) {
  const Tensor values = at::zeros({indices.size(1)}, indices.options().dtype(at::kByte));
  return at::_coalesce(make_sparse(indices, values, sizes.slice(0, indices.size(0))))._indices();
}

Tensor coalesced_values(const Tensor& indices, const Tensor& values, at::IntArrayRef sizes) {
  return at::_coalesce(make_sparse(indices, values, sizes))._values();
}

Tensor add_sparse(const Tensor& dense, const Tensor& indices, const Tensor& values,
                  at::IntArrayRef sizes, const at::Scalar& factor) {
  return at::add(dense, make_sparse(indices, values, sizes), factor);
}

void add_sparse_in_place(Tensor& dense, const Tensor& indices, const Tensor& values,
                         at::IntArrayRef sizes, const at::Scalar& factor) {
  dense.add_(make_sparse(indices, values, sizes), factor);
}

// A column for each row of the softmax that has elements.
Tensor softmax_pools(const Tensor& indices, std::int64_t dimension) {
  if (indices.size(0) == 1) {
    return at::zeros({1, 1}, indices.options());
  }
  const std::vector<Tensor> others = {indices.slice(0, 0, dimension),
                                      indices.slice(0, dimension + 1, indices.size(0))};
  return std::get<0>(at::unique_dim(at::cat(others), 1));
}

Tensor softmax_values(const Tensor& indices, const Tensor& values, at::IntArrayRef sizes,
                      std::int64_t dimension, bool logarithm) {
  const Tensor input = make_sparse(indices, values, sizes);
  return (logarithm ? at::_sparse_log_softmax(input, dimension, false)
                    : at::_sparse_softmax(input, dimension, false))
      ._values();
}

Tensor selected_indices(const Tensor& indices, at::IntArrayRef sizes, std::int64_t dimension,
                        const Tensor& index) {
  const Tensor values = at::zeros({indices.size(1)}, indices.options().dtype(at::kByte));
  const Tensor input = make_sparse(indices, values, sizes.slice(0, indices.size(0)));
  return at::index_select(input, dimension, index)._indices();
}

Tensor selected_values(const Tensor& indices, const Tensor& values, at::IntArrayRef sizes,
                       std::int64_t dimension, const Tensor& index) {
  return at::index_select(make_sparse(indices, values, sizes), dimension, index)._values();
}

Tensor masked_values(const Tensor& indices, const Tensor& values, at::IntArrayRef sizes,
                     const Tensor& places, bool projects) {
  const Tensor none = at::zeros({places.size(1)}, values.options());
  const Tensor mask = make_sparse(places, none, sizes.slice(0, places.size(0))).coalesce();
  const Tensor given = make_sparse(indices, values, sizes);
  return (projects ? given._sparse_mask_projection(mask) : given.sparse_mask(mask))._values();
}

// In coordinates.
Tensor factor_of(const Tensor& first, const Tensor& second, const Tensor& values,
                 at::IntArrayRef sizes, at::Layout layout) {
  const Tensor indices = layout == at::kSparse ? first
                                               : at::_convert_indices_from_csr_to_coo(
                                                     first, second, false, layout == at::kSparseCsc)
                                                     .to(at::kLong);
  return make_sparse(indices, values, sizes);
}

// The CPU has no sparse products of 16 bits.
Tensor widened(const Tensor& tensor) {
  const bool is_narrow = tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16;
  return is_narrow ? tensor.to(at::kFloat) : tensor;
}

// Indices in coordinates. Unknown ones may be out of range, which kernels do not check.
Tensor coordinates(const Tensor& first, const Tensor& second, at::IntArrayRef sizes,
                   at::Layout layout) {
  Tensor indices = first;
  if (layout != at::kSparse) {
    const Tensor lines =
        at::repeat_interleave(at::arange(first.size(0) - 1), first.diff().to(at::kLong));
    const Tensor others = second.narrow(0, 0, lines.size(0)).to(at::kLong);
    indices = layout == at::kSparseCsc ? at::stack({others, lines}) : at::stack({lines, others});
  }
  const Tensor most = at::tensor(sizes, at::kLong).unsqueeze(1);
  TORCH_CHECK(indices.ge(0).logical_and(indices.lt(most)).all().item<bool>());
  return indices;
}

// Of a sparse matrix in coordinates, in the order of its rows, or of its columns. The last one is what
// cuSPARSE reads back: how many elements, and, 32 bits further, how many products.
std::tuple<Tensor, Tensor, Tensor> places_of(const Tensor& matrix, std::int64_t products,
                                             at::Layout layout, at::ScalarType type) {
  const Tensor sorted = (layout == at::kSparseCsc ? matrix.t() : matrix).coalesce();
  const std::int64_t most = std::numeric_limits<std::uint32_t>::max();
  const auto high = static_cast<std::uint64_t>(std::min(products, most)) << 32;
  const auto answer = static_cast<std::int64_t>(high + static_cast<std::uint64_t>(sorted._nnz()));
  const Tensor counts = at::scalar_tensor(answer, at::kLong);
  const Tensor indices = sorted._indices();
  if (layout == at::kSparse) {
    return {indices, Tensor(), counts};
  }
  return {at::_convert_indices_from_coo_to_csr(indices[0], sorted.size(0), type == at::kInt),
          indices[1].to(type), counts};
}

// Without values: all elements are ones.
Tensor pattern(const Tensor& indices, at::IntArrayRef sizes) {
  return make_sparse(indices, at::ones({indices.size(1)}), sizes);
}

// Elements in the order of the other dimension. Those of one row or column keep theirs.
Tensor flipped_order(const Tensor& second) { return at::argsort(second, true, 0, false); }

std::tuple<Tensor, Tensor> flipped_places(const Tensor& first, const Tensor& second,
                                          at::IntArrayRef sizes, std::int64_t layout) {
  const bool rows = at::Layout(layout) == at::kSparseCsr;
  const Tensor indices = coordinates(first, second, sizes, at::Layout(layout));
  const Tensor order = flipped_order(second);
  const Tensor others = indices[rows ? 1 : 0].index_select(0, order);
  return {at::_convert_indices_from_coo_to_csr(others, sizes[rows ? 1 : 0],
                                               second.scalar_type() == at::kInt),
          indices[rows ? 0 : 1].index_select(0, order).to(second.scalar_type())};
}

Tensor flipped_values(const Tensor& second, const Tensor& values) {
  return values.index_select(0, flipped_order(second));
}

std::tuple<Tensor, Tensor, Tensor> product_places(
    const Tensor& first, const Tensor& second, at::IntArrayRef sizes, std::int64_t layout,
    const Tensor& other_first, const Tensor& other_second, at::IntArrayRef other_sizes,
    std::int64_t other_layout, std::int64_t result_layout) {
  const Tensor left =
      pattern(coordinates(first, second, sizes, at::Layout(layout)), sizes).coalesce();
  const Tensor right =
      pattern(coordinates(other_first, other_second, other_sizes, at::Layout(other_layout)),
              other_sizes)
          .coalesce();
  const Tensor lengths = at::bincount(right._indices()[0], {}, other_sizes[0]);
  const auto products = lengths.index_select(0, left._indices()[1]).sum().item<std::int64_t>();
  return places_of(at::mm(left, right), products, at::Layout(result_layout), at::kInt);
}

std::tuple<Tensor, Tensor, Tensor> sum_places(const Tensor& first, const Tensor& second,
                                              at::IntArrayRef sizes, std::int64_t layout,
                                              const Tensor& other_first, const Tensor& other_second,
                                              at::IntArrayRef other_sizes,
                                              std::int64_t other_layout,
                                              std::int64_t result_layout) {
  const Tensor indices =
      at::cat({coordinates(first, second, sizes, at::Layout(layout)),
               coordinates(other_first, other_second, other_sizes, at::Layout(other_layout))},
              1);
  return places_of(pattern(indices, sizes), 0, at::Layout(result_layout), second.scalar_type());
}

// In the order of `places_of`.
Tensor in_order(const Tensor& matrix, std::int64_t layout) {
  return (at::Layout(layout) == at::kSparseCsc ? matrix.t() : matrix).coalesce()._values();
}

Tensor sparse_mm_values(const Tensor& first, const Tensor& second, at::IntArrayRef sizes,
                        std::int64_t layout, const Tensor& other_first, const Tensor& other_second,
                        at::IntArrayRef other_sizes, std::int64_t other_layout,
                        const Tensor& values, const Tensor& other_values, const at::Scalar& factor,
                        std::int64_t result_layout) {
  const Tensor left =
      make_sparse(coordinates(first, second, sizes, at::Layout(layout)), widened(values), sizes);
  const Tensor right =
      make_sparse(coordinates(other_first, other_second, other_sizes, at::Layout(other_layout)),
                  widened(other_values), other_sizes);
  return in_order(at::mm(left, right), result_layout).mul(factor).to(values.scalar_type());
}

Tensor sum_values(const Tensor& first, const Tensor& second, at::IntArrayRef sizes,
                  std::int64_t layout, const Tensor& other_first, const Tensor& other_second,
                  at::IntArrayRef other_sizes, std::int64_t other_layout, const Tensor& values,
                  const Tensor& other_values, const at::Scalar& factor,
                  std::int64_t result_layout) {
  const Tensor indices =
      at::cat({coordinates(first, second, sizes, at::Layout(layout)),
               coordinates(other_first, other_second, other_sizes, at::Layout(other_layout))},
              1);
  return in_order(make_sparse(indices, at::cat({values, other_values.mul(factor)}), sizes),
                  result_layout);
}

// Solves for the right sides in place. The other triangle of the matrix is not read.
template <typename Number>
void substitute(const Tensor& pointers, const Tensor& columns, const Tensor& values, bool upper,
                bool transpose, bool unit, Tensor& sides) {
  const auto begins = pointers.accessor<std::int64_t, 1>();
  const auto places = columns.accessor<std::int64_t, 1>();
  const auto numbers = values.accessor<Number, 1>();
  auto solved = sides.accessor<Number, 2>();
  const std::int64_t rows = sides.size(0);
  const auto subtract = [&](std::int64_t to, std::int64_t from, Number number) {
    for (std::int64_t side = 0; side < sides.size(1); ++side) {
      solved[to][side] -= number * solved[from][side];
    }
  };
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t row = upper != transpose ? rows - 1 - i : i;
    Number diagonal = unit ? 1 : 0;
    const auto for_others = [&](const auto& visit) {
      for (std::int64_t at = begins[row]; at < begins[row + 1]; ++at) {
        if (upper ? places[at] > row : places[at] < row) {
          visit(places[at], numbers[at]);
        } else if (places[at] == row && !unit) {
          diagonal = numbers[at];
        }
      }
    };
    for_others([&](std::int64_t column, Number number) {
      if (!transpose) {
        subtract(row, column, number);
      }
    });
    for (std::int64_t side = 0; side < sides.size(1); ++side) {
      solved[row][side] /= diagonal;
    }
    if (transpose) {
      for_others([&](std::int64_t column, Number number) { subtract(column, row, number); });
    }
  }
}

Tensor triangular_solution(const Tensor& sides, const Tensor& first, const Tensor& second,
                           const Tensor& values, bool upper, bool transpose, bool unit) {
  Tensor solved = sides.clone(at::MemoryFormat::Contiguous);
  coordinates(first, second, {sides.size(0), sides.size(0)}, at::kSparseCsr);  // checks them
  AT_DISPATCH_FLOATING_AND_COMPLEX_TYPES(values.scalar_type(), "triangular_solution", [&] {
    substitute<scalar_t>(first.to(at::kLong), second.to(at::kLong), values, upper, transpose, unit,
                         solved);
  });
  return solved;
}

Tensor sparse_product(const Tensor& sparse, const Tensor& dense, bool sparse_first) {
  if (sparse.dim() == 3) {
    return at::bmm(sparse, dense);
  }
  if (dense.dim() == 1) {
    return at::mm(sparse, dense.unsqueeze(1)).squeeze(1);
  }
  return sparse_first ? at::mm(sparse, dense) : at::mm(sparse.t(), dense.t()).t();
}

Tensor sparse_addmm(const std::optional<Tensor>& added, const Tensor& first, const Tensor& second,
                    const Tensor& values, at::IntArrayRef sizes, std::int64_t layout,
                    const Tensor& dense, bool sparse_first, const at::Scalar& beta,
                    const at::Scalar& alpha) {
  const Tensor factor =
      factor_of(first, second, widened(values), sizes, static_cast<at::Layout>(layout));
  Tensor result = sparse_product(factor, widened(dense), sparse_first).mul(alpha);
  if (added && beta.toComplexDouble() != 0.0) {
    result = result + widened(*added).mul(beta);
  }
  return result.to(values.scalar_type()).contiguous();
}

void sparse_addmm_in_place(Tensor& added, const Tensor& first, const Tensor& second,
                           const Tensor& values, at::IntArrayRef sizes, std::int64_t layout,
                           const Tensor& dense, bool sparse_first, const at::Scalar& beta,
                           const at::Scalar& alpha) {
  added.copy_(
      sparse_addmm(added, first, second, values, sizes, layout, dense, sparse_first, beta, alpha));
}

Tensor sampled_addmm(const Tensor& first, const Tensor& second, const Tensor& values,
                     const Tensor& left, const Tensor& right, const at::Scalar& beta,
                     const at::Scalar& alpha) {
  const Tensor at = at::_convert_indices_from_csr_to_coo(first, second).to(at::kLong);
  const Tensor products =
      (widened(left).index_select(0, at[0]) * widened(right).t().index_select(0, at[1]))
          .sum(1)
          .mul(alpha);
  return (beta.toComplexDouble() == 0.0 ? products : products + widened(values).mul(beta))
      .to(values.scalar_type());
}

TORCH_LIBRARY(ferro_sim, m) {
  m.def("selected_indices(Tensor indices, int[] sizes, int dimension, Tensor index) -> Tensor");
  m.def(
      "selected_values(Tensor indices, Tensor values, int[] sizes, int dimension, Tensor index)"
      " -> Tensor");
  m.def("coalesced_indices(Tensor indices, int[] sizes) -> Tensor");
  m.def("coalesced_values(Tensor indices, Tensor values, int[] sizes) -> Tensor");
  m.def(
      "add_sparse(Tensor dense, Tensor indices, Tensor values, int[] sizes, Scalar factor)"
      " -> Tensor");
  m.def(
      "add_sparse_(Tensor(a!) dense, Tensor indices, Tensor values, int[] sizes, Scalar factor)"
      " -> ()");
  m.def(
      "sparse_addmm(Tensor? added, Tensor first, Tensor second, Tensor values, int[] sizes, "
      "int layout, Tensor dense, bool sparse_first, Scalar beta, Scalar alpha) -> Tensor");
  m.def(
      "sparse_addmm_(Tensor(a!) added, Tensor first, Tensor second, Tensor values, int[] sizes, "
      "int layout, Tensor dense, bool sparse_first, Scalar beta, Scalar alpha) -> ()");
  m.def(
      "sampled_addmm(Tensor first, Tensor second, Tensor values, Tensor left, Tensor right, "
      "Scalar beta, Scalar alpha) -> Tensor");
  const std::string pair =
      "(Tensor first, Tensor second, int[] sizes, int layout, Tensor other_first, "
      "Tensor other_second, int[] other_sizes, int other_layout, ";
  const std::string places = pair + "int result_layout) -> (Tensor, Tensor, Tensor)";
  const std::string values =
      pair + "Tensor values, Tensor other_values, Scalar factor, int result_layout) -> Tensor";
  m.def(("product_places" + places).c_str());
  m.def(("sum_places" + places).c_str());
  m.def(("sparse_mm_values" + values).c_str());
  m.def(("sum_values" + values).c_str());
  m.def(
      "triangular_solution(Tensor sides, Tensor first, Tensor second, Tensor values, bool upper, "
      "bool transpose, bool unit) -> Tensor");
  m.def("flipped_places(Tensor first, Tensor second, int[] sizes, int layout) -> (Tensor, Tensor)");
  m.def("flipped_values(Tensor second, Tensor values) -> Tensor");
  m.def(
      "masked_values(Tensor indices, Tensor values, int[] sizes, Tensor places, bool projects)"
      " -> Tensor");
  m.def("softmax_pools(Tensor indices, int dimension) -> Tensor");
  m.def(
      "softmax_values(Tensor indices, Tensor values, int[] sizes, int dimension, bool logarithm)"
      " -> Tensor");
}

TORCH_LIBRARY_IMPL(ferro_sim, CPU, m) {
  m.impl("selected_indices", &selected_indices);
  m.impl("selected_values", &selected_values);
  m.impl("coalesced_indices", &coalesced_indices);
  m.impl("coalesced_values", &coalesced_values);
  m.impl("add_sparse", &add_sparse);
  m.impl("add_sparse_", &add_sparse_in_place);
  m.impl("sparse_addmm", &sparse_addmm);
  m.impl("sparse_addmm_", &sparse_addmm_in_place);
  m.impl("sampled_addmm", &sampled_addmm);
  m.impl("product_places", &product_places);
  m.impl("sum_places", &sum_places);
  m.impl("sparse_mm_values", &sparse_mm_values);
  m.impl("sum_values", &sum_values);
  m.impl("triangular_solution", &triangular_solution);
  m.impl("flipped_places", &flipped_places);
  m.impl("flipped_values", &flipped_values);
  m.impl("masked_values", &masked_values);
  m.impl("softmax_pools", &softmax_pools);
  m.impl("softmax_values", &softmax_values);
}

}  // namespace

namespace {

SparseEvaluation product_evaluation(std::string_view name) {
  return name == "aten::mm"          ? &product<ProductPlaces{2, 0, false, false, false}>
         : name == "aten::mm.out"    ? &product<ProductPlaces{3, 0, false, true, false}>
         : name == "aten::bmm"       ? &product<ProductPlaces{2, 0, false, false, false}>
         : name == "aten::bmm.out"   ? &product<ProductPlaces{3, 0, false, true, false}>
         : name == "aten::addmm"     ? &product<ProductPlaces{5, 1, true, false, false}>
         : name == "aten::addmm_"    ? &product<ProductPlaces{5, 1, true, false, true}>
         : name == "aten::addmm.out" ? &product<ProductPlaces{6, 1, true, true, false}>
         : name == "aten::addmv.out" ? &product<ProductPlaces{6, 1, true, true, false}>
                                     : nullptr;
}

}  // namespace

SparseEvaluation sparse_evaluation(std::string_view name) {
  return name == "aten::_coalesce"                 ? &coalesce
         : name == "aten::index_select"            ? &index_select
         : name == "aten::add.out"                 ? &add
         : name == "aten::_sparse_softmax"         ? &softmax<false>
         : name == "aten::_sparse_log_softmax"     ? &softmax<true>
         : name == "aten::_sparse_sparse_matmul"   ? &multiply
         : name == "aten::sparse_mask"             ? &mask<2>
         : name == "aten::_sparse_mask_projection" ? &mask<3>
                                                   : product_evaluation(name);
}

SparseEvaluation compressed_evaluation(std::string_view name) {
  return name == "aten::sparse_sampled_addmm"       ? &sampled<5>
         : name == "aten::sparse_sampled_addmm.out" ? &sampled<6>
         : name == "aten::add.out"                  ? &add_compressed
         : name == "aten::_to_sparse_csr"           ? &flip
         : name == "aten::_to_sparse_csc"           ? &flip
         : name == "aten::triangular_solve.X"       ? &solve
                                                    : product_evaluation(name);
}

}  // namespace ferro::values
