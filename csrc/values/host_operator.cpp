#include "values/host_operator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <mutex>
#include <string_view>

namespace ferro::values {

using torch::jit::Stack;

bool HostOperator::take_arguments(const Stack& arguments, int device, const Take& take) {
  if (traits_->random) {
    seed(arguments, device);
  }
  arguments_.reserve(arguments.size());
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& argument = arguments[i];
    if (argument.isTensor()) {
      auto host = take(argument.toTensor(), i);
      if (!host) {
        return false;
      }
      arguments_.emplace_back(std::move(*host));
    } else if (argument.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& tensor : argument.toTensorVector()) {
        auto host = take(tensor, i);
        if (!host) {
          return false;
        }
        list.push_back(std::move(*host));
      }
      arguments_.emplace_back(std::move(list));
    } else if (argument.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const auto& tensor : argument.toOptionalTensorVector()) {
        auto host = tensor ? take(*tensor, i) : std::nullopt;
        if (tensor && !host) {
          return false;
        }
        list.push_back(std::move(host));
      }
      arguments_.emplace_back(std::move(list));
    } else if (argument.isDevice()) {
      arguments_.emplace_back(c10::Device(c10::kCPU));
    } else if (op_.schema().arguments()[i].name() == "generator") {
      arguments_.emplace_back(at::make_generator<at::CPUGeneratorImpl>(seed_));
    } else {
      arguments_.push_back(argument);
    }
  }
  return true;
}

void HostOperator::seed(const Stack& arguments, int device) {
  at::Generator generator = at::globalContext().defaultGenerator(
      c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(device)));
  for (const c10::IValue& argument : arguments) {
    if (argument.isGenerator()) {
      generator = argument.toGenerator();
    }
  }
  const std::lock_guard lock(generator.mutex());
  // Different states give seeds that differ in many bits.
  seed_ = (generator.current_seed() +
           0x9e3779b97f4a7c15 * (1 + generator.unsafeGetGeneratorImpl()->get_offset()));
  seed_ ^= seed_ >> 29;
}

bool HostOperator::run() {
  Stack stack = arguments_;
  const auto call = [&] {
    op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
  };
  try {
    if (traits_->random && !traits_->generator) {
      // It would use the program's host generator.
      at::Generator own = at::detail::getDefaultCPUGenerator();
      const at::Tensor state = own.get_state();
      own.set_current_seed(seed_);
      try {
        call();
      } catch (...) {
        own.set_state(state);
        throw;
      }
      own.set_state(state);
    } else {
      call();
    }
  } catch (const std::exception&) {
    return false;
  }
  results_ = std::move(stack);
  return true;
}

std::optional<at::Tensor> HostOperator::value(bool of_argument, std::size_t place,
                                              std::size_t in_list) const {
  const c10::IValue& value = (of_argument ? arguments_ : results_)[place];
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
  const at::Tensor input = arguments_[0].toTensor();
  const at::Tensor found = results_[0].toTensor();
  // For booleans the device counts the true ones.
  if (traits_->name.starts_with("aten::_unique") && input.scalar_type() == at::kBool) {
    return input.sum().item<std::int64_t>();
  }
  const bool along = traits_->name.starts_with("aten::unique_dim") && input.dim() > 0;
  return found.dim() == 0 ? 1 : found.size(along ? arguments_[1].toInt() : 0);
}

bool tests_whether_finite(const OperatorTraits& traits, const Stack& arguments) {
  const std::string& name = traits.name;
  if (name == "aten::isnan") {
    return true;
  }
  if ((!name.starts_with("aten::eq.") && !name.starts_with("aten::ne.")) || arguments.size() != 2) {
    return false;
  }
  // torch.isinf compares with infinity, torch.isfinite also with itself.
  const c10::IValue& other = arguments[1];
  return other.isTensor() ? other.toTensor().is_same(arguments[0].toTensor())
                          : other.isDouble() && std::isinf(other.toDouble());
}

std::optional<std::int64_t> assumed_rows(const OperatorTraits& traits, const Stack& arguments) {
  static const char* const rows = std::getenv("FERRO_ALLOC_SIM_ROWS");
  if (rows == nullptr) {
    return std::nullopt;
  }
  const at::Tensor& input = arguments[0].toTensor();
  const bool unique =
      traits.name.starts_with("aten::_unique") || traits.name.starts_with("aten::unique");
  const bool along = traits.name.starts_with("aten::unique_dim") && input.dim() > 0;
  // Boxes of torchvision::nms are rows.
  const bool by_rows = traits.name.starts_with("torchvision::");
  const std::int64_t most = along     ? input.size(arguments[1].toInt())
                            : by_rows ? input.size(0)
                                      : input.numel();
  const std::int64_t one = std::min<std::int64_t>(most, 1);
  const bool all = std::string_view(rows) == "all";
  // Of booleans the device counts the true ones: with one there are two values, with none one.
  if (traits.name.starts_with("aten::_unique") && input.scalar_type() == at::kBool) {
    return all ? one : 0;
  }
  return all ? most : unique ? one : 0;
}

std::int64_t extent_of_positions(const OperatorTraits& traits, const Stack& arguments) {
  const at::Tensor& input = arguments[0].toTensor();
  if (input.dim() == 0) {
    return 1;
  }
  std::int64_t dimension = -1;
  if (traits.positions->dimension_argument) {
    const c10::IValue& named = arguments[*traits.positions->dimension_argument];
    if (!named.isInt()) {
      return input.numel();
    }
    dimension = named.toInt();
  }
  return input.size(dimension);
}

void write_positions(const DeviceTensor& at, std::int64_t extent) {
  static std::atomic<std::uint64_t> drawn = 0;
  if (at.type() != at::kLong || extent <= 0) {
    return;
  }
  at::Tensor host = at::detail::empty_cpu(at.sizes(), at::kLong);
  // Neighbours in any dimension differ by one.
  auto* to = host.mutable_data_ptr<std::int64_t>();
  const std::vector<std::int64_t>& sizes = at.sizes();
  std::vector<std::int64_t> index(sizes.size(), 0);
  const auto start = static_cast<std::int64_t>((0x9e3779b97f4a7c15 * ++drawn >> 16) %
                                               static_cast<std::uint64_t>(extent));
  std::int64_t sum = 0;
  for (std::int64_t i = 0; i < at.elements(); ++i) {
    to[i] = (start + sum) % extent;
    ++sum;
    for (std::size_t d = sizes.size(); d > 0 && ++index[d - 1] == sizes[d - 1]; --d) {
      sum += 1 - sizes[d - 1];
      index[d - 1] = 0;
    }
  }
  at.write(host, false);
}

}  // namespace ferro::values
