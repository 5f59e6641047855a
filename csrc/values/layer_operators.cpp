// CPU kernels for operators of cuDNN and others that PyTorch has only for CUDA, made of operators that
// it has for both. Registered with the dispatcher, where evaluations find them.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <array>
#include <tuple>
#include <vector>

namespace ferro::values {
namespace {

using at::Tensor;
using c10::SymIntArrayRef;
using Optional = const std::optional<Tensor>&;

Tensor convolution(const Tensor& input, const Tensor& weight, SymIntArrayRef padding,
                   SymIntArrayRef stride, SymIntArrayRef dilation, c10::SymInt groups, bool, bool,
                   bool) {
  const std::vector<c10::SymInt> none(stride.size(), 0);
  return at::convolution_symint(input, weight, std::nullopt, stride, padding, dilation, false, none,
                                std::move(groups));
}

Tensor convolution_transpose(const Tensor& input, const Tensor& weight, SymIntArrayRef padding,
                             SymIntArrayRef output_padding, SymIntArrayRef stride,
                             SymIntArrayRef dilation, c10::SymInt groups, bool, bool, bool) {
  return at::convolution_symint(input, weight, std::nullopt, stride, padding, dilation, true,
                                output_padding, std::move(groups));
}

Tensor convolution_relu(const Tensor& input, const Tensor& weight, Optional bias,
                        SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef dilation,
                        c10::SymInt groups) {
  const std::vector<c10::SymInt> none(stride.size(), 0);
  return at::convolution_symint(input, weight, bias, stride, padding, dilation, false, none,
                                std::move(groups))
      .relu();
}

Tensor convolution_add_relu(const Tensor& input, const Tensor& weight, const Tensor& added,
                            const std::optional<at::Scalar>& factor, Optional bias,
                            SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef dilation,
                            c10::SymInt groups) {
  const std::vector<c10::SymInt> none(stride.size(), 0);
  return at::convolution_symint(input, weight, bias, stride, padding, dilation, false, none,
                                std::move(groups))
      .add(added, factor.value_or(1))
      .relu();
}

Tensor depthwise(const Tensor& input, const Tensor& weight, SymIntArrayRef, Optional bias,
                 SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef dilation) {
  const std::vector<c10::SymInt> none(stride.size(), 0);
  return at::convolution_symint(input, weight, bias, stride, padding, dilation, false, none,
                                input.sym_size(1));
}

std::tuple<Tensor, Tensor, Tensor, Tensor> batch_norm(const Tensor& input, const Tensor& weight,
                                                      Optional bias, Optional running_mean,
                                                      Optional running_var, bool training,
                                                      double factor, double epsilon) {
  auto [output, mean, deviation] = at::native_batch_norm(input, weight, bias, running_mean,
                                                         running_var, training, factor, epsilon);
  return {output, mean, deviation, at::empty({0}, input.options().dtype(at::kByte))};
}

std::tuple<Tensor, Tensor, Tensor> batch_norm_backward(const Tensor& input, const Tensor& gradient,
                                                       const Tensor& weight, Optional running_mean,
                                                       Optional running_var, Optional mean,
                                                       Optional deviation, double epsilon,
                                                       const Tensor&) {
  return at::native_batch_norm_backward(gradient, input, weight, running_mean, running_var, mean,
                                        deviation, true, epsilon, {true, true, true});
}

Tensor grid_sampler(const Tensor& input, const Tensor& grid) {
  return at::grid_sampler_2d(input, grid, 0, 0, true);
}

std::tuple<Tensor, Tensor> grid_sampler_backward(const Tensor& input, const Tensor& grid,
                                                 const Tensor& gradient) {
  return at::grid_sampler_2d_backward(gradient, input, grid, 0, 0, true, {true, true});
}

// The gradient is that of the scores before their softmax, which does not change those that are
// normalized already. Where no alignment is possible, cuDNN's loss is 0, and not infinite; it leaves
// the gradient there as its memory was.
template <typename Lengths>
std::tuple<Tensor, Tensor> ctc_loss(const Tensor& scores, const Tensor& targets, Lengths steps,
                                    Lengths labels, std::int64_t blank, bool, bool) {
  const Tensor normalized = scores.log_softmax(2);
  const auto [losses, paths] = at::_ctc_loss(normalized, targets, steps, labels, blank);
  const Tensor gradient = at::_ctc_loss_backward(at::ones_like(losses), normalized, targets, steps,
                                                 labels, losses, paths, blank);
  const Tensor impossible = losses.isinf();
  return {losses.masked_fill(impossible, 0),
          gradient.masked_fill(impossible.unsqueeze(0).unsqueeze(2), 0)};
}

TORCH_LIBRARY_IMPL(aten, CPU, m) {
  m.impl("_cudnn_ctc_loss", &ctc_loss<at::IntArrayRef>);
  m.impl("_cudnn_ctc_loss.Tensor", &ctc_loss<const Tensor&>);
  m.impl("cudnn_convolution", &convolution);
  m.impl("cudnn_convolution_transpose", &convolution_transpose);
  m.impl("cudnn_convolution_relu", &convolution_relu);
  m.impl("cudnn_convolution_add_relu", &convolution_add_relu);
  m.impl("_conv_depthwise2d", &depthwise);
  m.impl("conv_depthwise3d", &depthwise);
  m.impl("cudnn_batch_norm", &batch_norm);
  m.impl("cudnn_batch_norm_backward", &batch_norm_backward);
  m.impl("cudnn_grid_sampler", &grid_sampler);
  m.impl("cudnn_grid_sampler_backward", &grid_sampler_backward);
}

}  // namespace
}  // namespace ferro::values
