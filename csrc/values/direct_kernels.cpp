#include "values/direct_kernels.h"

#include "values/evaluated_call.h"

#include <ATen/CUDAFunctions.h>
#include <ATen/ops/copy_native.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <memory>
#include <string_view>
#include <utility>

namespace ferro::values {
namespace {

using c10::KernelFunction;
using c10::OperatorHandle;

// Boxed arguments that outlive it. Their tensors are borrowed: no reference to them is counted.
template <std::size_t count>
class Borrowed {
 public:
  template <typename... Arguments>
  explicit Borrowed(const Arguments&... arguments) : values_{box(arguments)...} {}
  ~Borrowed() {
    for (c10::IValue& value : values_) {
      if (value.isTensor()) {
        at::Tensor tensor = std::move(value).toTensor();
        Borrow::destroyBorrow(tensor);
      }
    }
  }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;

  c10::ArrayRef<c10::IValue> values() const { return values_; }

 private:
  using Borrow = c10::MaybeOwnedTraits<at::Tensor>;

  static c10::IValue box(const at::Tensor& tensor) {
    return c10::IValue(Borrow::createBorrow(tensor));
  }
  template <typename Argument>
  static c10::IValue box(const Argument& argument) {
    return c10::IValue(argument);
  }

  std::array<c10::IValue, count> values_;
};

// Calls PyTorch's function.
template <auto function, typename = decltype(function)>
class Direct;
template <auto function, typename Result, typename... Arguments>
class Direct<function, Result (*)(Arguments...)> : public c10::OperatorKernel {
 public:
  Direct(const OperatorHandle& op, OperatorTraits traits) : op_(op), traits_(std::move(traits)) {}

  Result operator()(Arguments... arguments) {
    const Borrowed<sizeof...(Arguments)> given(arguments...);
    return call_operator(traits_, given.values(), [&](const InOperator& inside) -> Result {
      if (!computes_values.load(std::memory_order_relaxed)) {
        return function(arguments...);
      }
      EvaluatedCall evaluated(op_, traits_, inside, given.values(), Evaluation::Lifetime::kOfCaller,
                              &expects_unknown_);
      Result result = function(arguments...);
      const Borrowed<1> results(result);
      evaluated.end(results.values());
      return result;
    });
  }

 private:
  const OperatorHandle op_;
  const OperatorTraits traits_;
  Evaluation::Expectation expects_unknown_ = true;
};

template <auto function, typename Result, typename... Arguments>
WrappedKernel make(const OperatorHandle& op, const OperatorTraits& traits,
                   Result (*)(Arguments...)) {
  using Functor = Direct<function>;
  return {
      KernelFunction::makeFromUnboxedFunctor<false, Functor>(std::make_unique<Functor>(op, traits)),
      c10::impl::CppSignature::make<Result(Arguments...)>()};
}
template <auto function>
WrappedKernel make(const OperatorHandle& op, const OperatorTraits& traits) {
  return make<function>(op, traits, function);
}

using at::Scalar;
using at::Tensor;
using OfOne = Tensor (*)(const Tensor&);
using OfTwo = Tensor (*)(const Tensor&, const Tensor&);
using OfNumber = Tensor (*)(const Tensor&, const Scalar&);
using AddedProduct = Tensor (*)(const Tensor&, const Tensor&, const Tensor&, const Scalar&,
                                const Scalar&);
using InPlaceOfTwo = Tensor& (*)(Tensor&, const Tensor&);
using InPlaceOfNumber = Tensor& (*)(Tensor&, const Scalar&);

struct Entry {
  std::string_view name;
  WrappedKernel (*make)(const OperatorHandle& op, const OperatorTraits& traits);
  std::string_view registered = "RegisterCUDA";  // in a file whose name has this
};

constexpr Entry kEntries[] = {
    {"aten::copy_", &make<&at::native::copy_>, "RegisterCompositeExplicitAutograd"},
    {"aten::fill_.Scalar", &make<InPlaceOfNumber{&at::cuda::fill_}>},
    {"aten::add.Tensor", &make<&at::cuda::add>},
    {"aten::add_.Tensor", &make<&at::cuda::add_>},
    {"aten::sub.Tensor", &make<&at::cuda::sub>},
    {"aten::sub_.Tensor", &make<&at::cuda::sub_>},
    {"aten::mul.Tensor", &make<&at::cuda::mul>},
    {"aten::mul_.Tensor", &make<&at::cuda::mul_>},
    {"aten::div.Tensor", &make<OfTwo{&at::cuda::div}>},
    {"aten::div_.Tensor", &make<InPlaceOfTwo{&at::cuda::div_}>},
    {"aten::pow.Tensor_Scalar", &make<OfNumber{&at::cuda::pow}>},
    {"aten::eq.Tensor", &make<OfTwo{&at::cuda::eq}>},
    {"aten::eq.Scalar", &make<OfNumber{&at::cuda::eq}>},
    {"aten::ne.Tensor", &make<OfTwo{&at::cuda::ne}>},
    {"aten::ne.Scalar", &make<OfNumber{&at::cuda::ne}>},
    {"aten::lt.Tensor", &make<OfTwo{&at::cuda::lt}>},
    {"aten::lt.Scalar", &make<OfNumber{&at::cuda::lt}>},
    {"aten::le.Tensor", &make<OfTwo{&at::cuda::le}>},
    {"aten::le.Scalar", &make<OfNumber{&at::cuda::le}>},
    {"aten::gt.Tensor", &make<OfTwo{&at::cuda::gt}>},
    {"aten::gt.Scalar", &make<OfNumber{&at::cuda::gt}>},
    {"aten::ge.Tensor", &make<OfTwo{&at::cuda::ge}>},
    {"aten::ge.Scalar", &make<OfNumber{&at::cuda::ge}>},
    {"aten::maximum", &make<&at::cuda::maximum>},
    {"aten::minimum", &make<&at::cuda::minimum>},
    {"aten::bitwise_and.Tensor", &make<OfTwo{&at::cuda::bitwise_and}>},
    {"aten::bitwise_or.Tensor", &make<OfTwo{&at::cuda::bitwise_or}>},
    {"aten::bitwise_not", &make<&at::cuda::bitwise_not>},
    {"aten::neg", &make<&at::cuda::neg>},
    {"aten::rsqrt", &make<&at::cuda::rsqrt>},
    {"aten::sqrt", &make<&at::cuda::sqrt>},
    {"aten::exp", &make<&at::cuda::exp>},
    {"aten::log", &make<&at::cuda::log>},
    {"aten::sin", &make<&at::cuda::sin>},
    {"aten::cos", &make<&at::cuda::cos>},
    {"aten::tanh", &make<&at::cuda::tanh>},
    {"aten::tanh_backward", &make<&at::cuda::tanh_backward>},
    {"aten::sigmoid", &make<&at::cuda::sigmoid>},
    {"aten::sigmoid_backward", &make<&at::cuda::sigmoid_backward>},
    {"aten::relu", &make<&at::cuda::relu>},
    {"aten::threshold_backward", &make<&at::cuda::threshold_backward>},
    {"aten::silu", &make<&at::cuda::silu>},
    {"aten::silu_backward", &make<&at::cuda::silu_backward>},
    {"aten::gelu", &make<&at::cuda::gelu>},
    {"aten::gelu_backward", &make<&at::cuda::gelu_backward>},
    {"aten::_softmax", &make<&at::cuda::_softmax>},
    {"aten::_log_softmax", &make<&at::cuda::_log_softmax>},
    {"aten::_softmax_backward_data", &make<&at::cuda::_softmax_backward_data>},
    {"aten::sum.dim_IntList", &make<&at::cuda::sum>},
    {"aten::mean.dim", &make<&at::cuda::mean>},
    {"aten::argmax", &make<&at::cuda::argmax>},
    {"aten::cumsum", &make<&at::cuda::cumsum>},
    {"aten::where.self", &make<&at::cuda::where>},
    {"aten::index_select", &make<&at::cuda::index_select>},
    {"aten::gather", &make<&at::cuda::gather>},
    {"aten::cat", &make<&at::cuda::cat>},
    {"aten::mm", &make<OfTwo{&at::cuda::mm}>},
    {"aten::bmm", &make<OfTwo{&at::cuda::bmm}>},
    {"aten::addmm", &make<AddedProduct{&at::cuda::addmm}>},
};

}  // namespace

std::optional<WrappedKernel> direct_kernel(const OperatorHandle& op, const OperatorTraits& traits) {
  const auto* const entry =
      std::find_if(std::begin(kEntries), std::end(kEntries),
                   [&](const Entry& candidate) { return candidate.name == traits.name; });
  if (entry == std::end(kEntries)) {
    return std::nullopt;
  }
  const auto kernel = op.getComputedKernelForDispatchKey(c10::DispatchKey::CUDA);
  if (kernel.debug().find(entry->registered) == std::string::npos) {
    return std::nullopt;
  }
  return entry->make(op, traits);
}

}  // namespace ferro::values
