#include "values/sparse_operators.h"

#include "values/evaluation.h"

#include <ATen/ATen.h>
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/SparseTensorImpl.h>
#include <torch/library.h>

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

// The kernels of the parts.

// A sparse factor of a product. Its layout is that of `at::Layout`.
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
  return name == "aten::_coalesce"             ? &coalesce
         : name == "aten::index_select"        ? &index_select
         : name == "aten::add.out"             ? &add
         : name == "aten::_sparse_softmax"     ? &softmax<false>
         : name == "aten::_sparse_log_softmax" ? &softmax<true>
                                               : product_evaluation(name);
}

SparseEvaluation compressed_evaluation(std::string_view name) {
  return name == "aten::sparse_sampled_addmm"       ? &sampled<5>
         : name == "aten::sparse_sampled_addmm.out" ? &sampled<6>
                                                    : product_evaluation(name);
}

}  // namespace ferro::values
