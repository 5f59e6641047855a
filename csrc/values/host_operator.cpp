#include "values/host_operator.h"

#include "values/assumed_rows.h"
#include "values/below_modes.h"
#include "values/gpu.h"
#include "values/host_differences.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/core/DefaultDtype.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <mutex>
#include <string_view>

namespace ferro::values {

using torch::jit::Stack;
using Arguments = c10::ArrayRef<c10::IValue>;

namespace {

bool has_tensors(Arguments list) {
  return std::any_of(list.begin(), list.end(),
                     [](const c10::IValue& element) { return element.isTensor(); });
}

// While it exists, numbers of no other type have this one. The program may have changed it since an
// operator was recorded.
class UnderDefaultType {
 public:
  explicit UnderDefaultType(caffe2::TypeMeta type) : before_(c10::get_default_dtype()) {
    if (before_ != type) {
      c10::set_default_dtype(type);
    }
  }
  ~UnderDefaultType() {
    if (c10::get_default_dtype() != before_) {
      c10::set_default_dtype(before_);
    }
  }
  UnderDefaultType(const UnderDefaultType&) = delete;
  UnderDefaultType& operator=(const UnderDefaultType&) = delete;

 private:
  const caffe2::TypeMeta before_;
};

bool has_fractions(const at::Tensor& tensor) {
  return at::isFloatingType(tensor.scalar_type()) || at::isComplexType(tensor.scalar_type());
}

// The largest number of the floating-point type of a tensor. Infinity for other types.
double largest_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !has_fractions(tensor)) {
    return std::numeric_limits<double>::infinity();
  }
  switch (c10::toRealValueType(tensor.scalar_type())) {
    case at::kDouble:
      return std::numeric_limits<double>::max();
    case at::kFloat:
      return std::numeric_limits<float>::max();
    case at::kBFloat16:
      return static_cast<double>(std::numeric_limits<c10::BFloat16>::max());
    case at::kHalf:
      return static_cast<double>(std::numeric_limits<c10::Half>::max());
    case at::kFloat8_e5m2:
      return static_cast<double>(std::numeric_limits<c10::Float8_e5m2>::max());
    default:
      return static_cast<double>(std::numeric_limits<c10::Float8_e4m3fn>::max());
  }
}

// Without an early end, so that the compiler uses vectors.
template <typename Number>
bool all_within(const at::Tensor& dense, double most) {
  const Number* const begin = dense.const_data_ptr<Number>();
  const auto limit =
      static_cast<Number>(std::min<double>(most, std::numeric_limits<Number>::max()));
  unsigned others = 0;
  for (std::int64_t i = 0; i < dense.numel(); ++i) {
    others |= std::abs(begin[i]) <= limit ? 0U : 1U;
  }
  return others == 0;
}

bool are_within(const at::Tensor& numbers, double most) {
  if (numbers.layout() == at::kStrided && numbers.is_contiguous()) {
    if (numbers.scalar_type() == at::kFloat) {
      return all_within<float>(numbers, most);
    }
    if (numbers.scalar_type() == at::kDouble) {
      return all_within<double>(numbers, most);
    }
  }
  const bool is_complex = at::isComplexType(numbers.scalar_type());
  const at::Tensor wide = numbers.to(is_complex ? at::kComplexDouble : at::kDouble);
  const at::Tensor dense = wide.layout() == at::kStrided ? wide : wide.to_dense();
  return dense.abs().le(most).all().item<bool>();
}

// Whether no number of a host tensor is NaN, or more than `most` in size. Integers are often indices.
bool is_within(const at::Tensor& tensor, double most) {
  return !tensor.defined() || !tensor.is_cpu() || tensor.numel() == 0 || !has_fractions(tensor) ||
         are_within(tensor, most);
}

bool is_finite(const at::Tensor& tensor) {
  return is_within(tensor, std::numeric_limits<double>::max());
}

template <typename Visit>
void visit_tensors(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) {
      if (element.isTensor()) {
        visit(element.toTensor());
      }
    }
  }
}

bool is_within(const c10::IValue& argument, double most) {
  bool is = !argument.isDouble() || std::abs(argument.toDouble()) <= most;
  visit_tensors(argument, [&](const at::Tensor& tensor) { is = is && is_within(tensor, most); });
  return is;
}

}  // namespace

bool HostOperator::take_arguments(Arguments arguments) {
  bool possible = true;
  default_type_ = c10::get_default_dtype();
  auto operand = operands_.begin();
  std::size_t place = 0;
  // What an operand takes the place of, or a tensor that is on the host already.
  const auto take = [&](const at::Tensor& tensor, std::size_t in_list = 0) {
    if (operand != operands_.end() && operand->place == place && operand->in_list == in_list) {
      ++operand;
      return at::Tensor();
    }
    if (!tensor.defined()) {
      return at::Tensor();
    }
    if (tensor.is_cpu()) {
      // One that PyTorch made of a number: the program cannot change it.
      if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
        return tensor;
      }
      const BelowModes guard;
      return tensor.clone();
    }
    if (!tensor.is_cuda() || tensor.layout() != at::kStrided) {
      possible = false;
      return at::Tensor();
    }
    // The device's operator has resized a result that was empty.
    static constexpr std::int64_t kEmpty[] = {0};
    return at::Tensor(at::detail::empty_cpu(
        tensor.numel() == 0 ? tensor.sizes() : c10::IntArrayRef(kEmpty), tensor.scalar_type()));
  };
  arguments_.reserve(arguments.size());
  for (const c10::IValue& argument : arguments) {
    if (argument.isTensor()) {
      arguments_.emplace_back(take(argument.toTensor()));
    } else if (argument.isDevice()) {
      arguments_.emplace_back(c10::Device(c10::kCPU));
    } else if (argument.isGenerator()) {
      arguments_.emplace_back();
    } else if (!argument.isList() || !has_tensors(argument.toListRef())) {
      arguments_.push_back(argument);
    } else if (argument.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const c10::IValue& tensor : argument.toListRef()) {
        list.push_back(take(tensor.toTensor(), list.size()));
      }
      arguments_.emplace_back(std::move(list));
    } else {
      c10::List<std::optional<at::Tensor>> list;
      for (const auto& tensor : argument.toOptionalTensorVector()) {
        list.push_back(tensor ? std::optional(take(*tensor, list.size())) : std::nullopt);
      }
      arguments_.emplace_back(std::move(list));
    }
    ++place;
  }
  return possible;
}

bool HostOperator::has_inputs() const {
  return std::any_of(operands_.begin(), operands_.end(),
                     [](const Operand& operand) { return operand.taken.has_value(); });
}

void HostOperator::for_each_input(const std::function<void(Value&)>& visit) const {
  for (const Operand& operand : operands_) {
    if (operand.taken) {
      operand.taken->pieces.for_each_value(visit);
    }
  }
}

std::size_t HostOperator::bytes_to_copy() const {
  std::size_t all = 0;
  std::size_t offset = 0;
  for (const Operand& operand : operands_) {
    if (operand.taken && operand.taken->pieces.only_value(&offset) == nullptr) {
      all += operand.taken->pieces.bytes();
    }
  }
  return all;
}

void HostOperator::find_numbers(Arguments arguments, int device) {
  const cudaDeviceProp& card =
      *at::cuda::getDeviceProperties(static_cast<c10::DeviceIndex>(device));
  device_ = device;
  numbers_ = numbers_of(*traits_, arguments, static_cast<std::uint32_t>(card.multiProcessorCount),
                        static_cast<std::uint32_t>(card.maxThreadsPerMultiProcessor));
}

void HostOperator::seed(Arguments arguments, int device) {
  at::Generator generator = at::globalContext().defaultGenerator(
      c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(device)));
  for (const c10::IValue& argument : arguments) {
    if (argument.isGenerator()) {
      generator = argument.toGenerator();
    }
  }
  const cudaDeviceProp& card =
      *at::cuda::getDeviceProperties(static_cast<c10::DeviceIndex>(device));
  const std::lock_guard lock(generator.mutex());
  generator_ = {generator.current_seed(), generator.unsafeGetGeneratorImpl()->get_offset(),
                static_cast<std::uint32_t>(card.multiProcessorCount),
                static_cast<std::uint32_t>(card.maxThreadsPerMultiProcessor)};
  // Different states give seeds that differ in many bits.
  const auto mix = [&](std::uint64_t start) {
    start += 0x9e3779b97f4a7c15 * (1 + generator_.offset);
    return start ^ start >> 29;
  };
  const std::uint64_t start = generator_.seed;
  seed_ = mix(start);
  // A program that sets no seed gets a random one of 53 or 64 bits. Runs of it draw equal choices all
  // the same.
  repeatable_seed_ = mix(start >> 32 == 0 ? start : 0);
}

std::optional<at::Tensor> HostOperator::make_host(const Operand& operand) const {
  const bool writable = std::find(traits_->written.begin(), traits_->written.end(),
                                  operand.place) != traits_->written.end();
  auto host = operand.is_left_out
                  ? std::optional(at::Tensor(at::detail::empty_cpu({}, operand.at.type())))
              : operand.taken ? operand.taken->compute(writable)
                              : std::optional(operand.at.make_host_tensor());
  // PyTorch's own kernel sorts expanded rows in place, where they share elements.
  if (host && traits_->sorts_in_place && !writable) {
    *host = host->contiguous();
  }
  if (host && operand.zeroed.defined()) {
    *host = host->masked_fill(operand.zeroed, 0);
  }
  if (host && (operand.is_ones || operand.is_left_out)) {
    host->fill_(1);
  }
  return host;
}

template <typename Make>
bool HostOperator::put_operands(Stack& stack, const Make& make) const {
  std::size_t copied = stack.size();  // the place of the list that was copied last
  for (const Operand& operand : operands_) {
    const std::optional<at::Tensor> host = make(operand);
    if (!host) {
      return false;
    }
    c10::IValue& argument = stack[operand.place];
    if (argument.isTensor()) {
      argument = *host;
    } else if (argument.isTensorList()) {
      if (copied != operand.place) {
        argument = argument.toTensorList().copy();
      }
      argument.toTensorList().set(operand.in_list, *host);
    } else {
      if (copied != operand.place) {
        argument = argument.toOptionalTensorList().copy();
      }
      argument.toOptionalTensorList().set(operand.in_list, *host);
    }
    copied = operand.place;
  }
  return true;
}

void HostOperator::put_generator(Stack& stack) const {
  for (std::size_t i = 0; traits_->generator && i < stack.size(); ++i) {
    if (op_.schema().arguments()[i].name() == "generator") {
      stack[i] = at::make_generator<at::CPUGeneratorImpl>(seed_);
    }
  }
}

void HostOperator::draw(Stack& stack) const {
  const bool succeeds = draw_as_card(
      traits_->name, stack, generator_, [this](std::size_t place) -> std::optional<OnCard> {
        for (const Operand& operand : operands_) {
          if (operand.place == place && !operand.is_left_out) {
            return OnCard{operand.at.address(),
                          {operand.at.strides().begin(), operand.at.strides().end()}};
          }
        }
        return std::nullopt;
      });
  if (!succeeds) {
    TORCH_CHECK(has_known_operands_, "an assertion may fail");
    gpu().fail_assertion(device_);
  }
}

void HostOperator::call(Stack& stack) const {
  if (numbers_ == Numbers::kOfCard || numbers_ == Numbers::kNearCard) {
    draw(stack);
    return;
  }
  const c10::DispatchKeySet keys(c10::DispatchKey::CPU);
  if (!traits_->random || traits_->generator) {
    put_generator(stack);
    op_.redispatchBoxed(keys, &stack);
    return;
  }
  // It would use the program's host generator.
  at::Generator own = at::detail::getDefaultCPUGenerator();
  const at::Tensor state = own.get_state();
  own.set_current_seed(seed_);
  try {
    op_.redispatchBoxed(keys, &stack);
  } catch (...) {
    own.set_state(state);
    throw;
  }
  own.set_state(state);
}

bool HostOperator::has_moderate_inputs(const Stack& stack) const {
  double largest = std::numeric_limits<double>::max();
  for_each_result(
      [&](const at::Tensor& result) { largest = std::min(largest, largest_of(result)); });
  // Two masks of the lowest number have an infinite sum, and so has -1e9 as a half.
  constexpr double kSmallest = 8;
  const double most = largest / kSmallest;
  return std::all_of(arguments_.begin(), arguments_.end(),
                     [&](const c10::IValue& argument) { return is_within(argument, most); }) &&
         std::all_of(operands_.begin(), operands_.end(), [&](const Operand& operand) {
           const c10::IValue& at = stack[operand.place];
           return !operand.is_input ||
                  is_within(at.isTensor() ? at : at.toListRef()[operand.in_list], most);
         });
}

template <typename Visit>
void HostOperator::for_each_result(const Visit& visit) const {
  for (const c10::IValue& result : results_) {
    visit_tensors(result, visit);
  }
  for (const std::size_t place : traits_->written) {
    visit_tensors(called_with_[place], visit);
  }
}

bool HostOperator::has_finite_results() const {
  bool are = true;
  for_each_result([&](const at::Tensor& result) { are = are && is_finite(result); });
  return are;
}

void HostOperator::zero_infinite_results() const {
  for_each_result([](const at::Tensor& result) {
    if (!is_finite(result)) {
      result.masked_fill_(at::isfinite(result).logical_not(), 0);
    }
  });
}

bool HostOperator::run() {
  const UnderDefaultType guard(default_type_);
  try {
    Stack stack = arguments_;
    if (!put_operands(stack, [this](const Operand& o) { return make_host(o); })) {
      return false;
    }
    const HostDifference difference = host_difference(traits_->name);
    const Stack given = difference.adapt_results != nullptr ? stack : Stack();
    if (difference.adapt_arguments != nullptr) {
      difference.adapt_arguments(stack);
    }
    called_with_ = stack;
    // What is changed in place is gone after the call.
    const bool is_in_place = !traits_->written.empty();
    const bool were_moderate = assumes_finite_ && is_in_place && has_moderate_inputs(called_with_);
    call(stack);
    if (difference.adapt_results != nullptr) {
      difference.adapt_results(given, stack);
    }
    results_ = std::move(stack);
    if (assumes_finite_ && !has_finite_results() &&
        (is_in_place ? were_moderate : has_moderate_inputs(called_with_))) {
      zero_infinite_results();
    }
    return true;
  } catch (const std::exception&) {
    called_with_.clear();
    return false;
  }
}

namespace {

// `sizes`: of a tensor whose elements are equally certain.
at::Tensor doubts_of(const Operand& operand, at::IntArrayRef sizes) {
  return operand.doubts.defined()
             ? operand.doubts
             : at::full(sizes, FERRO_SIM_KNOWN - operand.certainties.least, at::kByte);
}

}  // namespace

bool HostOperator::find_doubts() {
  doubts_ = at::zeros({}, at::kByte);
  for (const Operand& operand : operands_) {
    if (operand.is_input && (!traits_->moves || traits_->selects(operand.place))) {
      doubts_ = at::maximum(doubts_, doubts_of(operand, {}));
    }
  }
  return !traits_->moves || move_doubts();
}

bool HostOperator::move_doubts() {
  Stack stack = arguments_;
  for (std::size_t i = 0; i < stack.size(); ++i) {
    const c10::Argument& argument = op_.schema().arguments()[i];
    if (stack[i].isTensor() && stack[i].toTensor().defined() && !traits_->selects(i)) {
      stack[i] = at::zeros(stack[i].toTensor().sizes(), at::kByte);
    } else if (argument.type()->kind() == c10::TypeKind::NumberType) {
      stack[i] = 0;
    } else if (argument.name() == "accumulate" && stack[i].toBool()) {
      return false;  // sums are no elements
    }
  }
  const bool has_all = put_operands(stack, [this](const Operand& operand) {
    return traits_->selects(operand.place) ? operand.taken->compute(false)
                                           : std::optional(doubts_of(operand, operand.at.sizes()));
  });
  if (has_all) {
    called_with_ = stack;
    call(stack);
    results_ = std::move(stack);
  }
  return has_all;
}

std::optional<at::Tensor> HostOperator::doubts(bool of_argument, std::size_t place,
                                               std::size_t in_list) const {
  if (!traits_->moves) {
    return doubts_;
  }
  const std::optional<at::Tensor> moved = value(of_argument, place, in_list);
  return moved ? std::optional(at::maximum(*moved, doubts_)) : std::nullopt;
}

void HostOperator::clear(bool inputs) {
  called_with_.clear();
  results_.clear();
  doubts_.reset();
  if (inputs) {
    arguments_.clear();
    operands_.clear();
  }
}

std::optional<at::Tensor> HostOperator::value(bool of_argument, std::size_t place,
                                              std::size_t in_list) const {
  const c10::IValue& value = (of_argument ? called_with_ : results_)[place];
  if (value.isTensor()) {
    return value.toTensor();
  }
  if (value.isTensorList()) {
    return value.toTensorList().get(in_list);
  }
  return std::nullopt;
}

std::int64_t HostOperator::answer() const {
  if (results_.empty() || !results_[0].isTensor()) {
    return 0;
  }
  const at::Tensor input = called_with_[0].toTensor();
  const at::Tensor found = results_[0].toTensor();
  if (traits_->rows == Rows::kDistinctOrTrue && input.scalar_type() == at::kBool) {
    return input.sum().item<std::int64_t>();
  }
  if (traits_->rows == Rows::kProduct || traits_->rows == Rows::kSum) {
    return results_.back().toTensor().item<std::int64_t>();
  }
  if (traits_->rows == Rows::kColumns || traits_->rows == Rows::kDistinctColumns) {
    return found.size(1);
  }
  return found.dim() == 0 ? 1 : found.size(unique_dimension(*traits_, called_with_).value_or(0));
}

bool tests_whether_finite(const OperatorTraits& traits, Arguments arguments) {
  if (!traits.tests_equality) {
    return traits.tests_nan;
  }
  // torch.isinf compares with infinity, torch.isfinite also with itself.
  const c10::IValue& other = arguments[1];
  return other.isTensor() ? other.toTensor().is_same(arguments[0].toTensor())
                          : other.isDouble() && std::isinf(other.toDouble());
}

PositionsRange range_of_positions(const OperatorTraits& traits, const c10::FunctionSchema& schema,
                                  Arguments arguments) {
  const at::Tensor& input = arguments[0].toTensor();
  PositionsRange range;
  const auto dimensions = static_cast<std::size_t>(input.dim());
  std::int64_t dimension = -1;
  if (traits.positions->dimension_argument) {
    const c10::IValue& named = arguments[*traits.positions->dimension_argument];
    if (!named.isInt() || dimensions == 0) {
      range.extent = input.numel();
    } else {
      dimension = named.toInt();
    }
  } else {
    range.ranks.independent = arguments[2].toBool();  // multinomial with replacement
  }
  if (range.extent == 0 && dimensions > 0) {
    range.dimension = static_cast<std::size_t>(dimension + (dimension < 0 ? input.dim() : 0));
    range.extent = input.size(dimension);
  }
  const std::string_view name = traits.name;
  const auto is = [&](std::string_view base) {
    return name == base || (name.starts_with(base) && name[base.size()] == '.');
  };
  range.ranks.ascending = is("aten::min") || is("aten::argmin") || is("aten::sort") ||
                          is("aten::argsort") || is("aten::kthvalue") || is("aten::median") ||
                          is("aten::nanmedian");
  if (is("aten::median") || is("aten::nanmedian")) {
    range.ranks.first = (range.extent - 1) / 2;
  }
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = schema.arguments()[i].name();
    if (argument == "largest" || argument == "descending") {
      range.ranks.ascending = !arguments[i].toBool();
    } else if (argument == "k" && is("aten::kthvalue")) {
      range.ranks.first = arguments[i].toInt() - 1;
    }
  }
  return range;
}

namespace {

double number_of(const at::Tensor& scalar) {
  // What PyTorch makes of a Python number, without its dispatcher.
  if (scalar.scalar_type() == at::kDouble) {
    return *scalar.const_data_ptr<double>();
  }
  const BelowModes guard;
  return scalar.item<double>();
}

}  // namespace

Extremes extremes_of(const c10::FunctionSchema& schema, Arguments arguments) {
  Extremes found;
  const auto add = [&](double number) {
    found.infinity = found.infinity || std::isinf(number);
    found.low = found.low || number <= kLow;
    found.zero = found.zero || number == 0;
  };
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& argument = arguments[i];
    if (argument.isDouble()) {
      add(argument.toDouble());
    } else if (argument.isInt() &&
               schema.arguments()[i].type()->kind() == c10::TypeKind::NumberType) {
      add(static_cast<double>(argument.toInt()));
    } else if (argument.isTensor() && argument.toTensor().defined() &&
               argument.toTensor().is_cpu() && argument.toTensor().dim() == 0 &&
               argument.toTensor().is_floating_point()) {
      add(number_of(argument.toTensor()));
    }
  }
  return found;
}

}  // namespace ferro::values
