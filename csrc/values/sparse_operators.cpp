#include "values/sparse_operators.h"

#include "values/evaluation.h"

#include <ATen/ATen.h>
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

void coalesce(Stack& stack, const std::function<void()>& run) {
  static const HostPart of_indices("ferro_sim::coalesced_indices", "aten::_coalesce");
  static const HostPart of_values("ferro_sim::coalesced_values", "aten::_coalesce");
  const Parts given(stack.back().toTensor());
  if (given.count < 2) {
    run();  // copies
    return;
  }
  // The number of rows does not depend on the values.
  run_as(of_indices, {given.indices, given.sizes}, of_values,
         {given.indices, given.values, given.sizes}, stack, run);
}

// add.out(Tensor self, Tensor other, *, Scalar alpha, Tensor(a!) out)
void add(Stack& stack, const std::function<void()>& run) {
  static const HostPart to_other("ferro_sim::add_sparse", "aten::add.out");
  static const HostPart in_place("ferro_sim::add_sparse_", "aten::add.out");
  const auto arguments = stack.end() - 4;
  const Tensor dense = arguments[0].toTensor();
  const Tensor sparse = arguments[1].toTensor();
  const Tensor out = arguments[3].toTensor();
  if (dense.layout() != at::kStrided || sparse.layout() != at::kSparse) {
    run();  // concatenates
    return;
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
}

template <bool logarithm>
void softmax(Stack& stack, const std::function<void()>& run) {
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
}

void index_select(Stack& stack, const std::function<void()>& run) {
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
    return;
  }
  run_as(of_indices, {given.indices, given.sizes, dimension, index}, of_values,
         {given.indices, given.values, given.sizes, dimension, index}, stack, run);
}

// The kernels of the parts.

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
  m.impl("softmax_pools", &softmax_pools);
  m.impl("softmax_values", &softmax_values);
}

}  // namespace

SparseEvaluation sparse_evaluation(std::string_view name) {
  return name == "aten::_coalesce"             ? &coalesce
         : name == "aten::index_select"        ? &index_select
         : name == "aten::add.out"             ? &add
         : name == "aten::_sparse_softmax"     ? &softmax<false>
         : name == "aten::_sparse_log_softmax" ? &softmax<true>
                                               : nullptr;
}

}  // namespace ferro::values
