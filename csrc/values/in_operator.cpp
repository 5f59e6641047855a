#include "values/in_operator.h"

#include "values/places.h"

#include <algorithm>

namespace ferro::values {

thread_local InOperator* InOperator::innermost_ = nullptr;

InOperator::InOperator(const OperatorTraits& traits, const torch::jit::Stack* stack,
                       c10::ArrayRef<c10::IValue> arguments)
    : traits_(traits),
      stack_(stack),
      arguments_(arguments),
      outer_(innermost_),
      counts_(*gpu().counts()),
      launched_before_(counts_.launches) {
  innermost_ = this;
  ++counts_.operators;
  if (outer_ != nullptr && outer_->is_opaque_ && has_size() &&
      outer_->own_launches(launched_before_) > 0) {
    outer_->read_result_ = true;
  }
}

InOperator::~InOperator() {
  innermost_ = outer_;
  --counts_.operators;
  if (outer_ != nullptr) {
    outer_->launched_within_ += counts_.launches - launched_before_;
  }
  if (!has_failed_ && traits_.kind != Kind::kElsewhere) {
    for (const std::uint64_t number : failed_requests_) {
      note_done_without(number, traits_.name);
    }
  } else if (outer_ != nullptr) {
    outer_->failed_requests_.insert(outer_->failed_requests_.end(), failed_requests_.begin(),
                                    failed_requests_.end());
  }
  if (read_result_ && computes_values.load(std::memory_order_relaxed)) {
    note_read(traits_.name, Learned::kSize);
  }
}

std::optional<std::int64_t> InOperator::least_size() const {
  // A class more than the result has places would be drawn once in so many elements for each place,
  // so all miss it with a probability of 0.03 %.
  constexpr std::int64_t kElements = 8;
  if (!traits_.least_size || (stack_ != nullptr && stack_->size() < traits_.arguments)) {
    return std::nullopt;
  }
  const c10::ArrayRef<c10::IValue> arguments = this->arguments();
  const std::int64_t least = arguments[*traits_.least_size].toInt();
  const bool is_enough = least > 0 && arguments[0].toTensor().numel() / kElements >= least;
  return is_enough ? std::optional(least) : std::nullopt;
}

void InOperator::add_failed_request(std::uint64_t number) {
  if (innermost_ != nullptr) {
    innermost_->failed_requests_.push_back(number);
  }
}

int InOperator::reads_result(std::uint64_t address) {
  return innermost_ != nullptr && innermost_->reads_result_at(address) ? 1 : 0;
}

bool InOperator::reads_result_at(std::uint64_t address) {
  const bool moves = traits_.kind == Kind::kReads || traits_.kind == Kind::kCopy ||
                     traits_.kind == Kind::kTransfer;
  if (moves || (stack_ != nullptr && stack_->size() < traits_.arguments)) {
    return false;
  }
  const auto is_there = [&](const c10::IValue& argument) {
    if (!argument.isTensor() || !argument.toTensor().has_storage()) {
      return false;
    }
    const c10::Storage& storage = argument.toTensor().storage();
    const auto begin = reinterpret_cast<std::uint64_t>(storage.data());
    return begin <= address && address < begin + storage.nbytes();
  };
  const c10::ArrayRef<c10::IValue> given = arguments();
  const bool is_result = std::none_of(given.begin(), given.end(), is_there);
  read_result_ = read_result_ || (is_result && !traits_.computes_on_host);
  return is_result;
}

}  // namespace ferro::values
