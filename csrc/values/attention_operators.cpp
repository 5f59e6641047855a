#include "values/attention_operators.h"

#include <ATen/ATen.h>
#include <ATen/native/transformers/sdp_utils.h>
#include <torch/library.h>

#include <optional>
#include <tuple>
#include <vector>

namespace ferro::values {
namespace {

using at::Tensor;
using c10::SymInt;

std::tuple<Tensor, Tensor, Tensor, Tensor, SymInt, SymInt, Tensor, Tensor, Tensor> attention(
    const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>&,
    bool with_statistics, double, bool, bool, std::optional<double>) {
  const std::vector<std::int64_t> size = {query.size(0), query.size(1), query.size(2),
                                          value.size(3)};
  Tensor output;
  at::native::alloc_with_matching_layout(query, output, size);
  output.zero_();
  Tensor statistics;
  if (with_statistics) {
    statistics = at::zeros({size[0], size[1], size[2], 1}, query.options().dtype(at::kFloat));
  }
  const auto random = query.options().dtype(at::kLong);
  return {output,
          statistics,
          Tensor(),
          Tensor(),
          query.size(2),
          key.size(2),
          at::empty({}, random),
          at::empty({}, random),
          Tensor()};
}

std::tuple<Tensor, Tensor, Tensor> attention_backward(const Tensor& gradient, const Tensor& query,
                                                      const Tensor& key, const Tensor& value,
                                                      const Tensor& output, const Tensor&,
                                                      const Tensor&, const Tensor&, const Tensor&,
                                                      const Tensor&, const Tensor&, SymInt, SymInt,
                                                      double, bool, std::optional<double>) {
  // cuDNN requires the layout of the output.
  const Tensor given =
      gradient.strides() == output.strides() ? gradient : at::empty_like(output).copy_(gradient);
  const auto sums = gradient.options().dtype(at::kFloat);
  std::tuple<Tensor, Tensor, Tensor> gradients = {at::zeros_like(query), at::zeros_like(key),
                                                  at::zeros_like(value)};
  const Tensor of_rows = at::empty({query.size(0), query.size(1), query.size(2)}, sums);
  const Tensor of_query = at::empty(query.sizes(), sums);
  return gradients;
}

}  // namespace

void install_attention() {
  static auto* const library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  library->impl("_scaled_dot_product_cudnn_attention", TORCH_FN(attention));
  library->impl("_scaled_dot_product_cudnn_attention_backward", TORCH_FN(attention_backward));
}

}  // namespace ferro::values
