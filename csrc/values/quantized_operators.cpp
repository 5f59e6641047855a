#include "values/quantized_operators.h"

#include <ATen/ATen.h>
#include <ATen/ops/dequantize_native.h>
#include <ATen/quantized/Quantizer.h>
#include <torch/library.h>

namespace ferro::values {
namespace {

using at::Tensor;

// The integers of a quantized tensor, in its memory.
Tensor integers_of(const Tensor& self) {
  const auto type = c10::scalarTypeToTypeMeta(at::toUnderlying(self.scalar_type()));
  auto integers = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(self.storage()), c10::DispatchKeySet(c10::DispatchKey::CUDA), type);
  integers.unsafeGetTensorImpl()->set_sizes_and_strides(self.sizes(), self.strides(),
                                                        self.storage_offset());
  return integers;
}

Tensor int_repr(const Tensor& self) {
  const Tensor integers = integers_of(self);
  return at::empty(self.sizes(), integers.options(), self.suggest_memory_format()).copy_(integers);
}

Tensor dequantize(const Tensor& self) {
  if (self.qscheme() != at::kPerTensorAffine) {
    return at::native::dequantize_quantized(self);
  }
  const Tensor numbers =
      at::empty(self.sizes(), self.options().dtype(at::kFloat), self.suggest_memory_format());
  return numbers.copy_(integers_of(self)).sub_(self.q_zero_point()).mul_(self.q_scale());
}

}  // namespace

void install_quantized() {
  static auto* const library = new torch::Library(
      torch::Library::IMPL, "aten", c10::DispatchKey::QuantizedCUDA, __FILE__, __LINE__);
  library->impl("int_repr", TORCH_FN(int_repr));
  library->impl("dequantize.self", TORCH_FN(dequantize));
}

}  // namespace ferro::values
