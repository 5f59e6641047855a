#include "values/evaluation.h"

#include "values/below_modes.h"
#include "values/gpu.h"
#include "values/host_operator.h"
#include "values/places.h"

#include <ATen/EmptyTensor.h>
#include <ATen/cuda/EmptyTensor.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <utility>

namespace ferro::values {

using torch::jit::Stack;

struct Evaluation::Job {
  struct Input {
    DeviceTensor at;
    at::Tensor host;
  };
  struct Result {
    DeviceTensor at;
    // The argument or result whose value it is, and its place in a list.
    bool of_argument;
    std::size_t place;
    std::size_t in_list;
    bool keeps;
  };

  explicit Job(HostOperator called) : host(std::move(called)) {}

  HostOperator host;
  std::vector<Input> inputs;
  std::vector<Result> results;
  bool computable = false;
  bool read = false;
  bool ran = false;
  bool known = true;
  bool tests_whether_finite = false;
  std::optional<std::int64_t> positions;  // below this

  void read_inputs() {
    for (const Input& input : inputs) {
      known = input.at.read(input.host) && known;
    }
    if (!known && tests_whether_finite) {
      const BelowModes guard;
      for (const Input& input : inputs) {
        input.host.zero_();
      }
      known = true;
    }
    read = true;
  }

  void write_results() {
    const BelowModes guard;
    // Unknown positions are arbitrary but distinct.
    const bool drawn = positions && !(known && computable);
    if (computable && !ran && !drawn) {
      ran = host.run();
    }
    for (const Result& result : results) {
      const auto value =
          ran ? host.value(result.of_argument, result.place, result.in_list) : std::nullopt;
      if (!value || !result.at.write(*value, known)) {
        result.at.forget(result.keeps);
      }
    }
    if (drawn && !results.empty()) {
      write_positions(results.back().at, *positions);
    }
  }
};

namespace {

template <void (Evaluation::Job::*act)()>
void call_job(void* holder) {
  const std::unique_ptr<std::shared_ptr<Evaluation::Job>> job(
      static_cast<std::shared_ptr<Evaluation::Job>*>(holder));
  ((**job).*act)();
}

// Visits the tensors of an argument or result, with their places in a list.
template <typename Visit>
void for_each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    visit(value.toTensor(), 0);
  } else if (value.isTensorList()) {
    std::size_t i = 0;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      visit(tensor, i++);
    }
  } else if (value.isOptionalTensorList()) {
    std::size_t i = 0;
    for (const auto& tensor : value.toOptionalTensorVector()) {
      if (tensor) {
        visit(*tensor, i);
      }
      ++i;
    }
  }
}

bool same_layout(const at::Tensor& one, const at::Tensor& other) {
  return one.sizes() == other.sizes() && one.strides() == other.strides() &&
         one.is_non_overlapping_and_dense();
}

}  // namespace

Evaluation::Evaluation(const c10::OperatorHandle& op, const OperatorTraits& traits,
                       const Stack& stack)
    : op_(op),
      traits_(traits),
      arguments_(stack.end() - static_cast<std::ptrdiff_t>(traits.arguments), stack.end()) {}

Evaluation::~Evaluation() {
  if (answering_) {
    gpu().end_answer();
  }
}

bool Evaluation::is_moved_by_driver() const {
  std::vector<at::Tensor> tensors;
  for (const c10::IValue& argument : arguments_) {
    for_each_tensor(argument,
                    [&](const at::Tensor& tensor, std::size_t) { tensors.push_back(tensor); });
  }
  const bool elsewhere = std::any_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
    return tensor.device() != tensors.front().device() || !tensor.is_cuda();
  });
  return elsewhere ||
         (tensors.size() == 2 && tensors[0].scalar_type() == tensors[1].scalar_type() &&
          tensors[0].layout() == at::kStrided && tensors[1].layout() == at::kStrided &&
          same_layout(tensors[0], tensors[1]));
}

bool Evaluation::submit(void (*function)(void*)) {
  auto holder = std::make_unique<std::shared_ptr<Job>>(job_);
  if (gpu().in_order(device_, stream_, function, holder.get()) != 0) {
    return false;
  }
  holder.release();
  return true;
}

void Evaluation::begin() {
  if (traits_.kind == Kind::kCopy && is_moved_by_driver()) {
    nothing_to_do_ = true;
    return;
  }
  std::int64_t elements = 0;
  bool describable = true;
  for (const c10::IValue& argument : arguments_) {
    for_each_tensor(argument, [&](const at::Tensor& tensor, std::size_t) {
      if (!tensor.defined()) {
        return;
      }
      elements += tensor.numel();
      if (tensor.is_cuda()) {
        const int device = tensor.device().index();
        describable = describable && (device_ < 0 || device_ == device);
        device_ = device;
      }
    });
    if (argument.isDevice() && argument.toDevice().is_cuda() && device_ < 0) {
      const c10::Device device = argument.toDevice();
      device_ = device.has_index() ? device.index() : c10::cuda::current_device();
    }
  }
  if (device_ < 0) {
    nothing_to_do_ = true;
    return;
  }
  const auto stream = c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device_));
  stream_ = stream.stream();
  job_ = std::make_shared<Job>(HostOperator(op_, traits_));
  const bool sized = traits_.kind == Kind::kDataSized;
  job_->computable = traits_.computable && describable && traits_.kind != Kind::kUnset &&
                     elements <= (sized ? kMaxElementsOfSized : kMaxElements) &&
                     gpu().is_captured(device_, stream_) == 0;
  if (traits_.positions) {
    job_->positions = extent_of_positions(traits_, arguments_);
  }
  job_->tests_whether_finite = tests_whether_finite(traits_, arguments_);
  if (job_->computable) {
    const BelowModes guard;
    const auto take = [this](const at::Tensor& tensor,
                             std::size_t place) -> std::optional<at::Tensor> {
      if (!tensor.defined() || tensor.is_cpu()) {
        return tensor.defined() ? tensor.clone() : tensor;
      }
      if (tensor.is_cuda() && tensor.numel() == 0 && tensor.layout() == at::kStrided) {
        return at::Tensor(at::detail::empty_cpu(tensor.sizes(), tensor.scalar_type()));
      }
      auto described = DeviceTensor::describe(tensor);
      if (!described) {
        return std::nullopt;
      }
      at::Tensor host = described->make_host_tensor();
      if (std::find(traits_.overwritten.begin(), traits_.overwritten.end(), place) ==
          traits_.overwritten.end()) {
        job_->inputs.push_back({std::move(*described), host});
      }
      return host;
    };
    job_->computable =
        job_->host.take_arguments(arguments_, device_, take) && submit(call_job<&Job::read_inputs>);
  }
  if (sized) {
    if (job_->computable && !job_->read) {
      stream.synchronize();
    }
    begin_sized();
  }
}

void Evaluation::begin_sized() {
  const bool is_size = traits_.name != "aten::equal";
  const std::optional<std::int64_t> assumed =
      is_size ? assumed_rows(traits_, arguments_) : std::nullopt;
  // Unknown values give the assumed size, and without an assumption that of zeros.
  job_->computable = job_->computable && (job_->known || !assumed);
  if (job_->computable) {
    const BelowModes guard;
    job_->ran = job_->host.run();
    job_->computable = job_->ran;
  }
  gpu().answer(static_cast<std::uint64_t>(job_->ran ? job_->host.answer() : assumed.value_or(0)));
  answering_ = true;
  if (!job_->ran || !job_->known) {
    note_read(traits_.name, is_size ? Learned::kSize : Learned::kInteger);
  }
}

void Evaluation::end(Stack& stack) {
  if (answering_) {
    gpu().end_answer();
    answering_ = false;
  }
  if (nothing_to_do_) {
    return;
  }
  if (job_->ran) {
    fit_results(stack);
  }
  collect_results(stack);
  if (job_->results.empty()) {
    return;
  }
  if (!submit(call_job<&Job::write_results>)) {
    // A capture: the kernels run in replays, where their values are not computed.
    for (Job::Result& result : job_->results) {
      result.keeps = true;
    }
    job_->computable = job_->ran = false;
    job_->positions.reset();
    gpu().at_once(call_job<&Job::write_results>, new std::shared_ptr<Job>(job_));
  }
}

void Evaluation::collect_results(const Stack& stack) {
  std::int64_t elements = 0;
  const auto add = [&](const c10::IValue& value, bool of_argument, std::size_t place, bool keeps) {
    for_each_tensor(value, [&](const at::Tensor& tensor, std::size_t i) {
      if (auto described = DeviceTensor::describe(tensor)) {
        elements += described->elements();
        job_->results.push_back({std::move(*described), of_argument, place, i, keeps});
      }
    });
  };
  const bool unset = traits_.kind == Kind::kUnset;
  for (const std::size_t place : traits_.written) {
    // An argument that is only overwritten has no contents to keep.
    add(arguments_[place], true, place, unset || !op_.schema().arguments()[place].kwarg_only());
  }
  const std::size_t first = stack.size() - traits_.returns;
  for (std::size_t i = 0; i < traits_.returns; ++i) {
    if (!traits_.return_is_argument[i]) {
      add(stack[first + i], false, i, unset);
    }
  }
  if (elements > kMaxElements && traits_.kind != Kind::kDataSized) {
    job_->computable = false;
  }
}

void Evaluation::fit_results(Stack& stack) {
  const std::size_t first = stack.size() - traits_.returns;
  for (std::size_t i = 0; i < traits_.returns; ++i) {
    c10::IValue& result = stack[first + i];
    if (result.isBool()) {
      result = job_->host.result(i);
    }
    if (!result.isTensor() || traits_.return_is_argument[i] || !result.toTensor().is_cuda()) {
      continue;
    }
    const at::Tensor& there = result.toTensor();
    const at::Tensor host = job_->host.result(i).toTensor();
    if (there.sizes() != host.sizes()) {
      result = at::Tensor(at::detail::empty_cuda(host.sizes(), there.options()));
    }
  }
}

}  // namespace ferro::values
