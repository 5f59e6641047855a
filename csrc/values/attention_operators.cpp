#include "values/attention_operators.h"

#include "values/gpu.h"

#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/native/transformers/sdp_utils.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <mutex>
#include <optional>
#include <tuple>
#include <vector>

namespace ferro::values {
namespace {

using at::Tensor;
using c10::SymInt;

// Launches the kernel in blocks of 128 rows.
void launch(void* kernel, const Tensor& blocked, unsigned threads) {
  constexpr std::int64_t kRows = 128;
  const auto blocks = static_cast<unsigned>((blocked.size(2) + kRows - 1) / kRows);
  const auto batch = static_cast<unsigned>(blocked.size(0));
  const auto heads = static_cast<unsigned>(blocked.size(1));
  const int result = gpu().launch(kernel, at::cuda::getCurrentCUDAStream().stream(), blocks, batch,
                                  heads, threads);
  TORCH_CHECK(result == 0, "the simulated driver refused a kernel of cuDNN's attention: ", result);
}

// Bytes of the workspace for the forward pass. A single row of each head, as in generation, needs
// none, but where few heads have many keys, several blocks share the keys of a head. Measured on an
// H200: none for 1,920 heads with 129 to 287 keys, and eight parts for 32 heads with 20,737 to 43,823.
std::int64_t forward_workspace(const Tensor& query, const Tensor& key) {
  constexpr std::int64_t kFew = 4096;
  constexpr std::int64_t kParts = 8;
  if (query.size(2) > 1) {
    return 256;
  }
  const std::int64_t heads = query.size(0) * query.size(1);
  const bool is_shared =
      heads < at::cuda::getCurrentDeviceProperties()->multiProcessorCount && key.size(2) >= kFew;
  return is_shared ? 4 * kParts * heads * (query.size(3) + 2) + 128 : 0;
}

// Advances the device's generator like a kernel that draws so many numbers.
void draw(std::int64_t numbers) {
  auto* const generator = at::get_generator_or_default<at::CUDAGeneratorImpl>(
      std::nullopt, at::cuda::detail::getDefaultCUDAGenerator());
  const std::lock_guard lock(generator->mutex_);
  generator->philox_cuda_state(static_cast<std::uint64_t>(numbers));
}

std::tuple<Tensor, Tensor, Tensor, Tensor, SymInt, SymInt, Tensor, Tensor, Tensor> attention(
    const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>&,
    bool with_statistics, double dropout, bool, bool, std::optional<double>) {
  const auto random = query.options().dtype(at::kLong);
  const Tensor seed = at::empty({}, random);
  const Tensor offset = at::empty({}, random);
  if (dropout > 0) {
    draw(query.size(0) * query.size(1) * query.size(2) * key.size(2));
  }
  const std::vector<std::int64_t> size = {query.size(0), query.size(1), query.size(2),
                                          value.size(3)};
  Tensor output;
  at::native::alloc_with_matching_layout(query, output, size);
  output.zero_();
  Tensor statistics;
  if (with_statistics) {
    statistics = at::zeros({size[0], size[1], size[2], 1}, query.options().dtype(at::kFloat));
  }
  const Tensor workspace =
      at::empty({forward_workspace(query, key)}, query.options().dtype(at::kByte));
  static void* const kernel = gpu().kernel("cudnn_flash_fwd");
  launch(kernel, query, 128);
  return {output,      statistics, Tensor(), Tensor(), query.size(2),
          key.size(2), seed,       offset,   Tensor()};
}

std::tuple<Tensor, Tensor, Tensor> attention_backward(
    const Tensor& gradient, const Tensor& query, const Tensor& key, const Tensor& value,
    const Tensor& output, const Tensor&, const Tensor&, const Tensor&, const Tensor& bias,
    const Tensor&, const Tensor&, SymInt, SymInt, double, bool, std::optional<double>) {
  // cuDNN requires dense rows, of any layout.
  const Tensor given = gradient.stride(3) == 1 ? gradient : at::empty_like(output).copy_(gradient);
  std::tuple<Tensor, Tensor, Tensor> gradients = {at::zeros_like(query), at::zeros_like(key),
                                                  at::zeros_like(value)};
  // Sums for each row and for each element of the query, in floats.
  const std::int64_t rows = query.size(0) * query.size(1) * query.size(2);
  const std::int64_t more = bias.defined() ? 256 : 0;  // measured: 12 lengths from 513 to 875
  const Tensor workspace =
      at::empty({4 * (rows + query.numel()) + more}, query.options().dtype(at::kByte));
  static void* const kernel = gpu().kernel("cudnn_flash_bwd_dq_dk_dv");
  launch(kernel, key, 256);
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
