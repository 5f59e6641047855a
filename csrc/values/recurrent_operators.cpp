// A CPU kernel for the forward pass of cuDNN's recurrent networks. It refuses dropout and sequences
// of several lengths, which are then not computed. Gradients are not computed: they would need a
// second run of autograd within the first, which would deadlock.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <tuple>
#include <vector>

namespace ferro::values {
namespace {

using at::Tensor;
using Optional = const std::optional<Tensor>&;

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> rnn(
    const Tensor& input, at::TensorList weights, std::int64_t per_layer, Optional buffer,
    const Tensor& state, Optional cells, std::int64_t mode, c10::SymInt, c10::SymInt,
    std::int64_t layers, bool batch_first, double dropout, bool train, bool bidirectional,
    c10::SymIntArrayRef lengths, Optional) {
  TORCH_CHECK(!(train && dropout > 0) && lengths.empty(), "not computed on the host");
  const bool biases = per_layer >= 4;
  const Tensor none = at::empty({0}, input.options());
  const Tensor weights_at = buffer.value_or(none);
  constexpr std::int64_t kRelu = 0, kTanh = 1, kLstm = 2;
  if (mode == kLstm) {
    const std::vector<Tensor> states = {state, cells.value()};
    auto [output, last, last_cells] =
        at::lstm(input, states, weights, biases, layers, 0.0, false, bidirectional, batch_first);
    return {output, last, last_cells, none, weights_at};
  }
  const auto call = mode == kRelu   ? at::_ops::rnn_relu_input::call
                    : mode == kTanh ? at::_ops::rnn_tanh_input::call
                                    : at::_ops::gru_input::call;
  auto [output, last] =
      call(input, state, weights, biases, layers, 0.0, false, bidirectional, batch_first);
  return {output, last, none, none, weights_at};
}

TORCH_LIBRARY_IMPL(aten, CPU, m) { m.impl("_cudnn_rnn", &rnn); }

}  // namespace
}  // namespace ferro::values
