#include "values/identity.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace ferro::values {
namespace {

// Of a host tensor; more are not looked at.
constexpr std::size_t kMaxBytes = 4096;

}  // namespace

Identity& Identity::add(std::string_view text) {
  add(text.size());
  for (std::size_t i = 0; i < text.size(); i += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data() + i, std::min(sizeof word, text.size() - i));
    add(word);
  }
  return *this;
}

Identity& Identity::add(const c10::IValue& argument) {
  if (argument.isTensor()) {
    const at::Tensor& tensor = argument.toTensor();
    if (tensor.defined() && tensor.is_cpu() && tensor.layout() == at::kStrided &&
        tensor.has_storage() && tensor.is_contiguous()) {
      const auto* bytes = static_cast<const char*>(tensor.const_data_ptr());
      return add(std::string_view(bytes, std::min(kMaxBytes, tensor.nbytes())));
    }
    return add(tensor.defined() ? 3 : 4);
  }
  if (argument.isNone()) {
    return add(5);
  }
  if (argument.isInt()) {
    return add(static_cast<std::uint64_t>(argument.toInt()));
  }
  if (argument.isBool()) {
    return add(argument.toBool() ? 1 : 2);
  }
  if (argument.isDouble()) {
    return add(std::bit_cast<std::uint64_t>(argument.toDouble()));
  }
  if (argument.isIntList()) {
    const c10::ArrayRef<c10::IValue> list = argument.toListRef();
    add(list.size());
    for (const c10::IValue& element : list) {
      add(static_cast<std::uint64_t>(element.toInt()));
    }
    return *this;
  }
  if (argument.isBoolList()) {
    return add_all(argument.toBoolList().vec());
  }
  if (argument.isString()) {
    return add(std::string_view(argument.toStringRef()));
  }
  if (argument.isDoubleList()) {
    for (const double number : argument.toDoubleVector()) {
      add(std::bit_cast<std::uint64_t>(number));
    }
    return *this;
  }
  return add(6);
}

}  // namespace ferro::values
